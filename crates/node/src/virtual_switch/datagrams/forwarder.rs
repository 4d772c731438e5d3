//! Receives datagrams, and opens and ends their flows.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nearpath_kernel::hub_netns::HubNetns;
use nearpath_kernel::sockets::{ReceivedDatagram, receive_datagram};
use nearpath_types::log_limiter::LogLimiter;
use nearpath_types::{FunctionId, RoutingSnapshot};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::address_index::{AddressIndex, ready_instances};
use super::drop_reason::{DatagramCounters, DropReason, add};
use super::flow_table::{FlowKey, FlowNumber, FlowParties, FlowTable};
use super::flow_task::{OpenFlow, StartSignal, send_datagram};
use super::report::DatagramReport;
use crate::config::WakeHook;

/// Buffer for the largest datagram (RFC 768).
pub(super) const MAX_DATAGRAM_BYTES: usize = 65_535;

/// Datagrams that are read at a time, before other events have their turn.
pub(super) const MAX_BATCH: usize = 64;

/// Pause after an error of the socket, such as lack of memory.
const RECEIVE_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Forwarder for the datagrams of all instances.
pub(crate) struct DatagramForwarder {
    context: Arc<ForwarderContext>,
    snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    index: AddressIndex,
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

/// State that the tasks of flows and the report share.
pub(super) struct ForwarderContext {
    hub: Arc<HubNetns>,
    wake: WakeHook,
    table: Mutex<FlowTable<OpenFlow>>,
    pub(super) counters: DatagramCounters,
    log_lines: Mutex<LogLimiter<(FunctionId, DropReason)>>,
}

impl DatagramForwarder {
    pub(crate) fn new(
        hub: Arc<HubNetns>,
        snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
        wake: WakeHook,
    ) -> Self {
        let context = ForwarderContext {
            hub,
            wake,
            table: Mutex::default(),
            counters: DatagramCounters::default(),
            log_lines: Mutex::default(),
        };
        Self {
            context: Arc::new(context),
            snapshots,
            index: AddressIndex::default(),
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
    /// Fails when the socket cannot be registered with the runtime.
    pub(crate) async fn serve(mut self, socket: std::net::UdpSocket) -> io::Result<()> {
        let socket = UdpSocket::from_std(socket)?;
        loop {
            let deadline = self.context.lock_table().next_deadline();
            let expiry = deadline.map_or_else(far_future, Instant::from_std);
            tokio::select! {
                ready = socket.readable() => {
                    if let Err(error) = ready.and_then(|()| self.receive_available(&socket)) {
                        tracing::debug!(%error, "datagram to a virtual address could not be received");
                        sleep(RECEIVE_RETRY_INTERVAL).await;
                    }
                }
                changed = self.snapshots.changed() => match changed {
                    Ok(()) => self.follow_snapshot(&socket),
                    Err(_) => return Ok(()), // the node has ended
                },
                () = sleep_until(expiry) => self.drop_expired(),
            }
        }
    }

    /// Receives the datagrams that are there, a batch at most.
    fn receive_available(&mut self, socket: &UdpSocket) -> io::Result<()> {
        let mut opened = Vec::new();
        for _ in 0..MAX_BATCH {
            let mut buffer = std::mem::take(&mut self.buffer);
            let received =
                socket.try_io(Interest::READABLE, || receive_datagram(socket, &mut buffer));
            let handled = received.map(|one| opened.extend(self.handle(&one, &buffer[..one.len])));
            self.buffer = buffer;
            match handled {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                other => other?,
            }
        }
        // A flow's later datagrams are in its own socket: those that came here go first.
        drop(opened);
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
        let snapshot = self.refresh_index();
        let parties = match self.index.admit(&snapshot, &key) {
            Ok(parties) => parties,
            Err((reason, function)) => {
                self.context.report_drop(function, key.source, reason, 1);
                return None;
            }
        };
        let ready = ready_instances(&snapshot, &parties.callee);
        if ready.is_empty() {
            self.context.wake_sleeping(&snapshot, &parties.callee);
        }
        self.hold(key, &parties, content);
        self.open_flow(key, &parties, &ready)
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
        let snapshot = self.snapshots.borrow().clone();
        let route = snapshot.functions.get(&parties.callee);
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
    fn follow_snapshot(&mut self, socket: &UdpSocket) {
        if self.context.lock_table().is_empty() {
            return;
        }
        let snapshot = self.refresh_index();
        let ended = self.context.lock_table().end_where(|key, parties, open| {
            let instance = open.map(|open| open.instance_eip);
            !self.index.is_current(&snapshot, key, parties, instance)
        });
        let counters = &self.context.counters;
        counters.count_dropped(DropReason::Removed, ended);
        let waiting = self.context.lock_table().waiting_callees();
        let opened: Vec<_> = waiting
            .iter()
            .flat_map(|callee| self.open_flows(&snapshot, callee))
            .collect();
        if !opened.is_empty() {
            let _ = self.receive_available(socket); // a lasting error comes again
        }
    }

    fn open_flows(&mut self, snapshot: &RoutingSnapshot, callee: &FunctionId) -> Vec<StartSignal> {
        let ready = ready_instances(snapshot, callee);
        if ready.is_empty() {
            self.context.wake_sleeping(snapshot, callee);
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
        self.turn = self.turn.wrapping_add(1);
        match self.context.open_flow(key, eip) {
            Ok(signal) => signal,
            Err(error) => {
                tracing::debug!(%error, callee = %parties.callee, "a flow of datagrams could not be opened");
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

    /// Returns the current snapshot, to which the index belongs afterwards.
    fn refresh_index(&mut self) -> Arc<RoutingSnapshot> {
        let snapshot = self.snapshots.borrow().clone();
        if self.index.version != snapshot.version {
            self.index = AddressIndex::new(&snapshot);
        }
        snapshot
    }
}

impl ForwarderContext {
    pub(super) fn lock_table(&self) -> MutexGuard<'_, FlowTable<OpenFlow>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner) // each change is complete
    }

    /// Ends a flow that its task has left.
    pub(super) fn end_flow(&self, key: &FlowKey, number: FlowNumber) {
        self.lock_table().end(key, number);
    }

    /// Connects a waiting flow to an instance, and sends what it holds.
    fn open_flow(self: &Arc<Self>, key: FlowKey, eip: Ipv4Addr) -> io::Result<Option<StartSignal>> {
        let peer = SocketAddrV4::new(eip, key.destination.port());
        let instance = UdpSocket::from_std(self.hub.open_flow_socket(None, peer)?)?;
        let local = Some(key.destination);
        let caller = UdpSocket::from_std(self.hub.open_flow_socket(local, key.source)?)?;
        let instance = Arc::new(instance);
        let mut signal = None;
        let held = self.lock_table().open(&key, |number| {
            let (open, start) =
                OpenFlow::start(self, (key, number), caller, (eip, instance.clone()));
            signal = Some(start);
            open
        });
        for datagram in held.into_iter().flatten() {
            match send_datagram(&instance, &datagram.content) {
                true => add(&self.counters.delivered, 1),
                false => self.counters.count_dropped(DropReason::Unreachable, 1),
            }
        }
        Ok(signal)
    }

    fn forward(&self, open: &OpenFlow, content: &[u8]) {
        match send_datagram(&open.instance, content) {
            true => add(&self.counters.forwarded, 1),
            false => self.counters.count_dropped(DropReason::Unreachable, 1),
        }
    }

    fn wake_sleeping(&self, snapshot: &RoutingSnapshot, function: &FunctionId) {
        let route = snapshot.functions.get(function);
        if route.is_some_and(|route| route.replicas == 0) {
            self.wake.wake_function(function);
        }
    }

    /// Counts dropped datagrams, and logs them once in a while.
    fn report_drop(
        &self,
        function: Option<FunctionId>,
        caller: SocketAddrV4,
        reason: DropReason,
        datagrams: usize,
    ) {
        self.counters.count_dropped(reason, datagrams);
        let Some(function) = function else { return };
        let now = Instant::now().into_std();
        let mut lines = self
            .log_lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(suppressed) = lines.take_due((function.clone(), reason), now) {
            tracing::warn!(%function, %caller, datagrams, suppressed, "datagrams to a virtual address were dropped: {reason}");
        }
    }
}

/// Returns a time that no timer reaches.
fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}
