//! Execution of topology actions: channels are created, introduced, closed and forgotten.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use nearpath_shm::channel::ChannelState;
use nearpath_shm::{Channel, ChannelSide, EndpointId, reclaim};

use super::{DomainActor, MappedChannel};
use crate::clock;
use crate::node_side::pools::DomainPools;
use crate::protocol::{
    ChannelError, ChannelFailed, ChannelGone, ChannelRole, EdgeTerms, NodeMessage, PeerMessage,
};
use crate::topology::{CloseCause, EndpointOwner, TopologyAction};

impl DomainActor {
    pub(super) fn perform_actions(&mut self, actions: Vec<TopologyAction>) {
        for action in actions {
            match action {
                TopologyAction::Open {
                    channel,
                    caller,
                    callee,
                } => {
                    if let Err((error, informed)) = self.open_channel(channel, caller, callee) {
                        self.report_unopened(channel, caller, callee, &error, informed);
                    }
                }
                TopologyAction::Close {
                    channel,
                    cause: how,
                } => self.close_channel(channel, how),
                TopologyAction::Notify {
                    endpoint,
                    channel,
                    state,
                } => {
                    self.send_to_endpoint(
                        endpoint,
                        &NodeMessage::Gone(ChannelGone { channel, state }),
                        Vec::new(),
                    );
                }
                TopologyAction::Forget { channel } => self.forget_channel(channel),
                TopologyAction::Sweep => self.sweep_pool(),
                TopologyAction::Quiet { instance } => self.notify_quiet(instance),
            }
        }
    }

    /// Creates and introduces a channel. An error comes with the endpoint that already knows of
    /// the channel.
    fn open_channel(
        &mut self,
        number: u32,
        caller: EndpointId,
        callee: EndpointId,
    ) -> Result<(), (io::Error, Option<EndpointId>)> {
        let before_introduction = |error| (error, None);
        let channel = Channel::create(self.settings.ring_capacity).map_err(before_introduction)?;
        // Permitted before either side knows the channel: the kernel refuses records without a
        // route.
        if let Some(exchange) = self.sockmap_exchange() {
            exchange
                .permit_channel(caller, number, callee)
                .map_err(before_introduction)?;
            exchange
                .permit_channel(callee, number, caller)
                .map_err(before_introduction)?;
        }
        let function = |endpoint| {
            self.topology
                .owner_of(endpoint)
                .and_then(EndpointOwner::function)
                .cloned()
        };
        let edge = (function(caller), function(callee));
        // Added before the introduction: the first call may be counted at once.
        self.stats
            .add_channel(number, edge, channel.clone(), caller, callee);
        self.channels.insert(
            number,
            MappedChannel {
                channel: channel.clone(),
                caller,
                callee,
            },
        );
        // The callee first: the caller's first call wakes it, and it must find the channel on its
        // socket.
        self.introduce_peer(number, &channel, callee, caller, ChannelRole::Callee)
            .map_err(before_introduction)?;
        self.introduce_peer(number, &channel, caller, callee, ChannelRole::Caller)
            .map_err(|error| (error, Some(callee)))
    }

    /// Reports the error to the caller, so that its calls fail with the cause. The topology
    /// schedules the retry.
    fn report_unopened(
        &mut self,
        number: u32,
        caller: EndpointId,
        callee: EndpointId,
        error: &io::Error,
        informed: Option<EndpointId>,
    ) {
        let who = |endpoint| self.topology.owner_of(endpoint).cloned();
        tracing::error!(%error, caller = ?who(caller), callee = ?who(callee), "dispatch: channel creation failed, retrying");
        let function = self
            .topology
            .owner_of(callee)
            .and_then(EndpointOwner::function)
            .cloned();
        // Under every name that the caller may use: the error must match the call that fails.
        let aliases = self.terms(caller, callee, ChannelRole::Caller).aliases;
        for function in function.into_iter().chain(aliases) {
            self.send_to_endpoint(
                caller,
                &NodeMessage::Failed(ChannelFailed {
                    function,
                    missing: ChannelError::from_io_error(error),
                }),
                Vec::new(),
            );
        }
        let actions = self
            .topology
            .handle_failed(number, informed, clock::monotonic_now());
        self.perform_actions(actions);
    }

    pub(super) fn log_broken(&mut self, number: u32, by: EndpointId) {
        let Some(line) = self
            .channels
            .get(&number)
            .filter(|line| line.caller == by || line.callee == by)
        else {
            return;
        };
        let (caller, callee) = (line.caller, line.callee);
        let who = |endpoint| self.topology.owner_of(endpoint);
        let reporter = who(by).and_then(EndpointOwner::instance);
        let Some(suppressed) = self.log_limiter.take_due(reporter, Instant::now()) else {
            return;
        };
        tracing::warn!(caller = ?who(caller), callee = ?who(callee), reported_by = by.get(), suppressed, "dispatch: channel broken");
    }

    fn introduce_peer(
        &mut self,
        number: u32,
        channel: &Channel,
        to: EndpointId,
        peer: EndpointId,
        side: ChannelRole,
    ) -> io::Result<()> {
        let (Some(state), Some(who)) = (self.endpoints.get(&peer), self.topology.owner_of(peer))
        else {
            return Ok(());
        };
        // A duplicate per peer: the node keeps its own until the endpoint leaves.
        let pool = self.pools.pool_for_peer(peer)?;
        let pool_bytes = pool.as_ref().map(|_| self.pools.region_bytes());
        let mut descriptors = vec![channel.as_fd().try_clone_to_owned()?];
        descriptors.extend(pool);
        descriptors.extend(state.peer_descriptors()?);
        let message = PeerMessage {
            channel: number,
            side,
            endpoint: peer.get(),
            function: who.function().cloned(),
            instance: who.instance(),
            capacity: channel.capacity(),
            pool: pool_bytes,
            watchdog: self
                .connections
                .get(&state.key)
                .is_some_and(|connection| connection.is_watchdog),
            terms: self.terms(to, peer, side),
        };
        if let Some(connection) = self
            .endpoints
            .get(&to)
            .and_then(|state| self.connections.get_mut(&state.key))
        {
            // Kept after the channel's end: a late record on it is no forgery.
            connection.channels.insert(number);
        }
        self.send_to_endpoint(to, &NodeMessage::Peer(message), descriptors);
        Ok(())
    }

    /// Returns the terms of the edge between two endpoints; `side` is the role of `one`.
    fn terms(&self, one: EndpointId, other: EndpointId, side: ChannelRole) -> EdgeTerms {
        let function = |endpoint| {
            self.topology
                .owner_of(endpoint)
                .and_then(EndpointOwner::function)
                .cloned()
        };
        let (caller, callee) = if side == ChannelRole::Caller {
            (one, other)
        } else {
            (other, one)
        };
        function(caller)
            .and_then(|by| self.terms.get(&(by, function(callee))))
            .cloned()
            .unwrap_or_default()
    }

    fn close_channel(&mut self, number: u32, how: CloseCause) {
        let Some(line) = self.channels.get(&number) else {
            return;
        };
        line.channel.close_with(match how {
            CloseCause::Withdrawn => ChannelState::Withdrawn,
            CloseCause::Caller => ChannelState::CallerDead,
            CloseCause::Callee => ChannelState::CalleeDead,
            CloseCause::Broken => ChannelState::Broken,
        });
        // After the state: a woken endpoint reads it at once.
        for endpoint in [line.caller, line.callee] {
            self.endpoints
                .get(&endpoint)
                .into_iter()
                .for_each(|state| state.endpoint_waker().wake());
        }
    }

    fn forget_channel(&mut self, number: u32) {
        if let Some(line) = self.channels.remove(&number) {
            if let Some(exchange) = self.sockmap_exchange() {
                exchange.revoke_channel(line.caller, number);
                exchange.revoke_channel(line.callee, number);
            }
            self.stats.remove_channel(number);
        }
    }

    fn sweep_pool(&mut self) {
        let lines = &self.channels;
        let in_ring = |from: EndpointId, to: EndpointId, slot, generation| {
            lines.values().any(|line| {
                let held = |by| line.channel.contains_slot(by, slot, generation);
                (line.caller, line.callee) == (from, to) && held(ChannelSide::Caller)
                    || (line.callee, line.caller) == (from, to) && held(ChannelSide::Callee)
            })
        };
        if let DomainPools::Shared(pool) = &self.pools {
            // Channels are still mapped here: their rings show the messages that a dead endpoint
            // sent.
            let swept =
                reclaim::sweep_pool(pool, |endpoint| self.topology.is_alive(endpoint), in_ring);
            tracing::debug!(?swept, domain = %self.settings.name, "swept");
        }
        // After the sweep: an id is free only when no lease word contains it.
        let free = |endpoint: &EndpointId| !self.pools.is_id_in_use(*endpoint);
        let rested: Vec<EndpointId> = self.topology.resting_ids().filter(free).collect();
        rested
            .into_iter()
            .for_each(|endpoint| self.topology.release_id(endpoint));
    }
}
