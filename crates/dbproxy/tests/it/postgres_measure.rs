//! Cost of a connection for one statement. Not for CI: `cargo test -p nearpath-dbproxy --release
//! --test it -- --ignored measures --nocapture`.

use std::os::unix::process::CommandExt;
use std::process::Stdio;

use nearpath_types::egress::PoolingMode;
use tokio::process::Command;

use crate::clients;
use crate::fixture::{AdapterFixture, run_local};
use crate::postgres::{as_function, on_postgres, python_with_drivers};
use crate::postgres_server::{PostgresServer, command_as_owner};

#[test]
#[ignore = "it measures"]
fn measures_short_connections() {
    on_postgres!(&[], |server| {
        let Some(python) = python_with_drivers().await else {
            nearpath_testkit::skip!("psycopg cannot be installed")
        };
        server
            .sql("CREATE ROLE measured LOGIN PASSWORD 'simple'")
            .await;
        server.set_auth_method("scram-sha-256").await;
        let (transaction, session) = (
            open_pool(&server, PoolingMode::Transaction).await,
            open_pool(&server, PoolingMode::Session).await,
        );
        let mut ways = vec![
            format!("direct={}", server.at.port()),
            format!("transaction={}", transaction.at.port()),
            format!("session={}", session.at.port()),
        ];
        let mut bouncers = Vec::new();
        for auth in ["any", "scram-sha-256"] {
            if let Some((port, bouncer)) = start_pgbouncer(&server, auth).await {
                ways.push(format!("pgbouncer-{auth}={port}"));
                bouncers.push(bouncer);
            }
        }
        let mut measure = Command::new(python);
        measure.args(["-", "simple"]).args(&ways);
        println!(
            "{}",
            clients::run_program(&mut measure, include_str!("postgres_clients/connect.py")).await
        );
        println!(
            "backends: {} and {}",
            transaction.backends.opened(),
            session.backends.opened()
        );
    });
}

async fn open_pool(server: &PostgresServer, mode: PoolingMode) -> AdapterFixture {
    let mut egress = as_function(server.at, mode);
    egress.login.as_mut().unwrap().user = "measured".into();
    AdapterFixture::open(egress, &[("password", "simple")]).await
}

/// Starts PgBouncer in front of the server. Returns its port.
async fn start_pgbouncer(
    server: &PostgresServer,
    auth: &str,
) -> Option<(u16, tokio::process::Child)> {
    let (port, folder_path) = (nearpath_testkit::free_addr().port(), server.folder.path());
    let users = folder_path.join(format!("users-{auth}"));
    std::fs::write(&users, "\"measured\" \"simple\"\n").unwrap();
    let (host, to) = ("127.0.0.1", server.at.port());
    let settings = format!(
        "[databases]\npostgres = host={host} port={to} user=measured password=simple\n[pgbouncer]\nlisten_addr={host}\nlisten_port={port}\nauth_type={auth}\n\
         auth_file={}\npool_mode=transaction\nunix_socket_dir=\n",
        users.display()
    );
    let file = folder_path.join(format!("pgbouncer-{auth}.ini"));
    std::fs::write(&file, settings).unwrap();
    let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"]
        .into_iter()
        .find(|at| std::path::Path::new(at).exists())?;
    let mut command = command_as_owner(program.as_ref());
    command
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command.as_std_mut().process_group(0);
    let child = command.spawn().ok()?;
    let at = (host, port);
    nearpath_testkit::eventually("PgBouncer listens", async || {
        tokio::net::TcpStream::connect(at).await.is_ok()
    })
    .await;
    Some((port, child))
}
