//! The node's view of the issuer of certificates.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use futures_util::future::BoxFuture;
use nearpath_ca::{HandshakeResponder, IssuerHandle};
use nearpath_node::{HandshakeHalf, HandshakeStep, IdentityIssuer, InstanceIdentity};
use nearpath_types::direct::ForeignAuthority;
use nearpath_types::policy::CallTransport;
use nearpath_types::{FunctionId, InstanceId};

/// Issues identities to the instances of one node.
pub(crate) struct NodeIssuer(pub(crate) IssuerHandle);

impl IdentityIssuer for NodeIssuer {
    fn serves_transport(&self, transport: CallTransport) -> bool {
        // On one machine `auto` means plain TCP, which needs no certificate.
        matches!(
            transport,
            CallTransport::Quic | CallTransport::Tls13 | CallTransport::Tls12
        )
    }

    fn issue_identity(
        &self,
        function: FunctionId,
        instance: InstanceId,
    ) -> BoxFuture<'static, Result<InstanceIdentity, String>> {
        let issued = self.0.issue(function, instance);
        Box::pin(async move {
            issued.await.map(|identity| InstanceIdentity {
                name: identity.name,
                frames: identity.frames,
            })
        })
    }

    fn update_callers(&self, changed: BTreeMap<FunctionId, Vec<FunctionId>>) {
        self.0.update_callers(changed);
    }

    fn update_foreign(&self, instance: &str, authorities: Vec<ForeignAuthority>) {
        self.0.update_foreign(instance, authorities);
    }

    fn open_half(&self, callee: &str, caller: SocketAddr) -> Option<Box<dyn HandshakeHalf>> {
        Some(Box::new(NodeResponder(self.0.responder(callee, caller))))
    }

    fn forget_instance(&self, name: &str) {
        self.0.revoke(name);
    }
}

struct NodeResponder(HandshakeResponder);

impl HandshakeHalf for NodeResponder {
    fn step(&mut self, datagrams: &[Vec<u8>]) -> HandshakeStep {
        let (datagrams, done) = self.0.exchange_datagrams(datagrams);
        HandshakeStep { datagrams, done }
    }
}
