//! Connections of one thread that use one certificate: those to instances, or those to other nodes.

use nearpath_wire::quic::CallerConfig;
use tokio::sync::watch;

use super::{NodeConnections, QuicConnections, SocketOpener, TcpPools};

/// Connections of one thread, kept between requests.
pub(crate) struct Connections {
    /// Connections over TCP, with and without TLS.
    pub(crate) tcp: TcpPools,
    /// Connections over QUIC.
    pub(crate) quic: QuicConnections,
    /// Connections over TLS to other nodes, for plain requests.
    pub(crate) kept_tls: Option<NodeConnections>,
}

impl Connections {
    /// Creates the set without connections. `caller` is the certificate that they use; `None`: HTTP
    /// only.
    pub(crate) fn new(caller: Option<watch::Receiver<CallerConfig>>) -> Self {
        Self {
            tcp: TcpPools::default(),
            quic: QuicConnections::new(caller),
            kept_tls: None,
        }
    }

    /// Opens TCP sockets with `opener` instead of in the thread's network namespace, and keeps up to
    /// `max_kept` connections to each node for plain requests.
    #[must_use]
    pub(crate) fn with_nodes(self, opener: SocketOpener, max_kept: usize) -> Self {
        let kept_tls = NodeConnections::new(opener.clone(), max_kept);
        Self {
            tcp: self.tcp.with_sockets(opener),
            kept_tls: Some(kept_tls),
            ..self
        }
    }

    /// Removes connections that are closed, idle since before `oldest_tick`, or lead to a withdrawn
    /// target.
    pub(crate) fn sweep_idle(&self, oldest_tick: u32) {
        self.tcp.sweep_idle(oldest_tick);
        self.quic.sweep_idle(oldest_tick);
        self.kept_tls.iter().for_each(NodeConnections::sweep_idle);
    }

    /// Applies renewals of the certificate.
    pub(crate) async fn follow_caller(&self) {
        self.quic
            .follow_caller(|caller| {
                self.tcp.set_caller(caller);
                self.kept_tls.iter().for_each(NodeConnections::renew);
            })
            .await;
    }
}
