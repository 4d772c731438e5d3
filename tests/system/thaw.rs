//! Frozen and thawed instances: their connections continue, and lost ones cost no more than plain
//! connections would.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use nearpath_testkit::{Freezer, eventually, need_root, skip};

use crate::database::TestDatabase;
use crate::egress::{run_code, runner_function};
use crate::external_server::{MACHINE_V4, on_own_machine};
use crate::test_server::TestServer;

/// A server that responds with `answer` to each line that `asks` accepts, and can close all its
/// connections at once.
struct ClosingServer {
    port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl ClosingServer {
    fn start(asks: fn(&str) -> bool, answer: &'static str) -> Self {
        let listener = TcpListener::bind((MACHINE_V4, 0)).unwrap();
        let (port, open) = (
            listener.local_addr().unwrap().port(),
            Arc::<Mutex<Vec<TcpStream>>>::default(),
        );
        let all = Arc::clone(&open);
        thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                all.lock().unwrap().push(client.try_clone().unwrap());
                thread::spawn(move || {
                    let lines = BufReader::new(client.try_clone().unwrap())
                        .lines()
                        .map_while(Result::ok);
                    for _ in lines.filter(|line| asks(line)) {
                        // the client may have closed the connection
                        let _ = client.write_all(answer.as_bytes());
                    }
                });
            }
        });
        Self { port, open }
    }

    /// Closes all connections, like a restarted server, or one with an idle timeout.
    fn close_all(&self) -> usize {
        let all = std::mem::take(&mut *self.open.lock().unwrap());
        all.iter()
            // the client may have closed the connection
            .for_each(|client| drop(client.shutdown(Shutdown::Both)));
        all.len()
    }
}

/// Freezes all instances of a function; `None`: there is no freezer.
async fn freeze_instances(server: &TestServer, function: &str) -> Option<Freezer> {
    let processes: Vec<_> = server
        .instance_processes(function)
        .await
        .into_iter()
        .map(i32::cast_unsigned)
        .collect();
    let freezer = Freezer::around_process(&processes)?;
    freezer.freeze().await;
    Some(freezer)
}

macro_rules! frozen {
    ($server:expr) => {
        match freeze_instances(&$server, "goes").await {
            Some(freezer) => freezer,
            None => skip!("no freezer of control groups here"),
        }
    };
}

/// Data from before the freeze is received, then the end. The next connection is a live one, even
/// if dead ones were warm.
#[tokio::test]
async fn a_connection_of_its_own_goes_on_and_a_new_one_is_alive() {
    need_root!();
    on_own_machine();
    let closing = ClosingServer::start(|_| true, "heard\n");
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    let egress = format!("{MACHINE_V4}:{} protocol=tcp warm=4", closing.port);
    server
        .deploy_ready(&runner_function(folder.path(), "goes", &egress))
        .await;
    let open = format!(
        "import builtins\nkept = builtins.kept = socket.create_connection(('{MACHINE_V4}', {}), 20)\n",
        closing.port
    );
    let talk = "kept.sendall(b'hello\\n')\nsaid = kept.recv(99).decode().strip()";
    let again = format!("import builtins\nkept = builtins.kept\n{talk}");
    for _ in 0..2 {
        for _ in 0..4 {
            assert_eq!(
                run_code(&server, "goes", &format!("{open}{talk}")).await,
                "heard",
                "{}",
                server.log()
            ); // so that several are warm
        }
        let freezer = frozen!(server);
        freezer.thaw();
        assert_eq!(run_code(&server, "goes", &again).await, "heard");
        freezer.freeze().await;
        assert!(closing.close_all() > 0);
        freezer.thaw();
        assert_eq!(
            run_code(
                &server,
                "goes",
                "import builtins\nsaid = builtins.kept.recv(99)"
            )
            .await,
            "b''",
            "an end in good order"
        );
        for _ in 0..8 {
            assert_eq!(
                run_code(&server, "goes", &format!("{open}{talk}")).await,
                "heard",
                "{}",
                server.log()
            );
        }
    }
}

#[tokio::test]
async fn over_http_a_connection_that_was_kept_serves_though_its_server_closed() {
    need_root!();
    on_own_machine();
    let closing = ClosingServer::start(
        str::is_empty,
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nheard",
    );
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&runner_function(
            folder.path(),
            "goes",
            &format!("{MACHINE_V4}:{} protocol=http", closing.port),
        ))
        .await;
    let open = format!(
        "import builtins, http.client\nkept = builtins.kept = http.client.HTTPConnection('{MACHINE_V4}', {}, timeout=20)\n",
        closing.port
    );
    let ask = "kept.request('GET', '/')\nsaid = kept.getresponse().read().decode()";
    let again = format!("import builtins\nkept = builtins.kept\n{ask}");
    assert_eq!(
        run_code(&server, "goes", &format!("{open}{ask}")).await,
        "heard",
        "{}",
        server.log()
    );
    for closes in [false, true, true] {
        let freezer = frozen!(server);
        assert!(!closes || closing.close_all() > 0);
        drop(freezer);
        assert_eq!(
            run_code(&server, "goes", &again).await,
            "heard",
            "{}",
            server.log()
        );
    }
}

#[tokio::test]
async fn a_session_at_the_database_goes_on_though_the_server_ended_it() {
    need_root!();
    on_own_machine();
    let port = TcpListener::bind((MACHINE_V4, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let Some(mut database) = TestDatabase::create("one", MACHINE_V4, port).await else {
        skip!("needs PostgreSQL")
    };
    database.start().await;
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start_in(folder.path(), &[]).await;
    server
        .deploy_ready(&crate::failover::client_code(
            folder.path(),
            &format!("{MACHINE_V4}:{port} protocol=postgres user=postgres max=2"),
        ))
        .await;
    let open =
        format!("import builtins, pg\nkept = builtins.kept = pg.Session('{MACHINE_V4}', {port})\n");
    let ask = "said = kept.ask('SELECT name()')";
    let again = format!("import builtins\nkept = builtins.kept\n{ask}");
    assert_eq!(
        run_code(&server, "goes", &format!("{open}{ask}")).await,
        "['one']",
        "{}",
        server.log()
    );
    for ends in [false, true, true] {
        let freezer = frozen!(server);
        if ends {
            database.end_sessions();
            eventually("they have ended", async || database.sessions() == 0).await;
        }
        drop(freezer);
        assert_eq!(
            run_code(&server, "goes", &again).await,
            "['one']",
            "{}",
            server.log()
        );
        assert_eq!(
            run_code(&server, "goes", &format!("{open}{ask}")).await,
            "['one']",
            "{}",
            server.log()
        );
        assert!(database.sessions() <= 2);
    }
}
