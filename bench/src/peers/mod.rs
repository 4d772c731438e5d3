//! Measured programs: child processes on free loopback ports, each stopped by its process id.

pub(crate) mod boutique;
pub(crate) mod chain;
pub(crate) mod chain_program;
pub(crate) mod envoy;
pub(crate) mod many_chains;
pub(crate) mod nearpath;
pub(crate) mod nginx;
pub(crate) mod of_watchdog;
pub(crate) mod own_programs;
pub(crate) mod plain_handler;
pub(crate) mod sensors;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nearpath_testkit::lab::LabNode;
use rustix::process::{Pid, Signal, kill_process};

/// Finds a program in this program's folder or in `PATH`.
fn find_program(name: &str) -> io::Result<PathBuf> {
    search_program(name, &[]).ok_or_else(|| {
        io::Error::other(format!(
            "{name} is not in PATH: run `make build build-bench`"
        ))
    })
}

/// Searches a program in this program's folder, in `PATH` and in `more` folders.
// The functions are built with a faster profile than the comparisons, so the folders differ.
pub(crate) fn search_program(name: &str, more: &[&str]) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let path = std::env::var_os("PATH").unwrap_or_default();
    own.as_deref()
        .and_then(Path::parent)
        .map(PathBuf::from)
        .into_iter()
        .chain(std::env::split_paths(&path))
        .chain(more.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// A running server. Dropping it stops it and waits; its children stop with it.
pub(crate) struct PeerProcess {
    pub(crate) addr: SocketAddr,
    child: Child,
    program: String,
}

impl PeerProcess {
    /// Starts `command` and waits until `addr` accepts connections.
    pub(crate) async fn start(mut command: Command, addr: SocketAddr) -> io::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| start_error(&program, &error))?;
        let mut peer = Self {
            addr,
            child,
            program,
        };
        peer.wait_listening(addr).await?;
        Ok(peer)
    }

    /// Starts `command` on a machine of the lab, and waits until `addr` accepts connections there.
    pub(crate) async fn start_on(
        node: &LabNode,
        mut command: Command,
        addr: SocketAddr,
    ) -> io::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = node
            .spawn(command.stdin(Stdio::null()))
            .map_err(|error| start_error(&program, &error))?;
        let mut peer = Self {
            addr,
            child,
            program,
        };
        let connects = || std::net::TcpStream::connect(addr).is_ok();
        peer.wait_until_listening(async || node.enter(connects))
            .await?;
        Ok(peer)
    }

    /// Waits until `addr`, which is this process's or a child's, accepts connections.
    async fn wait_listening(&mut self, addr: SocketAddr) -> io::Result<()> {
        self.wait_until_listening(async || tokio::net::TcpStream::connect(addr).await.is_ok())
            .await
    }

    async fn wait_until_listening(&mut self, listens: impl AsyncFn() -> bool) -> io::Result<()> {
        let addr = self.addr;
        // Polls for 30 s: a debug build of nearpath on a busy machine needs several.
        for _ in 0..3_000 {
            if listens().await {
                return Ok(());
            }
            // A program that fails at once is reported at once.
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!(
                    "{} exited with {status} before it listened on {addr}",
                    self.program
                )));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(io::Error::other(format!(
            "{} does not listen on {addr} after 30 s",
            self.program
        )))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the server.
    pub(crate) fn send_signal(&self, signal: Signal) -> io::Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).ok_or(io::ErrorKind::NotFound)?;
        Ok(kill_process(pid, signal)?)
    }

    /// Waits for its exit without blocking the runtime.
    pub(crate) async fn wait_end(&mut self) -> io::Result<()> {
        while self.child.try_wait()?.is_none() {
            // Polling: `Child::wait` would block the only thread.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let _ = self.send_signal(Signal::TERM); // not KILL: nginx's master has to end its workers
        let _ = self.child.wait();
    }
}

fn start_error(program: &str, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("cannot start {program}: {error}; check PATH"),
    )
}

/// Returns a free loopback address.
pub(crate) fn free_addr() -> io::Result<SocketAddr> {
    // Free at this moment only; the kernel hands out such ports in turn, so a clash is unlikely.
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Returns the number of this machine's cores.
pub(crate) fn count_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
