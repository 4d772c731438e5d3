//! This program as handler or gateway: in a separate process, so that its CPU time is separate.

use std::io;
use std::net::SocketAddr;
use std::process::Command;

use super::{PeerProcess, free_addr};

/// Starts a plain HTTP handler with a small fixed response.
pub(crate) async fn start_handler() -> io::Result<PeerProcess> {
    start_function(None).await
}

/// Starts the handler, which calls `next` before it responds.
pub(crate) async fn start_function(next: Option<SocketAddr>) -> io::Result<PeerProcess> {
    let addr = free_addr()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["handler", "--listen", &addr.to_string()]);
    command.args(
        next.iter()
            .flat_map(|next| ["--next".to_owned(), next.to_string()]),
    );
    PeerProcess::start(command, addr).await
}

/// Starts nearpath's gateway alone, with one function `echo` at `handler`.
pub(crate) async fn start_gateway(handler: SocketAddr, threads: usize) -> io::Result<PeerProcess> {
    let addr = free_addr()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([
        "gateway",
        "--listen",
        &addr.to_string(),
        "--threads",
        &threads.to_string(),
    ]);
    command.arg("--fixed").arg(format!("echo={handler}"));
    PeerProcess::start(command, addr).await
}
