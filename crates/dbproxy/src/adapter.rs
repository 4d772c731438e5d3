//! The contract of a protocol adapter.

use std::future::Future;
use std::io;
use std::pin::Pin;

use nearpath_types::egress::EgressProtocol;
use tokio::net::TcpStream;

use crate::ClientContext;

/// The service of one client. It runs on one thread, and it is boxed: otherwise every connection
/// would be as large as that of the largest adapter.
pub type ClientService = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// Serves clients of one protocol over few connections.
///
/// Its obligation: a used connection serves the next client only after the protocol itself has
/// shown that nothing of the last client is left in it. Every other connection is closed.
pub trait Adapter {
    /// Returns the protocol of its clients and servers.
    fn protocol(&self) -> EgressProtocol;

    /// Serves one client until it leaves. `client` has `TCP_NODELAY` set.
    ///
    /// With `writes=async` the adapter itself acknowledges writes, and the service may outlive the
    /// client's instance.
    ///
    /// # Errors
    /// The service fails when the client's connection breaks, or its backend's during use. Without
    /// a pool the client would lose its connection, too.
    fn serve(&self, client: TcpStream, context: ClientContext) -> ClientService;

    /// Issues the declared reads (`prefetch`): a call of the function has arrived.
    fn prefetch_reads(&self, _context: &ClientContext) {}
}
