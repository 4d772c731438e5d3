//! The socket of one instance for other nodes: its peers, and what others learn about it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use nearpath_types::direct::{DirectInstance, ForeignAuthority};
use nearpath_types::{InstanceState, RoutingSnapshot};

use super::direct_registry::DirectRegistry;
use super::remote_peers::{RemotePeers, remote_peers};
use super::{CallerInstance, IdentityIssuer};
use crate::machine::SocketPeers;

/// Socket that was handed to the watchdog.
pub(super) struct InstanceSocket {
    name: Arc<str>,
    port: u16,
    peers: Box<dyn SocketPeers>,
    registry: DirectRegistry,
    trusted: Vec<ForeignAuthority>,
}

impl InstanceSocket {
    pub(super) fn new(
        name: Arc<str>,
        port: u16,
        peers: Box<dyn SocketPeers>,
        registry: DirectRegistry,
    ) -> Self {
        Self {
            name,
            port,
            peers,
            registry,
            trusted: Vec::new(),
        }
    }

    /// Applies a snapshot and the announcements of other nodes: permits the peers' addresses, trusts
    /// their authorities, and announces the instance. Returns the peers.
    pub(super) fn update(
        &mut self,
        snapshot: &RoutingSnapshot,
        instance: &CallerInstance,
        issuer: &dyn IdentityIssuer,
    ) -> RemotePeers {
        let nodes = self.registry.peers.borrow_and_update().clone();
        let mut remote = remote_peers(snapshot, &instance.function, &nodes);
        // Before the watchdog learns of them.
        self.permit(&remote.addresses);
        let authorities = std::mem::take(&mut remote.authorities);
        if authorities != self.trusted {
            issuer.update_foreign(&self.name, authorities.clone());
            self.trusted = authorities;
        }
        let announced = self.announcement(snapshot, instance);
        self.registry.announce(&self.name, announced.as_ref());
        remote
    }

    fn permit(&mut self, addresses: &BTreeSet<SocketAddr>) {
        if let Err(error) = self.peers.replace(addresses.clone()) {
            // Calls to the missing ones go by the nodes.
            tracing::warn!(instance = %self.name, %error, "cannot permit a peer on another node");
        }
    }

    /// Returns what others learn: nothing before the instance is ready.
    fn announcement(
        &self,
        snapshot: &RoutingSnapshot,
        instance: &CallerInstance,
    ) -> Option<DirectInstance> {
        let route = snapshot.functions.get(&instance.function)?;
        let mut instances = route.instances.iter();
        let own = instances.find(|one| one.id == instance.instance)?;
        (own.state != InstanceState::Starting).then(|| DirectInstance {
            function: instance.function.clone(),
            port: self.port,
            leaving: own.state == InstanceState::Draining,
        })
    }
}

impl Drop for InstanceSocket {
    fn drop(&mut self) {
        self.registry.announce(&self.name, None);
    }
}
