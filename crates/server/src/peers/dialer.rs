//! Connections to other nodes for their states, over mutual TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use nearpath_internode::{DialedStream, NodeDialError, NodeDialer};
use nearpath_types::NodeName;
use nearpath_wire::mtls::{AlpnProtocol, TlsDialError, TlsVersion};
use nearpath_wire::node_tls::NodeTls;
use tokio::sync::watch;

/// Time limit of a connection. Shorter than the time after which a silent node counts as down.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Dials with the node's current certificate.
pub(super) struct TlsDialer(watch::Receiver<Arc<NodeTls>>);

impl TlsDialer {
    pub(super) fn new(tls: watch::Receiver<Arc<NodeTls>>) -> Self {
        Self(tls)
    }
}

impl NodeDialer for TlsDialer {
    fn dial(
        &self,
        node: &NodeName,
        addr: SocketAddr,
    ) -> BoxFuture<'static, Result<Box<dyn DialedStream>, NodeDialError>> {
        let connector = self.0.borrow().caller_config().mtls_connector().clone();
        let name = node.as_str().to_owned();
        Box::pin(async move {
            let (version, protocol) = (TlsVersion::Tls13, AlpnProtocol::Http1);
            let dialing = connector.dial_worker(addr, &name, version, protocol, DIAL_TIMEOUT);
            let (stream, _) = dialing.await.map_err(dial_error)?;
            Ok(Box::new(stream) as Box<dyn DialedStream>)
        })
    }

    fn renewed(&self) -> BoxFuture<'static, ()> {
        let mut tls = self.0.clone();
        tls.mark_unchanged();
        Box::pin(async move {
            if tls.changed().await.is_err() {
                std::future::pending().await
            }
        })
    }
}

fn dial_error(error: TlsDialError) -> NodeDialError {
    match error {
        TlsDialError::Io { source, .. } => NodeDialError::Connect(source),
        TlsDialError::PeerRefused { refusal, .. } => {
            NodeDialError::Certificate(refusal.to_string())
        }
        other => NodeDialError::Handshake(other.to_string()),
    }
}
