//! Opens flows, and reports what is dropped: state that the forwarder and its report share.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nearpath_kernel::hub_netns::HubNetns;
use nearpath_types::log_limiter::LogLimiter;
use nearpath_types::{FunctionId, RoutingSnapshot};
use tokio::net::UdpSocket;

use super::drop_reason::{DatagramCounters, DropReason, add};
use super::flow_table::{FlowKey, FlowTable};
use super::flow_task::{FlowSockets, OpenFlow, StartSignal, send_datagram};
use crate::config::WakeHook;

/// State of all flows, and the means to open them.
pub(super) struct FlowContext {
    hub: Arc<HubNetns>,
    wake: WakeHook,
    table: Mutex<FlowTable<OpenFlow>>,
    pub(super) counters: Arc<DatagramCounters>,
    log_lines: Mutex<LogLimiter<(FunctionId, DropReason)>>,
}

impl FlowContext {
    pub(super) fn new(hub: Arc<HubNetns>, wake: WakeHook) -> Self {
        Self {
            hub,
            wake,
            table: Mutex::default(),
            counters: Arc::default(),
            log_lines: Mutex::default(),
        }
    }

    pub(super) fn lock_table(&self) -> MutexGuard<'_, FlowTable<OpenFlow>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner) // each change is complete
    }

    /// Connects a waiting flow to an instance, and sends what it holds.
    pub(super) fn open_flow(
        self: &Arc<Self>,
        key: FlowKey,
        eip: Ipv4Addr,
    ) -> io::Result<Option<StartSignal>> {
        let peer = SocketAddrV4::new(eip, key.destination.port());
        // First: without it, the caller's datagrams had better stay with the node's sockets.
        let instance = UdpSocket::from_std(self.hub.open_flow_socket(None, peer)?)?;
        // From here on, the kernel gives the flow's datagrams to this socket: its queue keeps them.
        let local = Some(key.destination);
        let caller = UdpSocket::from_std(self.hub.open_flow_socket(local, key.source)?)?;
        let sockets = FlowSockets {
            caller,
            instance: Arc::new(instance),
        };
        let instance = sockets.instance.clone();
        let mut signal = None;
        let held = self.lock_table().open(&key, |number| {
            let context = self.clone();
            // A later flow may have the same key by then: the number tells them apart.
            let end = move || {
                context.lock_table().end(&key, number); // it holds nothing
            };
            let counters = self.counters.clone();
            let (open, start) = OpenFlow::start(eip, sockets, counters, end);
            signal = Some(start);
            open
        });
        // Without the table: other flows go on meanwhile.
        for datagram in held.into_iter().flatten() {
            self.send(&instance, &datagram.content, &self.counters.delivered);
        }
        Ok(signal)
    }

    /// Forwards a datagram that came to the node's sockets before the flow had its own.
    pub(super) fn forward(&self, open: &OpenFlow, content: &[u8]) {
        self.send(&open.instance, content, &self.counters.forwarded);
    }

    fn send(&self, instance: &UdpSocket, content: &[u8], counter: &AtomicU64) {
        match send_datagram(instance, content) {
            true => add(counter, 1),
            false => self.counters.count_dropped(DropReason::Unreachable, 1),
        }
    }

    /// Wakes a function that sleeps. One that starts needs no more.
    pub(super) fn wake_sleeping(&self, snapshot: &RoutingSnapshot, function: &FunctionId) {
        let route = snapshot.functions.get(function);
        if route.is_some_and(|route| route.replicas == 0) {
            self.wake.wake_function(function);
        }
    }

    /// Counts dropped datagrams, and logs them once in a while.
    pub(super) fn report_drop(
        &self,
        function: Option<FunctionId>,
        caller: SocketAddrV4,
        reason: DropReason,
        datagrams: usize,
    ) {
        self.counters.count_dropped(reason, datagrams);
        // Without a function there is no share of the log: the metric alone tells.
        let Some(function) = function else { return };
        let mut lines = self
            .log_lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(suppressed) = lines.take_due((function.clone(), reason), Instant::now()) {
            tracing::warn!(%function, %caller, datagrams, suppressed, "datagrams to a virtual address were dropped: {reason}");
        }
    }
}
