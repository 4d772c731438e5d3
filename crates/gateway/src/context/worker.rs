//! State of one serving thread, and its handles on shared state.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use tokio::sync::Notify;

use super::busy_threads::BusyThread;
use super::gateway_state::GatewayState;
use super::open_transfers::{OpenTransfer, OpenTransfers};
use crate::GatewaySettings;
use crate::control::GatewayControl;
use crate::event_loop::EventLoop;
use crate::function::{DialTarget, RoutingTable};
use crate::record::{CompletionRecorder, GatewayTotals};
use crate::request::MinRate;
use crate::spool::SpoolStore;
use crate::transport::{Connections, LoopbackPools, ShmDomains};

/// Interval of the sweep. Short against every timeout, long against the cost of visiting all
/// connections.
pub(crate) const TICK_INTERVAL: Duration = Duration::from_millis(250);

/// Interval at which an idle thread of a drain looks at the others.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The context of one serving thread.
pub(crate) struct WorkerContext {
    /// Number of the thread among the serving threads.
    pub thread_number: usize,
    /// The functions that can be called.
    pub table: Arc<RoutingTable>,
    /// Wakes functions and answers administrative requests.
    pub control: Arc<dyn GatewayControl>,
    /// Counters that belong to no function.
    pub totals: Arc<GatewayTotals>,
    /// Records requests when they end.
    pub recorder: Rc<CompletionRecorder>,
    /// `X-Served-By`.
    pub served_by: HeaderValue,
    /// See [`GatewaySettings::connect_timeout`].
    pub connect_timeout: Duration,
    /// See [`GatewaySettings::body_idle_timeout`].
    pub body_idle_timeout: Duration,
    /// Minimum rate of request bodies.
    pub min_body_rate: MinRate,
    /// Minimum rate of callers that read responses.
    pub min_read_rate: MinRate,
    /// See [`GatewaySettings::max_attempts`].
    pub max_attempts: usize,
    /// See [`GatewaySettings::min_bulk_bytes`].
    pub min_bulk_bytes: u64,
    /// Connections to instances.
    pub instance_connections: Connections,
    /// Connections to other nodes.
    pub node_connections: Connections,
    /// Watches connections of callers and to functions' own servers.
    pub event_loop: Rc<EventLoop>,
    /// Connections to functions' own servers, of all threads.
    pub loopback_pools: Arc<LoopbackPools>,
    /// Endpoints in the security domains of instances.
    pub shm_domains: ShmDomains,
    /// Requests and responses that are not complete.
    pub open_transfers: OpenTransfers,
    /// Bodies that were read ahead of their slow side.
    pub spool: Rc<SpoolStore>,
    tick: Arc<AtomicU32>,
    seed: Cell<u64>,
    /// Tick plus one of the date's creation, and the date.
    date: Cell<(u32, [u8; 29])>,
    /// Open connections and tunnels.
    task_count: Cell<usize>,
    /// Tasks among these for which the drain does not wait.
    service_count: Cell<usize>,
    task_ended: Notify,
}

impl WorkerContext {
    /// Creates the context of a thread, without connections.
    pub(crate) fn new(
        settings: &GatewaySettings,
        shared: &GatewayState,
        event_loop: Rc<EventLoop>,
        thread_number: usize,
    ) -> Rc<Self> {
        // The golden ratio in 64 bits (Knuth's multiplicative hash) gives every thread a distant seed.
        let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread_number as u64 + 1);
        let min_rate = |bytes_per_second| MinRate {
            bytes_per_second,
            grace: settings.min_rate_grace,
        };
        Rc::new(Self {
            thread_number,
            table: shared.table.clone(),
            control: shared.control.clone(),
            totals: shared.totals.clone(),
            recorder: Rc::new(CompletionRecorder::new(
                shared.totals.clone(),
                shared.log.clone(),
                settings.node.clone(),
            )),
            served_by: shared.served_by.clone(),
            connect_timeout: settings.connect_timeout,
            body_idle_timeout: settings.body_idle_timeout,
            min_body_rate: min_rate(settings.min_body_rate),
            min_read_rate: min_rate(settings.min_read_rate),
            max_attempts: settings.max_attempts.max(1),
            min_bulk_bytes: settings.min_bulk_bytes,
            instance_connections: Connections::new(shared.caller.clone()),
            node_connections: node_connections(settings, shared),
            event_loop,
            loopback_pools: shared.loopback_pools.clone(),
            shm_domains: ShmDomains::default(),
            open_transfers: OpenTransfers::default(),
            spool: SpoolStore::new(
                shared.spool_directory.clone(),
                shared.totals.spooled_bytes.clone(),
            ),
            tick: Arc::default(),
            // xorshift stays at zero forever if it starts there.
            seed: Cell::new(seed | 1),
            date: Cell::new((0, [0; 29])),
            task_count: Cell::new(0),
            service_count: Cell::new(0),
            task_ended: Notify::new(),
        })
    }

    /// Returns the connections to which those to `target` belong.
    pub(crate) fn connections_to(&self, target: &DialTarget) -> &Connections {
        match target.node() {
            None => &self.instance_connections,
            Some(_) => &self.node_connections,
        }
    }

    /// Returns a pseudo-random number (xorshift64). Not for secrets.
    pub(crate) fn next_random(&self) -> u64 {
        let mut state = self.seed.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.seed.set(state);
        state
    }

    /// Returns the ticks so far, of [`TICK_INTERVAL`] each. Cheaper than reading the clock.
    pub(crate) fn current_tick(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    /// Returns the tick counter itself, for connections.
    pub(crate) fn tick_counter(&self) -> &Arc<AtomicU32> {
        &self.tick
    }

    /// Returns the `Date` of a response (RFC 9110 section 5.6.7), exact to a tick.
    pub(crate) fn http_date(&self) -> [u8; 29] {
        // The text changes once a second, so formatting it for each response would be wasted
        // work.
        let (now, (at, date)) = (self.current_tick(), self.date.get());
        if at == now.wrapping_add(1) {
            return date;
        }
        let text = httpdate::fmt_http_date(SystemTime::now());
        let date = text
            .as_bytes()
            .try_into()
            .expect("an HTTP date has 29 bytes");
        // Plus one, so that the initial zero never matches a tick.
        self.date.set((now.wrapping_add(1), date));
        date
    }

    /// Runs a connection or tunnel on this thread; the drain waits for it.
    pub(crate) fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        // Counted here and not in the task: the drain must see it before it first runs.
        tokio::task::spawn_local(CountedTask {
            task,
            _guard: self.count_task(),
        });
    }

    /// Counts something as a task until the guard is dropped: the drain waits for it.
    pub(crate) fn count_task(self: &Rc<Self>) -> TaskGuard {
        self.task_count.set(self.task_count.get() + 1);
        TaskGuard(self.clone())
    }

    /// Counts a task for which the drain does not wait, until the guard is dropped.
    pub(crate) fn count_service(self: &Rc<Self>) -> ServiceGuard {
        self.service_count.set(self.service_count.get() + 1);
        self.task_ended.notify_one();
        ServiceGuard(self.clone())
    }

    fn has_tasks(&self) -> bool {
        self.task_count.get() > self.service_count.get()
    }

    /// Adds a transfer to the sweep until the guard is dropped.
    pub(crate) fn sweep_transfer(self: &Rc<Self>, transfer: Rc<dyn OpenTransfer>) -> TransferGuard {
        TransferGuard {
            key: self.open_transfers.add(transfer),
            worker: self.clone(),
        }
    }

    /// Waits until no thread has a connection or tunnel left. A thread without any waits for the
    /// others: their requests may call functions through it.
    pub(crate) async fn wait_until_all_idle(&self, mut thread: BusyThread) {
        loop {
            // `notify_one` stores one permit, so an end between the check and the wait is not lost.
            while self.has_tasks() {
                self.task_ended.notified().await;
            }
            thread.set_busy(false);
            while !self.has_tasks() {
                if !thread.is_any_busy() {
                    return;
                }
                tokio::time::sleep(IDLE_POLL_INTERVAL).await;
            }
            thread.set_busy(true);
        }
    }
}

/// Other nodes are reached from the machine's network namespace, which serving threads may have left.
fn node_connections(settings: &GatewaySettings, shared: &GatewayState) -> Connections {
    let control = shared.control.clone();
    let open = move |is_ipv6| control.open_machine_socket(is_ipv6);
    let connections = Connections::new(shared.node_caller.clone());
    connections.with_nodes(Rc::new(open), settings.max_node_connections)
}

/// Keeps a transfer in the sweep.
pub(crate) struct TransferGuard {
    worker: Rc<WorkerContext>,
    key: usize,
}

impl Drop for TransferGuard {
    fn drop(&mut self) {
        self.worker.open_transfers.remove(self.key);
    }
}

pin_project_lite::pin_project! {
    // An `async` block around the task would be twice as large, and it is moved several times.
    /// A task and its count.
    struct CountedTask<F> {
        #[pin]
        task: F,
        _guard: TaskGuard,
    }
}

impl<F: Future<Output = ()>> Future for CountedTask<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().task.poll(cx)
    }
}

/// Excludes a task from those that the drain waits for.
pub(crate) struct ServiceGuard(Rc<WorkerContext>);

impl Drop for ServiceGuard {
    fn drop(&mut self) {
        self.0.service_count.set(self.0.service_count.get() - 1);
    }
}

/// Counts a task for as long as it lives.
pub(crate) struct TaskGuard(Rc<WorkerContext>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.task_count.set(self.0.task_count.get() - 1);
        self.0.task_ended.notify_one();
    }
}
