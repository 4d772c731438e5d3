//! PgBouncer, the baseline of the pool for database connections.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nearpath_testkit::lab::LabNode;
use tempfile::TempDir;

use super::setup::wait_for_listener;
use crate::remote::BenchError;

/// Authentication of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthMethod {
    /// Password by SCRAM, as at the server.
    Scram,
    /// No authentication (`auth_type = any`), like a pool with other authentication.
    Nothing,
}

impl AuthMethod {
    fn config_value(self) -> &'static str {
        if self == Self::Scram {
            "scram-sha-256"
        } else {
            "any"
        }
    }

    fn port(self) -> u16 {
        if self == Self::Scram { 6432 } else { 6433 }
    }
}

/// A running PgBouncer. Dropping it stops it.
pub(crate) struct PgBouncer {
    child: Child,
    _folder: TempDir,
    /// Listening address.
    pub(crate) address: SocketAddr,
}

impl PgBouncer {
    /// Starts PgBouncer in front of a database in transaction mode, with a connection limit.
    /// `None`: it is not installed.
    pub(crate) fn start(
        node: &LabNode,
        database: &str,
        password: &str,
        most: u32,
        auth: AuthMethod,
    ) -> Result<Option<Self>, BenchError> {
        if !is_installed() {
            return Ok(None);
        }
        let folder = tempfile::Builder::new()
            .prefix("nearpath-bouncer.")
            .tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?; // it refuses to be root
        let file = folder.path().join("pgbouncer.ini");
        let users = folder.path().join("users");
        fs::write(&users, format!("\"retail\" \"{password}\"\n"))?;
        fs::write(&file, ini_settings(database, password, &users, most, auth)?)?;
        let mut command = Command::new("setpriv");
        command
            .args([
                "--reuid=postgres",
                "--regid=postgres",
                "--init-groups",
                "pgbouncer",
                "-q",
            ])
            .arg(&file);
        let child = node.spawn(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        )?;
        let bouncer = Self {
            child,
            _folder: folder,
            address: SocketAddr::from(([127, 0, 0, 1], auth.port())),
        };
        wait_for_listener(node, bouncer.address)?;
        Ok(Some(bouncer))
    }

    /// Returns its process id: `setpriv` becomes PgBouncer.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Name of the same database in session mode: before 1.21, PgBouncer shares no connection between
/// transactions with prepared statements.
pub(crate) const SESSIONS_DATABASE: &str = "sessions";

fn ini_settings(
    database: &str,
    password: &str,
    users: &Path,
    most: u32,
    auth: AuthMethod,
) -> Result<String, BenchError> {
    let (host, port) = database
        .rsplit_once(':')
        .ok_or("missing port of the database")?;
    // Without client passwords, PgBouncer needs its own for the server.
    let login = if auth == AuthMethod::Nothing {
        format!("user=retail password={password}")
    } else {
        String::new()
    };
    let (listen, word) = (auth.port(), auth.config_value());
    Ok(format!(
        "[databases]\nretail = host={host} port={port} dbname=retail {login}\n\
         {SESSIONS_DATABASE} = host={host} port={port} dbname=retail pool_mode=session {login}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listen}\n\
         auth_type = {word}\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = {most}\nmax_client_conn = 1000\n\
         ignore_startup_parameters = extra_float_digits\nunix_socket_dir =\n",
        users.display()
    ))
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_installed() -> bool {
    Command::new("pgbouncer")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}
