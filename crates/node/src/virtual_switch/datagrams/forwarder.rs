//! Receives datagrams, and opens and ends their flows.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use nearpath_kernel::hub_netns::HubNetns;
use nearpath_kernel::sockets::ReceivedDatagram;
use nearpath_types::FunctionId;
use tokio::time::{Instant, sleep, sleep_until};

use super::admission::{admit, is_current};
use super::drop_reason::{DropReason, add};
use super::flow_context::FlowContext;
use super::flow_table::{FlowKey, FlowParties};
use super::flow_task::StartSignal;
use super::receive_queue::{MAX_BATCH, MAX_DATAGRAM_BYTES, ReceiveQueue, wait_readable};
use super::report::DatagramReport;
use crate::config::WakeHook;
use crate::virtual_switch::IndexedSnapshots;
use crate::virtual_switch::address_index::AddressIndex;

/// Pause after an error of the socket, such as lack of memory.
const RECEIVE_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Forwarder for the datagrams of all instances.
pub(crate) struct DatagramForwarder {
    context: Arc<FlowContext>,
    snapshots: IndexedSnapshots,
    buffer: Box<[u8]>,
    /// Grows with each flow: instances get them in turn.
    turn: usize,
}

/// State of a datagram's flow before it.
enum KnownFlow {
    Open,
    Waiting(FlowParties),
    Absent,
}

impl DatagramForwarder {
    pub(crate) fn new(hub: Arc<HubNetns>, snapshots: IndexedSnapshots, wake: WakeHook) -> Self {
        Self {
            context: Arc::new(FlowContext::new(hub, wake)),
            snapshots,
            buffer: vec![0; MAX_DATAGRAM_BYTES].into(),
            turn: 0,
        }
    }

    /// Returns the counts.
    pub(crate) fn report(&self) -> DatagramReport {
        DatagramReport::new(self.context.clone())
    }

    /// Serves datagrams as long as the runtime lives.
    ///
    /// # Errors
    /// Fails when a socket cannot be registered with the runtime.
    pub(crate) async fn serve(mut self, sockets: Vec<std::net::UdpSocket>) -> io::Result<()> {
        let sockets = sockets.into_iter().map(ReceiveQueue::new);
        let mut queues = sockets.collect::<io::Result<Vec<_>>>()?;
        loop {
            let deadline = self.context.lock_table().next_deadline();
            let expiry = deadline.map_or_else(far_future, Instant::from_std);
            tokio::select! {
                ready = wait_readable(&queues) => {
                    if let Err(error) = ready.and_then(|()| self.receive_all(&mut queues)) {
                        tracing::debug!(%error, "datagram to a virtual address could not be received");
                        sleep(RECEIVE_RETRY_INTERVAL).await;
                    }
                }
                changed = self.snapshots.changed() => match changed {
                    Ok(()) => self.follow_snapshot(&mut queues),
                    Err(_) => return Ok(()), // the node has ended
                },
                () = sleep_until(expiry) => self.drop_expired(),
            }
        }
    }

    /// Receives a batch at most of each queue, so that none waits for another.
    fn receive_all(&mut self, queues: &mut [ReceiveQueue]) -> io::Result<()> {
        let mut opened = Vec::new();
        // All of them, whichever is ready: the runtime knows which have none, without a system call.
        for queue in queues {
            self.receive_batch(queue, &mut opened)?;
        }
        // A flow's later datagrams are in its own socket: those that came here go first.
        drop(opened);
        Ok(())
    }

    fn receive_batch(
        &mut self,
        queue: &mut ReceiveQueue,
        opened: &mut Vec<StartSignal>,
    ) -> io::Result<()> {
        for _ in 0..MAX_BATCH {
            let mut buffer = std::mem::take(&mut self.buffer);
            let received = queue.receive(&mut buffer);
            let handled = received.map(|(one, lost)| {
                let counters = &self.context.counters;
                counters.count_dropped(DropReason::QueueFull, lost);
                opened.extend(self.handle(&one, &buffer[..one.len]));
            });
            self.buffer = buffer;
            match handled {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                other => other?,
            }
        }
        Ok(())
    }

    /// Forwards, holds or drops a datagram. Returns the signal of a flow that it has opened.
    fn handle(&mut self, received: &ReceivedDatagram, content: &[u8]) -> Option<StartSignal> {
        let key = FlowKey {
            source: received.source,
            destination: received.destination,
        };
        match self.forward_known(&key, content) {
            KnownFlow::Open => return None,
            // An instance is looked for when the snapshot changes.
            KnownFlow::Waiting(parties) => {
                self.hold(key, &parties, content);
                return None;
            }
            KnownFlow::Absent => {}
        }
        let index = self.snapshots.current();
        let parties = match admit(&index, &key) {
            Ok(parties) => parties,
            Err((reason, function)) => {
                self.context.report_drop(function, key.source, reason, 1);
                return None;
            }
        };
        let ready = index.ready_instances(&parties.callee);
        if !ready.is_empty() {
            return self.open_with(key, &parties, &ready, content);
        }
        // Also for a datagram that cannot be held: its sender may repeat it.
        self.context.wake_sleeping(&index.snapshot, &parties.callee);
        self.hold(key, &parties, content);
        None
    }

    /// Opens a new flow to one of the ready instances, and forwards its first datagram, which may be
    /// too large to be held.
    fn open_with(
        &mut self,
        key: FlowKey,
        parties: &FlowParties,
        ready: &[Ipv4Addr],
        content: &[u8],
    ) -> Option<StartSignal> {
        let begun = self.context.lock_table().begin(key, parties);
        let signal = begun.map(|()| self.open_flow(key, parties, ready));
        let reason = match signal {
            Ok(Some(signal)) => {
                self.forward_known(&key, content);
                return Some(signal);
            }
            Ok(None) => DropReason::Unreachable,
            Err(reason) => reason,
        };
        let callee = Some(parties.callee.clone());
        self.context.report_drop(callee, key.source, reason, 1);
        None
    }

    /// Forwards a datagram of an open flow.
    fn forward_known(&self, key: &FlowKey, content: &[u8]) -> KnownFlow {
        let table = self.context.lock_table();
        match table.find(key) {
            Some((_, Some(open))) => {
                self.context.forward(open, content);
                KnownFlow::Open
            }
            Some((parties, None)) => KnownFlow::Waiting(parties.clone()),
            None => KnownFlow::Absent,
        }
    }

    fn hold(&self, key: FlowKey, parties: &FlowParties, content: &[u8]) {
        let index = self.snapshots.current();
        // A function that was just removed holds nothing any more.
        let route = index.snapshot.functions.get(&parties.callee);
        let limit = route.map_or(Duration::ZERO, |route| route.policy.cold_timeout);
        let deadline = (Instant::now() + limit).into_std();
        let held = self
            .context
            .lock_table()
            .hold(key, parties, content, deadline);
        match held {
            Ok(()) => add(&self.context.counters.held, 1),
            Err(reason) => {
                let callee = Some(parties.callee.clone());
                self.context.report_drop(callee, key.source, reason, 1);
            }
        }
    }

    /// Opens the waiting flows of functions that have become ready, and ends flows that may not go on.
    fn follow_snapshot(&mut self, queues: &mut [ReceiveQueue]) {
        // Most nodes have no such flows, and snapshots change often.
        if self.context.lock_table().is_empty() {
            return;
        }
        let index = self.snapshots.current();
        let ended = self.context.lock_table().end_where(|key, parties, open| {
            let instance = open.map(|open| open.instance_eip);
            !is_current(&index, key, parties, instance)
        });
        let counters = &self.context.counters;
        counters.count_dropped(DropReason::Removed, ended);
        let waiting = self.context.lock_table().waiting_callees();
        let opened: Vec<_> = waiting
            .iter()
            .flat_map(|callee| self.open_flows(&index, callee))
            .collect();
        if !opened.is_empty() {
            // Datagrams that came before the flows had their sockets.
            let _ = self.receive_all(queues); // a lasting error comes again
        }
    }

    fn open_flows(&mut self, index: &AddressIndex, callee: &FunctionId) -> Vec<StartSignal> {
        let ready = index.ready_instances(callee);
        if ready.is_empty() {
            self.context.wake_sleeping(&index.snapshot, callee);
            return Vec::new();
        }
        let flows = self.context.lock_table().waiting_flows(callee);
        let opened = flows
            .into_iter()
            .filter_map(|(key, parties)| self.open_flow(key, &parties, &ready));
        opened.collect()
    }

    /// Opens a waiting flow to one of the ready instances, if there are any.
    fn open_flow(
        &mut self,
        key: FlowKey,
        parties: &FlowParties,
        ready: &[Ipv4Addr],
    ) -> Option<StartSignal> {
        let eip = *ready.get(self.turn.checked_rem(ready.len())?)?;
        // In turn, as the kernel spreads the others.
        self.turn = self.turn.wrapping_add(1);
        match self.context.open_flow(key, eip) {
            Ok(signal) => signal,
            Err(error) => {
                tracing::debug!(%error, callee = %parties.callee, "a flow of datagrams could not be opened");
                // Held further, they would fail again at each change.
                let lost = self.context.lock_table().end_waiting(&key);
                let callee = Some(parties.callee.clone());
                self.context
                    .report_drop(callee, key.source, DropReason::Unreachable, lost);
                None
            }
        }
    }

    fn drop_expired(&self) {
        let expired = self.context.lock_table().expire(Instant::now().into_std());
        for (key, parties, datagrams) in expired {
            let (callee, reason) = (Some(parties.callee), DropReason::ColdTimeout);
            self.context
                .report_drop(callee, key.source, reason, datagrams);
        }
    }
}

/// Returns a time that no timer reaches.
fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}
