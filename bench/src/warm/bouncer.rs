//! PgBouncer, what a pool of database connections is compared with.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use nearpath_testkit::lab::Node;
use tempfile::TempDir;

use crate::apart::Error;

/// Where it listens.
const PORT: u16 = 6432;

/// A running one. Ends with this.
pub(crate) struct Bouncer {
    child: Child,
    _folder: TempDir,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

impl Bouncer {
    /// In front of a database, with so many connections at most; in transaction mode. `None`: it is not installed.
    pub(crate) fn start(node: &Node, database: &str, password: &str, most: u32) -> Result<Option<Self>, Error> {
        let (host, port) = database.rsplit_once(':').ok_or("the database has no port")?;
        let folder = tempfile::Builder::new().prefix("nearpath-bouncer.").tempdir()?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?; // it refuses to be root
        let users = folder.path().join("users");
        fs::write(&users, format!("\"retail\" \"{password}\"\n"))?;
        let settings = format!(
            "[databases]\nretail = host={host} port={port} dbname=retail\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {PORT}\n\
             auth_type = scram-sha-256\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = {most}\nmax_client_conn = 1000\n\
             ignore_startup_parameters = extra_float_digits\nunix_socket_dir =\n",
            users.display()
        );
        let file = folder.path().join("pgbouncer.ini");
        fs::write(&file, settings)?;
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=postgres",
            "--regid=postgres",
            "--init-groups",
            "--pdeathsig",
            "TERM",
            "pgbouncer",
            "-q",
        ]);
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if !installed() {
            return Ok(None);
        }
        let child = node.spawn(&mut command)?;
        let bouncer = Self { child, _folder: folder, address: SocketAddr::from(([127, 0, 0, 1], PORT)) };
        bouncer.until_it_listens(node)?;
        Ok(Some(bouncer))
    }

    fn until_it_listens(&self, node: &Node) -> io::Result<()> {
        for _ in 0..1_000 {
            if node.enter(|| std::net::TcpStream::connect(self.address)).is_ok() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "pgbouncer does not listen after 10 s"))
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn installed() -> bool {
    Command::new("pgbouncer").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}
