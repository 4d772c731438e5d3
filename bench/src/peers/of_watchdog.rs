//! OpenFaaS's of-watchdog behind nginx, a peer of `default`: nginx stands for the gateway, and
//! of-watchdog in mode `http` passes requests to the unmodified handler that it started.
//!
//! of-watchdog writes a line per request, and has no setting against it. The lines go to
//! `/dev/null`.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::nginx::NginxServer;
use super::plain_handler::PlainHandler;
use super::{PeerProcess, count_cores, free_addr, search_program};

/// Port of of-watchdog's metrics. It is fixed, and of-watchdog panics if it is taken.
const METRICS_PORT: u16 = 8081;

/// nginx, of-watchdog and its handler.
pub(crate) struct OfWatchdog {
    pub(crate) nginx: NginxServer,
    watchdog: PeerProcess, // with the handler as its child
    _temporary: TempDir,
}

/// Finds of-watchdog.
///
/// # Errors
/// If it is missing, or cannot run here. The text says what to do.
pub(crate) fn find_of_watchdog() -> io::Result<PathBuf> {
    let program = search_program("of-watchdog", &[]).ok_or_else(|| {
        io::Error::other(
            "of-watchdog is missing in PATH: clone github.com/openfaas/of-watchdog, run \
             `go build -mod=vendor` in it, and put the program in PATH",
        )
    })?;
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, METRICS_PORT)) {
        Ok(_) => Ok(program),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("port {METRICS_PORT} of of-watchdog's metrics cannot be opened: {error}"),
        )),
    }
}

impl OfWatchdog {
    /// Starts `program` with `handler`, and nginx in front of it for all paths below `location`.
    /// Only one can run in a network namespace.
    pub(crate) async fn start(
        program: &Path,
        handler: &PlainHandler,
        location: &str,
    ) -> io::Result<Self> {
        let (addr, upstream, temporary) = (free_addr()?, free_addr()?, tempfile::tempdir()?);
        let mut command = Command::new(program);
        command
            .current_dir(handler.folder())
            .env("mode", "http")
            .env("fprocess", handler.command_line(upstream.port()))
            .env("upstream_url", format!("http://{upstream}"))
            .env("port", addr.port().to_string())
            // of-watchdog's lock file has a fixed name in this folder.
            .env("TMPDIR", temporary.path())
            // of-watchdog waits for so long at its end.
            .env("healthcheck_interval", "1s")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut watchdog = PeerProcess::start(command, addr).await?;
        // of-watchdog listens before its handler does.
        watchdog.wait_listening(upstream).await?;
        Ok(Self {
            nginx: NginxServer::start(addr, count_cores(), location).await?,
            watchdog,
            _temporary: temporary,
        })
    }

    /// Returns the processes of nginx and of-watchdog.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        vec![self.nginx.peer.pid(), self.watchdog.pid()]
    }
}
