//! Servers of Debian, each with a folder of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Builds the command that starts a server, from its folder and address.
type ServerCommand = dyn Fn(&std::path::Path, SocketAddr) -> Command;

/// A server that ends when this is dropped.
pub(crate) struct TestServer {
    pub(crate) at: SocketAddr,
    pub(crate) folder: tempfile::TempDir,
    command: Box<ServerCommand>,
    child: Option<Child>,
}

impl TestServer {
    /// Starts the server of `make`. `None`: the program is missing.
    pub(crate) async fn start(
        make: impl Fn(&std::path::Path, SocketAddr) -> Command + 'static,
    ) -> Option<Self> {
        let folder_path = tempfile::tempdir().unwrap();
        let mut server = Self {
            at: nearpath_testkit::free_addr(),
            folder: folder_path,
            command: Box::new(make),
            child: None,
        };
        server.restart().await.then_some(server)
    }

    /// Starts the server on the same port. Returns whether its program exists.
    pub(crate) async fn restart(&mut self) -> bool {
        let mut command = (self.command)(self.folder.path(), self.at);
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true);
        let Ok(child) = command.spawn() else {
            return false;
        };
        self.child = Some(child);
        let (folder_path, at) = (self.folder.path().join("log"), self.at);
        let listens = async || TcpStream::connect(at).await.is_ok();
        let ready = nearpath_testkit::eventually("the server listens", listens);
        if tokio::time::timeout(Duration::from_secs(40), ready)
            .await
            .is_err()
        {
            panic!(
                "{}",
                std::fs::read_to_string(folder_path).unwrap_or_default()
            );
        }
        true
    }

    /// Kills the server.
    pub(crate) async fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.unwrap();
        }
    }
}

/// Starts Redis, with `more` on its command line.
pub(crate) async fn start_redis(more: &'static [&'static str]) -> Option<TestServer> {
    TestServer::start(move |folder_path, at| {
        let mut command = Command::new("redis-server");
        let port = at.port().to_string();
        command
            .args([
                "--port",
                &port,
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
            ])
            .arg(folder_path)
            .args(more);
        command
    })
    .await
}

/// Starts nginx, which echoes requests, keeps connections for `keepalive` seconds, and serves a
/// file of 1,000,000 bytes.
pub(crate) async fn start_nginx(keepalive: u32) -> Option<TestServer> {
    TestServer::start(move |folder_path, at| {
        let folder = folder_path.display();
        let config = format!(
            "daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log; events {{}}
             http {{ access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
             keepalive_timeout {keepalive}; keepalive_requests 100000; client_max_body_size 100m; default_type text/plain;
             server {{ listen {at}; root {folder};
               location /say/ {{ return 200 \"$request_method $uri $http_host $http_connection $http_x_mine\n\"; }}
               location /none {{ return 204; }}
               location /same {{ return 304; }}
               location /count {{ return 200 \"$connection $connection_requests\n\"; }}
               location /big {{ alias {folder}/big; }}
               location /put/ {{ dav_methods PUT; create_full_put_path on; }} }} }}"
        );
        std::fs::write(folder_path.join("nginx.conf"), config.replace("\\\"", "\"")).unwrap();
        std::fs::write(folder_path.join("big"), "x".repeat(1_000_000)).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-c").arg(folder_path.join("nginx.conf")).arg("-p").arg(folder_path).arg("-e").arg(folder_path.join("error.log"));
        command
    })
    .await
}

/// Starts MariaDB with an account `fn`, password `pw`, and databases `shop` and `other`. `more`
/// goes on its command line.
pub(crate) async fn start_mariadb(more: &'static [&'static str]) -> Option<TestServer> {
    let template = MARIADB_TEMPLATE
        .get_or_init(create_mariadb_template)
        .await
        .as_deref()?;
    TestServer::start(move |folder_path, at| {
        let data = folder_path.join("data");
        if !data.exists() {
            let copied = std::process::Command::new("cp")
                .arg("-r")
                .arg(template)
                .arg(&data)
                .status()
                .unwrap();
            assert!(copied.success());
        }
        let mut command = Command::new("mariadbd");
        // A starting server removes all temporary tables in its folder, also those of other servers
        // there.
        command
            .args(MARIADB_OPTIONS)
            .arg(format!("--tmpdir={}", folder_path.display()))
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}/socket", folder_path.display()));
        command.arg(format!("--port={}", at.port())).args(more);
        command
    })
    .await
}

const MARIADB_OPTIONS: &[&str] = &[
    "--no-defaults",
    "--user=root",
    "--bind-address=127.0.0.1",
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=16M",
    "--skip-name-resolve",
    "--innodb-flush-log-at-trx-commit=0",
    "--local-infile=1",
];

/// A data folder of MariaDB right after its installation. `None`: MariaDB is not installed.
static MARIADB_TEMPLATE: tokio::sync::OnceCell<Option<std::path::PathBuf>> =
    tokio::sync::OnceCell::const_new();

async fn create_mariadb_template() -> Option<std::path::PathBuf> {
    let folder_path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("mariadb");
    let _lock = nearpath_testkit::lock_shared_folder(&folder_path);
    let complete = folder_path.join("complete");
    if complete.exists() {
        return Some(folder_path);
    }
    // A test that was killed may have left an incomplete folder.
    let _ = std::fs::remove_dir_all(&folder_path);
    let mut install = Command::new("mariadb-install-db");
    install.args([
        "--no-defaults",
        "--user=root",
        "--skip-test-db",
        "--auth-root-authentication-method=normal",
        "--innodb-log-file-size=8M",
    ]);
    install
        .arg(format!("--datadir={}", folder_path.display()))
        .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if !install.status().await.ok()?.success() {
        return None;
    }
    let sql = "CREATE DATABASE shop;\nCREATE DATABASE other;\nFLUSH PRIVILEGES;\nCREATE USER fn IDENTIFIED BY 'pw';\nGRANT ALL ON *.* TO fn;\nCREATE TABLE shop.visits (id INT AUTO_INCREMENT PRIMARY KEY, who TEXT);\n";
    let mut boot = Command::new("mariadbd");
    boot.args(MARIADB_OPTIONS)
        .arg("--bootstrap")
        .arg(format!("--datadir={}", folder_path.display()));
    boot.arg(concat!("--tmpdir=", env!("CARGO_TARGET_TMPDIR")));
    crate::clients::run_program(&mut boot, sql).await;
    std::fs::write(complete, "").unwrap();
    Some(folder_path)
}

/// Returns the loopback address as programs expect it.
pub(crate) fn loopback_host() -> String {
    Ipv4Addr::LOCALHOST.to_string()
}
