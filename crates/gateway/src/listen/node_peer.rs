//! The other node behind a TLS connection, checked as long as the connection is open.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_types::NodeName;
use nearpath_wire::identity::{PeerIdentity, PeerRefusal};
use nearpath_wire::node_tls::NodeTls;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

/// Maximum time between two checks of a certificate's end: clocks can be adjusted.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Certificate of another node, and what it is checked against.
pub(super) struct NodePeer {
    tls: watch::Receiver<Arc<NodeTls>>,
    chain: Vec<CertificateDer<'static>>,
    identity: PeerIdentity,
}

impl NodePeer {
    /// Checks a node after its handshake.
    ///
    /// # Errors
    /// See [`PeerRefusal`].
    pub(super) fn admit(
        tls: &watch::Receiver<Arc<NodeTls>>,
        chain: &[CertificateDer<'_>],
    ) -> Result<(NodeName, Self), PeerRefusal> {
        let trust = tls.borrow().credentials().trust().clone();
        let identity = trust.admit_peer(chain, SystemTime::now())?;
        let chain = chain.iter().map(|one| one.clone().into_owned()).collect();
        let peer = Self {
            tls: tls.clone(),
            chain,
            identity,
        };
        Ok((peer.identity.node_name()?, peer))
    }

    /// Waits until the certificate ends, or its root is not accepted any more.
    pub(super) async fn wait_refused(mut self) -> PeerRefusal {
        loop {
            let left = self.identity.remaining_validity(SystemTime::now());
            tokio::select! {
                () = renewed(&mut self.tls) => {}
                () = tokio::time::sleep(left.min(EXPIRY_CHECK_INTERVAL)) => {}
            }
            let trust = self.tls.borrow().credentials().trust().clone();
            if let Err(refusal) = trust.readmit_peer(&self.chain, SystemTime::now()) {
                return refusal;
            }
        }
    }
}

/// Waits for other certificates of this node.
async fn renewed(tls: &mut watch::Receiver<Arc<NodeTls>>) {
    if tls.changed().await.is_err() {
        pending().await
    }
}

/// Runs `serving` until it ends, or the peer is refused.
pub(super) async fn serve_while_admitted<T>(
    serving: impl Future<Output = T>,
    refused: impl Future<Output = T>,
) -> T {
    tokio::select! {
        served = serving => served,
        refused = refused => refused,
    }
}
