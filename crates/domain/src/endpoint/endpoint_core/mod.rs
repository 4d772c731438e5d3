//! Core of an endpoint, without a way to wait; both drivers run it.

mod bodies;
mod incoming;
mod outgoing;
mod responses;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
#[cfg(feature = "tokio")]
use std::task::Waker;
use std::time::Duration;

use nearpath_shm::{ChannelSide, PoolEndpoint, WakeupCell};

use super::body_reader::ReaderReports;
use super::join::{EndpointSettings, JoinedEndpoint};
use super::link::{PeerLink, ReceivePolicy};
use super::sockmap_inbox::SockmapInbox;
#[cfg(feature = "tokio")]
use super::types::CalleeKind;
use super::types::{CallError, CallReply, IncomingCall};
use crate::clock::MonotonicNanos;
use crate::packet;
use crate::peer_table::{CallNumber, PeerTable};
use crate::protocol::EndpointMessage;

/// Incomplete events of a channel that the gateway holds: 2 MiB with the largest bodies.
const MAX_PARTIAL_FORWARDED_EVENTS: usize = 8;

/// Interval to retry a claim when no slot is free. Releases wake no endpoint: each would have to
/// read a word that all endpoints write. Polling costs a thousand checks a second, only for an
/// endpoint that lacks a slot.
const SLOT_RETRY_INTERVAL: Duration = Duration::from_millis(1);

pub(in crate::endpoint) type CallOutcome = Result<CallReply, CallError>;

/// Core of an endpoint; see the module documentation.
#[derive(Debug)]
pub(in crate::endpoint) struct EndpointCore {
    pub(in crate::endpoint) cell: WakeupCell,
    pub(in crate::endpoint) socket: Arc<OwnedFd>,
    pub(in crate::endpoint) peer_table: PeerTable<CallOutcome>,
    pub(in crate::endpoint) incoming: VecDeque<IncomingCall>,
    pub(in crate::endpoint) endpoint: Arc<PoolEndpoint>,
    pub(in crate::endpoint) links: BTreeMap<u32, PeerLink>,
    /// Present when the kernel carries the descriptors.
    pub(in crate::endpoint) inbox: Option<SockmapInbox>,
    reader_reports: Arc<ReaderReports>,
    settings: EndpointSettings,
    pub(in crate::endpoint) seen_control_seq: u32,
    /// True once the node closed the socket.
    pub(in crate::endpoint) hung_up: bool,
    /// Channels that ended before the node reported it.
    pub(in crate::endpoint) ended_channels: Vec<u32>,
    /// True if sent messages have not been flushed.
    pub(in crate::endpoint) needs_flush: bool,
    /// Tasks that wait for credit.
    #[cfg(feature = "tokio")]
    credit_waiters: Vec<(nearpath_types::FunctionId, Waker)>,
}

impl EndpointCore {
    pub(in crate::endpoint) fn new(joined: JoinedEndpoint, settings: EndpointSettings) -> Self {
        let JoinedEndpoint {
            socket,
            cell,
            endpoint: member,
            inbox,
            ..
        } = joined;
        let own = match &inbox {
            Some(inbox) => cell.wakeup_signal().via_sockmap(inbox.socket.clone(), 0),
            None => cell.wakeup_signal(),
        };
        // Differs between endpoints that start at once: otherwise all prefer the same instances.
        let seed = u64::from(member.id().get()) << 32 ^ crate::clock::monotonic_now();
        Self {
            // Off by one: the first run reads packets that followed the welcome
            seen_control_seq: cell.control_seq().wrapping_sub(1),
            reader_reports: ReaderReports::new(own),
            cell,
            socket: Arc::new(socket),
            endpoint: member,
            inbox,
            settings,
            peer_table: PeerTable::new(seed),
            incoming: VecDeque::new(),
            links: BTreeMap::new(),
            hung_up: false,
            ended_channels: Vec::new(),
            needs_flush: false,
            #[cfg(feature = "tokio")]
            credit_waiters: Vec::new(),
        }
    }

    pub(in crate::endpoint) fn send_to_node(&self, message: &EndpointMessage) -> io::Result<()> {
        packet::send_message(&self.socket, message, &[])
    }

    /// Returns true if the node closed the socket: no new peers arrive, and slots of the dead stay.
    pub(in crate::endpoint) fn hung_up(&self) -> bool {
        self.hung_up
    }

    /// Returns true if the node closed the sockmap socket.
    #[cfg(feature = "tokio")]
    pub(in crate::endpoint) fn is_sockmap_closed(&self) -> bool {
        self.inbox.as_ref().is_some_and(|inbox| inbox.closed)
    }

    /// Returns the kind of endpoint that takes the calls of an instance; `None`: there is no channel.
    #[cfg(feature = "tokio")]
    pub(in crate::endpoint) fn callee_at(
        &self,
        instance: nearpath_types::InstanceId,
    ) -> Option<CalleeKind> {
        let channels = self.peer_table.instance_channels(instance);
        let is_watchdog = |channel| self.links.get(channel).is_some_and(|link| link.is_watchdog);
        // While the code takes over, there are channels to both.
        let kind = match channels.iter().all(is_watchdog) {
            true => CalleeKind::Watchdog,
            false => CalleeKind::Code,
        };
        (!channels.is_empty()).then_some(kind)
    }

    pub(in crate::endpoint) fn callable_functions(&self) -> Vec<nearpath_types::FunctionId> {
        self.peer_table.functions().cloned().collect()
    }

    /// Wakes all receivers of sent messages. Call this, or run, once per batch. A wakeup costs a
    /// system call, and the receiver may take the core at once.
    pub(in crate::endpoint) fn flush_links(&mut self) {
        if std::mem::take(&mut self.needs_flush) {
            self.links
                .values_mut()
                .for_each(|link| link.end.flush_batch());
        }
    }

    /// Returns the core of the expected sender, for spinning.
    pub(in crate::endpoint) fn expected_core(&self, call: CallNumber) -> u32 {
        let link = self
            .peer_table
            .call_channel(call)
            .and_then(|channel| self.links.get(&channel));
        link.map_or(0, |link| link.end.peer_signal().last_core())
    }

    /// Runs once: receives, sends what has room, expires calls.
    pub(in crate::endpoint) fn run_once(&mut self, now: MonotonicNanos) {
        // The socket first: records and messages below may belong to a peer that it announces.
        self.read_socket_if_signalled();
        self.read_sockmap();
        // Taken out, because handling a message needs `self` beside its link.
        let mut links = std::mem::take(&mut self.links);
        for (&channel, link) in &mut links {
            self.run_link(channel, link, now);
        }
        self.links = links;
        // Each link was flushed by its own run.
        self.needs_flush = false;
        self.handle_reader_reports();
        while let Some(call) = self.peer_table.next_expired(now) {
            if let Some(channel) = self.peer_table.expire_call(call, Err(CallError::Timeout)) {
                // Otherwise the callee works on a call whose caller has given up.
                self.cancel_call(channel, call);
            }
        }
        self.flush_links();
        self.end_finished_links();
        #[cfg(feature = "tokio")]
        self.wake_credit_waiters();
    }

    fn run_link(&mut self, channel: u32, link: &mut PeerLink, now: MonotonicNanos) {
        let EndpointSettings {
            max_body_bytes: bound,
            stream_bodies: streams,
            stream_calls: calls_stream,
            forwards_events,
            ..
        } = self.settings;
        let streams = streams || calls_stream && link.side == ChannelSide::Callee;
        let taking = ReceivePolicy {
            max_body_bytes: bound,
            max_partial_events: match forwards_events {
                true => MAX_PARTIAL_FORWARDED_EVENTS,
                false => usize::MAX,
            },
            stream_bodies: streams,
            reports_releases: self.endpoint.pool().is_strict(),
        };
        link.receive_batch(taking, |link, came| match link.side {
            ChannelSide::Caller => self.handle_response(channel, link, came, now),
            ChannelSide::Callee => self.handle_call(channel, link, came, now),
        });
        if link.has_unsent() {
            link.end.release_consumed(); // before its window is checked
            link.send_unsent(&self.endpoint);
        }
        link.end.flush_batch();
    }

    /// Announces a sleep; false when there is work.
    #[cfg(feature = "tokio")]
    pub(in crate::endpoint) fn announce_sleep(&mut self) -> bool {
        let Self {
            cell,
            links,
            seen_control_seq: control_seq,
            endpoint: member,
            reader_reports: left,
            inbox,
            credit_waiters: starved,
            peer_table: book,
            ..
        } = self;
        let ready = || {
            // Requests a wakeup from every candidate without credit: a peer that frees an entry
            // wakes only those that asked.
            let fed = |(function, _): &(_, Waker)| {
                let mut channels = book.function_channels(function).iter();
                channels.any(|channel| {
                    links
                        .get_mut(channel)
                        .is_some_and(PeerLink::has_credit_or_requests)
                })
            };
            let fed = starved.iter().any(fed);
            fed || *control_seq != cell.control_seq()
                || left.has_any()
                || links.values_mut().any(|link| link.has_work(member))
        };
        // A polling endpoint has neither: it never announces a sleep, and its peers never wake it.
        let sleeps = inbox.is_some() || cell.eventfd().is_some();
        sleeps && cell.announce_sleep(ready)
    }

    /// Sleeps in the wakeup cell until there is work.
    pub(in crate::endpoint) fn sleep_until_work(&mut self, peer: u32, timeout: Option<Duration>) {
        let Self {
            cell,
            links,
            seen_control_seq: control_seq,
            endpoint: member,
            reader_reports: left,
            inbox,
            ..
        } = self;
        // A view of its own: `wait_until` borrows the cell mutably.
        let packets = cell.shared_control_seq();
        let mut ready = || {
            *control_seq != packets.load(Ordering::Acquire)
                || left.has_any()
                || links.values_mut().any(|link| link.has_work(member))
        };
        match inbox {
            None => cell.wait_until(peer, timeout, ready),
            Some(inbox) if cell.announce_sleep(&mut ready) => {
                inbox.wait_readable(timeout);
                cell.mark_awake();
            }
            Some(_) => {}
        }
    }

    /// Returns the time of the next run without a wakeup.
    pub(in crate::endpoint) fn next_wakeup(
        &mut self,
        now: MonotonicNanos,
    ) -> Option<MonotonicNanos> {
        let short = self
            .links
            .values()
            // The message that needed a slot may be cancelled
            .any(|link| link.needs_slot && link.has_unsent());
        let retry = short.then(|| now + SLOT_RETRY_INTERVAL.as_nanos() as u64);
        [self.peer_table.next_deadline(), retry]
            .into_iter()
            .flatten()
            .min()
    }
}
