//! HTTP connections from a machine of the lab, and processes on it.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use nearpath_testkit::lab::LabNode;
use tokio::net::TcpStream;

use crate::load::connection::{LoadConnection, LoadResponse};
use crate::tally::RequestFailure;

/// Opens an HTTP connection from a machine, also to its own loopback.
pub(crate) async fn open_connection(
    node: &LabNode,
    addr: SocketAddr,
) -> Result<LoadConnection, RequestFailure> {
    // A socket belongs to the namespace of the thread that creates it, and works on any thread.
    let stream = node.enter(|| {
        let stream = std::net::TcpStream::connect(addr)?;
        stream.set_nonblocking(true)?;
        Ok::<_, io::Error>(stream)
    });
    let stream = stream.and_then(TcpStream::from_std);
    LoadConnection::over(stream.map_err(|_| RequestFailure::Connect)?).await
}

/// Sends a request from a machine on a new connection.
pub(crate) async fn send_once(
    node: &LabNode,
    addr: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<LoadResponse, RequestFailure> {
    open_connection(node, addr)
        .await?
        .send_request(request)
        .await
}

/// Returns the processes below `roots` whose command line begins with `command`.
pub(crate) fn find_processes(roots: &[u32], command: &str) -> Vec<u32> {
    let is_meant = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        words.join(&b' ').starts_with(command.as_bytes())
    };
    let tree = crate::cpu::process_tree(roots);
    tree.into_iter().filter(is_meant).collect()
}
