//! Connections of one thread that use one certificate: those to instances, or those to other nodes.

use nearpath_wire::quic::CallerConfig;
use tokio::sync::watch;

use super::tcp::SocketOpener;
use super::{QuicConnections, TcpPools};

/// Connections of one thread, kept between requests.
pub(crate) struct Connections {
    /// Connections over TCP, with and without TLS.
    pub(crate) tcp: TcpPools,
    /// Connections over QUIC.
    pub(crate) quic: QuicConnections,
}

impl Connections {
    /// Creates the set without connections. `caller` is the certificate that they use; `None`: HTTP
    /// only.
    pub(crate) fn new(caller: Option<watch::Receiver<CallerConfig>>) -> Self {
        Self {
            tcp: TcpPools::default(),
            quic: QuicConnections::new(caller),
        }
    }

    /// Opens TCP sockets with `opener` instead of in the thread's network namespace.
    #[must_use]
    pub(crate) fn with_sockets(self, opener: SocketOpener) -> Self {
        Self {
            tcp: self.tcp.with_sockets(opener),
            ..self
        }
    }

    /// Removes connections that are closed, idle since before `oldest_tick`, or lead to a withdrawn
    /// target.
    pub(crate) fn sweep_idle(&self, oldest_tick: u32) {
        self.tcp.sweep_idle(oldest_tick);
        self.quic.sweep_idle(oldest_tick);
    }

    /// Applies renewals of the certificate.
    pub(crate) async fn follow_caller(&self) {
        self.quic
            .follow_caller(|caller| self.tcp.set_caller(caller))
            .await;
    }
}
