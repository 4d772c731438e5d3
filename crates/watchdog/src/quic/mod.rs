//! The watchdog as a QUIC worker, for callers on other machines, and as a caller of those that the node names.
//!
//! The node says who this instance is, through the socket whose number is in `NEARPATH_IDENTITY_FD`: first its credentials and the sessions
//! that were minted for it, later whatever of it changes, and whom it may call directly ([`crate::edges`]). QUIC listens on the number of
//! the HTTP port, over UDP; calls to others go out there, too. A call walks the same way as one over HTTP, [`crate::serve::answer`];
//! limits, metrics and the drain know no difference.

mod line;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use http::Response;
use nearpath_types::Reason;
use nearpath_types::frames::{BadFrame, FromNode};
use nearpath_wire::early::{Provision, ProvisionError, Sessions};
use nearpath_wire::quic::config::ConfigError;
use nearpath_wire::quic::frame::{Answered, UNKNOWN};
use nearpath_wire::quic::{Call, Caller, Worker, WorkerError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::arrival::Arrival;
use crate::body::Body;
use crate::edges::{Edges, Me};
use crate::listen::{Open, Watch};
use crate::logs::say;
use crate::patience::Busy;
use crate::serve::{App, answer};
use line::Line;

/// Why there is no QUIC, or why it ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the node's socket: {0}")]
    Socket(#[from] std::io::Error),
    #[error("the node's frame: {0}")]
    Frame(#[from] BadFrame),
    #[error("the node named others before this instance")]
    Order,
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

impl From<ConfigError> for Fault {
    fn from(fault: ConfigError) -> Self {
        Self::Worker(fault.into())
    }
}

/// Serves on this address, which is that of the HTTP port, until the watch says to close. Without QUIC, callers use HTTP.
pub(crate) async fn serve<S>(app: Arc<App>, addr: SocketAddr, node: S, watch: Watch, edges: Option<Edges>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if let Err(fault) = take_part(app, addr, Line::new(node), watch, edges.unwrap_or_default()).await {
        say!("calls from other machines go over HTTP, not over QUIC: {fault}");
    }
}

async fn take_part<S>(
    app: Arc<App>,
    addr: SocketAddr,
    mut node: Line<S>,
    mut watch: Watch,
    edges: Edges,
) -> Result<(), Fault>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Some(first) = node.next().await? else { return Ok(()) }; // a node that knows no QUIC
    let FromNode::Provision(first) = FromNode::read(&first)? else { return Err(Fault::Order) };
    let provision = Provision::read(first)?;
    let socket = UdpSocket::bind(addr)?;
    socket.set_nonblocking(true)?;
    let open = watch.open.clone();
    let worker = Worker::start(socket, provision, move |call| walk(Arc::clone(&app), call, open.clone()))?;
    say!("QUIC on {addr} as {}", worker.id());
}

async fn walk(app: Arc<App>, call: Call, open: Open) -> Response<Body> {
