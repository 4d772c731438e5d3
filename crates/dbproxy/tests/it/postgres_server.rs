//! A PostgreSQL server of Debian in a folder of its own. Started by root, it runs as the user
//! `postgres`, because it refuses to run as root.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::clients;

/// The password of all users.
pub(crate) const PASSWORD: &str = "a'secret\\";

/// A server that ends when this is dropped.
pub(crate) struct PostgresServer {
    pub(crate) at: SocketAddr,
    pub(crate) folder: tempfile::TempDir,
    settings: Vec<String>,
    child: Option<Child>,
}

/// Returns the folder of the newest installed version's programs.
pub(crate) fn programs_folder() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let bins = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    bins.filter(|bin| bin.join("initdb").exists() && bin.join("psql").exists())
        .max()
}

impl PostgresServer {
    /// Starts a server with these additional settings, and these files in its data folder, readable
    /// only by it. `None`: PostgreSQL is not installed.
    pub(crate) async fn start_with(settings: &[&str], files: &[(&str, &str)]) -> Option<Self> {
        let bin = programs_folder()?;
        let folder_path = tempfile::tempdir().unwrap();
        if nearpath_testkit::is_root() {
            clients::run_program(
                Command::new("chown")
                    .arg("postgres:postgres")
                    .arg(folder_path.path()),
                "",
            )
            .await;
        }
        let password = folder_path.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        std::fs::set_permissions(
            &password,
            std::os::unix::fs::PermissionsExt::from_mode(0o644),
        )
        .unwrap();
        let mut initdb = command_as_owner(&bin.join("initdb"));
        initdb
            .arg("-D")
            .arg(folder_path.path().join("data"))
            .arg("--pwfile")
            .arg(&password);
        initdb.args([
            "-U",
            "postgres",
            "--auth=scram-sha-256",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ]);
        clients::run_program(&mut initdb, "").await;
        for (name, text) in files {
            let path = folder_path.path().join("data").join(name);
            clients::run_program(
                command_as_owner(Path::new("sh"))
                    .args(["-c", "umask 077 && cat > \"$0\""])
                    .arg(path),
                text,
            )
            .await;
        }
        let settings = settings.iter().map(|&setting| setting.to_owned()).collect();
        let mut server = Self {
            at: nearpath_testkit::free_addr(),
            folder: folder_path,
            settings,
            child: None,
        };
        server.restart().await;
        Some(server)
    }

    /// Starts the server on the same port as before.
    pub(crate) async fn restart(&mut self) {
        let mut command = command_as_owner(&programs_folder().unwrap().join("postgres"));
        command.arg("-D").arg(self.folder.path().join("data"));
        let ours = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            "log_statement=all",
        ];
        let port = format!("port={}", self.at.port());
        let settings = ours
            .into_iter()
            .chain([port.as_str()])
            .chain(self.settings.iter().map(String::as_str));
        for setting in settings {
            command.args(["-c", setting]);
        }
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .unwrap();
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true);
        self.child = Some(command.spawn().unwrap());
        let ready = async || self.try_sql("SELECT 1").await.is_some();
        nearpath_testkit::eventually("PostgreSQL answers", ready).await;
    }

    /// Stops the server: `Signal::INT` ends sessions properly, `Signal::QUIT` at once.
    pub(crate) async fn stop(&mut self, how: Signal) {
        let mut child = self.child.take().unwrap();
        let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        kill_process(pid, how).unwrap();
        child.wait().await.unwrap();
    }

    /// Sets the authentication method of all users but the administrator.
    pub(crate) async fn set_auth_method(&self, method: &str) {
        self.set_hba_rule(&format!("host all all all {method}"))
            .await;
    }

    /// Sets the line of `pg_hba.conf` for all users but the administrator.
    pub(crate) async fn set_hba_rule(&self, method: &str) {
        let rules = self.folder.path().join("data/pg_hba.conf");
        std::fs::write(
            rules,
            format!("host all postgres all scram-sha-256\n{method}\n"),
        )
        .unwrap();
        self.sql("SELECT pg_reload_conf()").await;
    }

    /// Runs a statement as the administrator, directly at the server.
    pub(crate) async fn sql(&self, sql: &str) -> String {
        let mut psql = psql_command(self.at, "postgres", PASSWORD, &["-c", sql]);
        // On a busy machine psql itself could be idle for longer than a test lets others be.
        psql.env("PGOPTIONS", "-c idle_session_timeout=0");
        clients::run_program(&mut psql, "").await.trim().to_owned()
    }

    async fn try_sql(&self, sql: &str) -> Option<()> {
        let output = clients::program_output(
            &mut psql_command(self.at, "postgres", PASSWORD, &["-c", sql]),
            "",
        )
        .await;
        output.status.success().then_some(())
    }

    /// Returns the number of sessions except the administrator's.
    pub(crate) async fn session_count(&self) -> u32 {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        self.sql(sql).await.parse().unwrap()
    }

    /// Returns the server's log.
    pub(crate) fn read_log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

/// A killed server would leave its shared memory behind.
impl Drop for PostgresServer {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        pid.map(|pid| kill_process(pid, Signal::QUIT));
        let deadline = Instant::now() + Duration::from_secs(10);
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns a quiet `psql` with bare output that stops at the first error.
pub(crate) fn psql_command(
    at: SocketAddr,
    user: &str,
    password: &str,
    arguments: &[&str],
) -> Command {
    let mut command = Command::new(programs_folder().unwrap().join("psql"));
    command.args([
        "-X",
        "-q",
        "-A",
        "-t",
        "-v",
        "ON_ERROR_STOP=1",
        "-h",
        "127.0.0.1",
        "-d",
        "postgres",
    ]);
    command
        .args(["-p", &at.port().to_string(), "-U", user])
        .args(arguments)
        .env("PGPASSWORD", password);
    command
}

pub(crate) fn command_as_owner(program: &Path) -> Command {
    if !nearpath_testkit::is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid=postgres",
            "--regid=postgres",
            "--init-groups",
            "--",
        ])
        .arg(program)
        .current_dir("/");
    command
}
