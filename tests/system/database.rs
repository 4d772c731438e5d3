//! A Debian PostgreSQL outside of nearpath that trusts every client. As root it runs as the user
//! `postgres`, because it refuses to run as root.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nearpath_testkit::eventually;
use rustix::process::{Pid, Signal, kill_process};

/// A database server that ends with this value.
pub(crate) struct TestDatabase {
    folder: tempfile::TempDir,
    address: Ipv4Addr,
    port: u16,
    child: Option<Child>,
}

/// Programs of the newest installed version.
fn find_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let bins = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    bins.filter(|bin| bin.join("initdb").exists() && bin.join("psql").exists())
        .max()
}

impl TestDatabase {
    /// Creates a database that returns its name for `SELECT name()`, without starting it. `None`:
    /// not installed.
    pub(crate) async fn create(name: &str, at: Ipv4Addr, port: u16) -> Option<Self> {
        let bin = find_programs()?;
        let home_dir = tempfile::Builder::new()
            .prefix("nearpath-test-")
            .tempdir()
            .unwrap();
        run_to_end(
            Command::new("chown")
                .arg("postgres:postgres")
                .arg(home_dir.path()),
        );
        let mut initdb = as_owner(&bin.join("initdb"));
        initdb.arg("-D").arg(home_dir.path().join("data"));
        run_to_end(initdb.args([
            "-U",
            "postgres",
            "--auth=trust",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ]));
        let rules = home_dir.path().join("data/pg_hba.conf");
        std::fs::write(rules, "host all all all trust\n").unwrap();
        let mut database = Self {
            folder: home_dir,
            address: at,
            port,
            child: None,
        };
        database.start().await;
        database.sql(&format!(
            "CREATE FUNCTION name() RETURNS text LANGUAGE sql RETURN '{name}'"
        ));
        database.stop(Signal::INT);
        Some(database)
    }

    /// Starts the server.
    pub(crate) async fn start(&mut self) {
        let mut command = as_owner(&find_programs().unwrap().join("postgres"));
        command.arg("-D").arg(self.folder.path().join("data"));
        let (at, port) = (
            format!("listen_addresses={}", self.address),
            format!("port={}", self.port),
        );
        let settings = [
            "unix_socket_directories=",
            "fsync=off",
            "dynamic_shared_memory_type=mmap",
            &at,
            &port,
        ];
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
            .stderr(log);
        self.child = Some(command.spawn().unwrap());
        eventually("PostgreSQL answers", async || {
            self.try_sql("SELECT 1").is_some()
        })
        .await;
    }

    /// Stops the server. `Signal::INT` ends sessions properly; `Signal::KILL` acts like a power
    /// failure.
    pub(crate) fn stop(&mut self, how: Signal) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        let pid = Pid::from_child(&child);
        let sessions = child_processes(pid.as_raw_nonzero().get());
        kill_process(pid, how).unwrap();
        if how == Signal::KILL {
            for session in sessions {
                let _ = kill_process(session, how); // it may have ended already
            }
        }
        child.wait().unwrap();
        self.drop_caches();
    }

    /// Removes the shared-memory segment that a killed server leaves. The seventh line of its lock
    /// file names it (`storage/ipc` in its source).
    fn drop_caches(&self) {
        let lock = self.folder.path().join("data/postmaster.pid");
        let text = std::fs::read_to_string(&lock).unwrap_or_default();
        if let Some(segment) = text
            .lines()
            .nth(6)
            .and_then(|line| line.split_whitespace().nth(1))
        {
            let _ = Command::new("ipcrm")
                .args(["-m", segment])
                .stderr(Stdio::null())
                .status();
            let _ = std::fs::remove_file(lock);
        }
    }

    /// Runs a statement directly.
    pub(crate) fn sql(&self, sql: &str) -> String {
        self.try_sql(sql)
            .unwrap_or_else(|| panic!("{sql}: {}", self.log()))
    }

    fn try_sql(&self, sql: &str) -> Option<String> {
        let mut command = Command::new(find_programs()?.join("psql"));
        command.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-U",
            "postgres",
            "-d",
            "postgres",
            "-h",
            &self.address.to_string(),
        ]);
        let output = command
            .args(["-p", &self.port.to_string(), "-c", sql])
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Number of sessions, without the querying one.
    pub(crate) fn sessions(&self) -> u32 {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        self.sql(sql).parse().unwrap()
    }

    /// Ends all sessions except the querying one.
    pub(crate) fn end_sessions(&self) {
        self.sql("SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        self.stop(Signal::QUIT);
    }
}

fn child_processes(parent: i32) -> Vec<Pid> {
    let text = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))
        .unwrap_or_default();
    text.split_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}

fn run_to_end(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn as_owner(program: &Path) -> Command {
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
