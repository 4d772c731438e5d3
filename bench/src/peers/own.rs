//! This program itself, as handler or gateway: a process of its own, so that its CPU time is its own.

use std::io;
use std::net::SocketAddr;
use std::process::Command;

use super::{Peer, free_addr};

/// A plain HTTP handler with a small fixed response.
pub(crate) async fn handler() -> io::Result<Peer> {
    function(None).await
}

/// The same, which asks `next` before it answers.
pub(crate) async fn function(next: Option<SocketAddr>) -> io::Result<Peer> {
    let addr = free_addr()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["handler", "--listen", &addr.to_string()]);
    command.args(
        next.iter()
            .flat_map(|next| ["--next".to_owned(), next.to_string()]),
    );
    Peer::start(command, addr).await
}

/// nearpath's gateway alone, with one function `echo` at `handler`.
pub(crate) async fn gateway(handler: SocketAddr, threads: usize) -> io::Result<Peer> {
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
    Peer::start(command, addr).await
}
