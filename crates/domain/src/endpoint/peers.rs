//! Peers of an endpoint: node messages on the socket, and states of the channels.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use nearpath_shm::channel::ChannelState;
use nearpath_shm::{Channel, ChannelSide, EndpointId, PeerPool, WakeupSignal};
use nearpath_types::InstanceId;

use super::endpoint_core::{CallOutcome, EndpointCore};
use super::link::PeerLink;
use super::types::{CallError, CallerIdentity};
use crate::packet::{self, SocketPacket};
use crate::peer_table::PeerTable;
use crate::protocol::{
    self, ChannelBroken, ChannelDrained, ChannelGone, ChannelRole, EndpointMessage, NodeMessage,
    PeerMessage,
};

impl EndpointCore {
    /// Ends links that are closed, or withdrawn and done.
    pub(super) fn end_finished_links(&mut self) {
        let over = |link: &mut PeerLink, book: &PeerTable<CallOutcome>, channel| {
            let done = |link: &mut PeerLink| {
                // Only the caller ends a withdrawn channel: it knows when its calls are answered.
                let idle = link.side == ChannelSide::Caller
                    && link.is_idle()
                    && book.in_flight(channel) == 0;
                idle && link.end.is_drained()
            };
            // Runs for every link on every run: check `done` only when it matters
            link.closed || link.withdrawn && done(link)
        };
        if !self
            .links
            .iter_mut()
            .any(|(&channel, link)| over(link, &self.peer_table, channel))
        {
            return;
        }
        let book = &self.peer_table;
        let ended: Vec<u32> = self
            .links
            .iter_mut()
            .filter_map(|(&c, link)| over(link, book, c).then_some(c))
            .collect();
        for channel in ended {
            self.end_link(channel);
        }
    }

    fn end_link(&mut self, channel: u32) {
        let Some(mut link) = self.links.remove(&channel) else {
            return;
        };
        // Outcomes before the peer goes: each waiting caller learns that its call may have run.
        for call in self.peer_table.retire_dead(channel) {
            self.peer_table.settle_call(call, Err(CallError::PeerDied));
        }
        self.peer_table.remove_peer(channel);
        self.incoming
            // Calls of a dead caller need no answer; its events still count.
            .retain(|incoming| incoming.is_event || incoming.channel != channel);
        link.break_all_bodies(CallError::PeerDied);
        link.owed_responses
            .drain()
            .filter_map(|(_, taken)| taken.waker)
            .for_each(Waker::wake);
        link.end.flush_batch(); // reclaims what the dead peer will not receive
        match link.end.channel().state() {
            // The node keeps a withdrawn channel until this report, or until its drain timeout.
            _ if link.withdrawn => self.report_drained(channel),
            ChannelState::Broken => self.report_broken(channel),
            _ => self.ended_channels.push(channel),
        }
    }

    /// Reports a broken channel: the node ends it for the peer, too, and creates another.
    fn report_broken(&mut self, channel: u32) {
        if self
            .send_to_node(&EndpointMessage::Broken(ChannelBroken { channel }))
            .is_err()
        {
            self.hung_up = true;
        }
    }

    fn report_drained(&mut self, channel: u32) {
        if self
            .send_to_node(&EndpointMessage::Drained(ChannelDrained { channel }))
            .is_err()
        {
            self.hung_up = true;
        }
    }

    pub(super) fn read_socket_if_signalled(&mut self) {
        let control_seq = self.cell.control_seq();
        if control_seq != self.seen_control_seq {
            self.seen_control_seq = control_seq;
            self.read_socket();
        }
    }

    /// Receives from the sockmap socket. When the node closed it, all channels end.
    pub(super) fn read_sockmap(&mut self) {
        let Some(inbox) = &mut self.inbox else { return };
        inbox.dispatch_received(&mut self.links);
        if inbox.closed {
            self.hung_up = true;
            self.links.values_mut().for_each(|link| link.closed = true);
        }
    }

    /// Reads all available packets.
    pub(super) fn read_socket(&mut self) {
        while !self.hung_up {
            match packet::receive_packet(&self.socket) {
                Ok(Some(packet)) => self.handle_packet(packet),
                // End of file: the node closed the socket. No new peers arrive; open calls go on.
                Ok(None) => self.hung_up = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.hung_up = true,
            }
        }
    }

    /// Handles a packet. An invalid one is ignored: it only means that a peer is missing.
    fn handle_packet(&mut self, packet: SocketPacket) {
        match NodeMessage::parse_packet(&packet.bytes) {
            Ok(Some(NodeMessage::Peer(peer))) => {
                let channel = peer.channel;
                if self.add_peer(peer, packet.descriptors).is_err() {
                    // Its descriptors could not be mapped, or were cut off: too few file
                    // descriptors here
                    self.report_broken(channel);
                }
            }
            Ok(Some(NodeMessage::Failed(failed))) => self
                .peer_table
                .record_failure(failed.function, failed.missing),
            Ok(Some(NodeMessage::Gone(gone))) => self.handle_channel_gone(gone),
            _ => {}
        }
    }

    fn add_peer(&mut self, peer: PeerMessage, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(invalid);
        let channel = Channel::open_region(next()?, peer.capacity)?;
        let pool = peer
            .pool
            .map(|bytes| Ok::<_, io::Error>((next()?, bytes)))
            .transpose()?;
        // The eventfd is last because it is optional: a futex needs no descriptor.
        let signal = WakeupSignal::open_region(next()?, descriptors.next())?;
        let endpoint = EndpointId::new(peer.endpoint).ok_or_else(invalid)?;
        let side = if peer.side == ChannelRole::Caller {
            ChannelSide::Caller
        } else {
            ChannelSide::Callee
        };
        let mut end = channel.attach_end(side, Arc::clone(&self.endpoint), endpoint, signal);
        if self.endpoint.pool().is_strict() {
            let (pool, bytes) = pool.ok_or_else(invalid)?;
            match PeerPool::open_read_only(pool, usize::try_from(bytes).map_err(|_| invalid())?) {
                Ok(source) => end = end.with_peer_pool(source),
                Err(error) => {
                    end.break_channel(); // the peer's region is not a pool; closing tells the peer
                    return Err(error);
                }
            }
        }
        if let Some(inbox) = &mut self.inbox {
            end = end.via_sockmap(inbox.socket.clone(), peer.channel);
            inbox
                // Records may overtake the announcement: they travel on another socket.
                .take_early_records(peer.channel)
                .iter()
                .for_each(|record| end.deliver_record(record));
        }
        let instance = peer.instance.unwrap_or(InstanceId(0));
        let caller = Arc::new(CallerIdentity::new(peer.function.clone(), peer.instance));
        // A second announcement would drop the open calls of the first.
        if self.links.contains_key(&peer.channel) {
            return Err(invalid());
        }
        if side == ChannelSide::Caller {
            self.peer_table
                .add_peer_with(peer.channel, peer.function, instance, &peer.terms);
        }
        let mut link = PeerLink::new(end, side, caller, instance);
        link.events_only = peer.terms.events_only;
        link.is_watchdog = peer.watchdog;
        self.links.insert(peer.channel, link);
        Ok(())
    }

    fn handle_channel_gone(&mut self, gone: ChannelGone) {
        let channel = gone.channel;
        if let Some(at) = self
            .ended_channels
            .iter()
            .position(|&ended| ended == channel)
        {
            self.ended_channels.swap_remove(at);
            return self.report_drained(channel);
        }
        self.peer_table.retire_peer(channel);
        match self.links.get_mut(&channel) {
            Some(link) => {
                link.withdrawn = true;
                if gone.state == protocol::ChannelEnding::Dead
                    && link.end.channel().state() <= ChannelState::Withdrawn
                {
                    // The node closes the channel before it reports; if it did not, the report
                    // counts.
                    let dead = if link.side == ChannelSide::Caller {
                        ChannelState::CalleeDead
                    } else {
                        ChannelState::CallerDead
                    };
                    link.end.channel().close_with(dead);
                }
            }
            None => {
                self.inbox
                    .iter_mut()
                    .for_each(|inbox| drop(inbox.take_early_records(channel)));
                self.report_drained(channel);
            }
        }
    }
}
