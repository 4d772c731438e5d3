//! A serving thread: its runtime, its tasks, and its orderly end.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nearpath_daemon::drain::{self, DrainCause};
use tokio::runtime::LocalOptions;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use super::conn_state::{ConnTable, ConnTimeouts, whole_ticks};
use super::node_quic::{self, NodeQuicPort};
use super::{AcceptSetup, ListenContext, ListenPort, accept, http3};
use crate::GatewaySettings;
use crate::context::{BusyThread, GatewayState, TICK_INTERVAL, WorkerContext};
use crate::deliver;
use crate::event_loop::{BatchRule, EventLoop};
use crate::invoke::{Invoker, LocalTask};
use crate::remote_events;
use crate::request::ListenerZone;

/// Threads that read and write the spool's files for a serving thread; nothing else blocks. Enough
/// to keep a disk busy while one of them waits for free pages.
const MAX_DISK_THREADS: usize = 4;

/// Everything that a thread needs to start.
pub(crate) struct ThreadSetup {
    pub thread_number: usize,
    pub ports: Vec<AcceptSetup>,
    pub http3: Vec<http3::Http3ListenPort>,
    pub node_quic: Option<NodeQuicPort>,
    pub services: Vec<LocalTask>,
    pub drain: drain::DrainWatch,
    pub busy: BusyThread,
}

/// Serves until the drain, then until the last request has ended or the drain timeout has passed.
///
/// # Errors
/// When the runtime cannot be set up; after the drain, the first error of a listener.
pub(crate) fn run_thread(
    thread: ThreadSetup,
    settings: &GatewaySettings,
    shared: &GatewayState,
) -> io::Result<()> {
    let control = shared.control.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_start(move || control.prepare_disk_thread())
        .thread_name(format!("gateway-{}-disk", thread.thread_number))
        .max_blocking_threads(MAX_DISK_THREADS)
        .build_local(LocalOptions::default())?;
    let in_runtime = runtime.enter();
    let worker = WorkerContext::new(settings, shared, EventLoop::new()?, thread.thread_number);
    drop(in_runtime);
    let context = Rc::new(ListenContext {
        worker,
        conn_table: ConnTable::default(),
    });
    let served = runtime.block_on(serve_until_drained(context.clone(), thread, settings));
    // Tasks left in the runtime are dropped with it, and recorded as cut.
    context.worker.recorder.begin_cutting();
    drop(runtime);
    context.worker.event_loop.close();
    served
}

async fn serve_until_drained(
    context: Rc<ListenContext>,
    thread: ThreadSetup,
    settings: &GatewaySettings,
) -> io::Result<()> {
    let worker = context.worker.clone();
    tokio::task::spawn_local(run_event_loop(worker.event_loop.clone()));
    let event_loop = worker.event_loop.clone();
    tokio::task::spawn_local(async move { event_loop.end_overdue_waits().await });
    tokio::task::spawn_local(sweep_connections(
        context.clone(),
        conn_timeouts(settings),
        settings.pool_idle_timeout,
    ));
    tokio::task::spawn_local(follow_routing_table(worker.clone()));
    tokio::task::spawn_local(follow_callers(worker.clone()));
    if let Some(sockets) = worker.control.domain_sockets() {
        tokio::task::spawn_local(join_domains(worker.clone(), sockets));
    }
    let services = thread.services.into_iter();
    let services = services.map(|task| {
        tokio::task::spawn_local(task(Invoker::new(worker.clone()), thread.drain.clone()))
    });
    let ports = thread.ports.into_iter();
    let ports: Vec<_> = ports
        .map(|setup| (Rc::new(setup.port), (setup.socket, setup.handed_over)))
        .collect();
    let is_internal = |port: &&Rc<ListenPort>| port.zone == ListenerZone::Internal;
    let internal = ports.iter().map(|(port, _)| port).find(is_internal);
    if let Some((port, listeners)) = internal.zip(worker.control.inner_listeners()) {
        let serving = accept::serve_inner_listeners(context.clone(), port.clone(), listeners);
        tokio::task::spawn_local(serving);
    }
    let ports = ports.into_iter().map(|(port, (socket, handed_over))| {
        let acceptor = accept::Acceptor::new(context.clone(), port);
        tokio::task::spawn_local(acceptor.accept_connections(socket, handed_over))
    });
    let http3_endpoints = Rc::<http3::Http3Endpoints>::default();
    let http3 = thread.http3.into_iter();
    let http3 = http3.map(|port| {
        tokio::task::spawn_local(http3::accept_connections(
            context.clone(),
            port,
            http3_endpoints.clone(),
        ))
    });
    let node_quic = thread.node_quic.map(|port| serve_nodes(&context, port));
    let node_quic = node_quic.transpose()?;
    // Together: a failure is logged at once, and not when its turn comes at the drain.
    let thread_number = thread.thread_number;
    let listeners = ports.chain(services).chain(http3).chain(node_quic);
    let listeners = listeners.map(|listener| run_listener(listener, thread_number));
    let accepted: io::Result<()> = join_all(listeners).await.into_iter().collect();
    // A thread without ports gets here at once and must not end before the others.
    thread.drain.signaled().await;
    // A dropped trigger counts as a stop.
    let cause = thread.drain.cause().unwrap_or(DrainCause::Stop);
    context.conn_table.drain_all(worker.current_tick(), cause);
    let drained = tokio::time::timeout(
        settings.drain_timeout,
        worker.wait_until_all_idle(thread.busy),
    )
    .await;
    if drained.is_err() {
        tracing::warn!(limit = ?settings.drain_timeout, "drain timeout: cutting the remaining requests");
        worker.recorder.begin_cutting();
        http3_endpoints.close_all().await; // without a close, a QUIC client waits for its timeout
    }
    if let Some(endpoint) = worker.node_connections.quic.endpoint() {
        node_quic::close_endpoint(endpoint).await;
    }
    worker.loopback_pools.close_idle(); // nothing sweeps them from now on
    accepted
}

/// Opens the thread's endpoint for other nodes, and serves their calls.
fn serve_nodes(
    context: &Rc<ListenContext>,
    port: NodeQuicPort,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let endpoint = node_quic::open_endpoint(&port)?;
    let quic = &context.worker.node_connections.quic;
    quic.set_endpoint(endpoint.clone());
    let serving = node_quic::serve_calls(context.clone(), port, endpoint);
    Ok(tokio::task::spawn_local(serving))
}

/// Applies renewals of the gateway's certificates.
async fn follow_callers(worker: Rc<WorkerContext>) {
    let (instances, nodes) = (&worker.instance_connections, &worker.node_connections);
    tokio::join!(instances.follow_caller(), nodes.follow_caller());
}

/// Serves the thread's sockets. Without their events, the thread can answer nothing.
async fn run_event_loop(event_loop: Rc<EventLoop>) {
    if let Err(error) = event_loop.run().await {
        tracing::error!(%error, "the event loop failed: no connection of its thread goes on");
    }
}

/// Waits for the end of a listener. The others of the thread go on if it fails.
async fn run_listener(
    listener: JoinHandle<io::Result<()>>,
    thread_number: usize,
) -> io::Result<()> {
    let ended = listener.await.map_err(io::Error::other).flatten();
    ended.inspect_err(|error| {
        // The caller learns of it when it joins the threads, after the drain.
        tracing::error!(%error, thread_number, "a listener failed; the others of its thread go on");
    })
}

fn conn_timeouts(settings: &GatewaySettings) -> ConnTimeouts {
    ConnTimeouts {
        head_ticks: whole_ticks(settings.header_timeout),
        idle_ticks: whole_ticks(settings.idle_timeout),
        write_ticks: whole_ticks(settings.write_timeout),
    }
}

/// Cuts overdue connections and responses each tick, and closes idle connections to instances.
async fn sweep_connections(
    context: Rc<ListenContext>,
    timeouts: ConnTimeouts,
    pool_idle_timeout: Duration,
) {
    let (worker, max_idle_ticks) = (&context.worker, whole_ticks(pool_idle_timeout));
    let mut batch_rule = BatchRule::default();
    loop {
        tokio::time::sleep(TICK_INTERVAL).await;
        note_load(worker, &mut batch_rule);
        let now = worker
            .tick_counter()
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        context.conn_table.cut_overdue(now, &timeouts);
        worker
            .open_transfers
            .cut_overdue(Instant::now(), now, timeouts.write_ticks);
        let oldest_tick = now.saturating_sub(max_idle_ticks);
        worker.instance_connections.sweep_idle(oldest_tick);
        worker.node_connections.sweep_idle(oldest_tick);
        worker.loopback_pools.sweep_idle();
    }
}

/// Counts what the event loop has done since the last tick, and has a busy thread run as a batch.
fn note_load(worker: &WorkerContext, batch_rule: &mut BatchRule) {
    let load = worker.event_loop.take_load();
    let inline_calls = &worker.totals.inline_calls;
    inline_calls.fetch_add(load.inline_calls, Ordering::Relaxed);
    if let Some(is_batch) = batch_rule.note_load(load, TICK_INTERVAL) {
        worker.control.set_batch_policy(is_batch);
    }
}

/// Joins each domain whose socket arrives, as long as the node sends any.
async fn join_domains(worker: Rc<WorkerContext>, mut sockets: UnboundedReceiver<OwnedFd>) {
    while let Some(socket) = sockets.recv().await {
        let worker = worker.clone();
        tokio::task::spawn_local(async move {
            let forward = |endpoint| remote_events::forward_events(worker.clone(), endpoint);
            worker.shm_domains.join_domain(socket, forward).await;
        });
    }
}

/// Closes connections to withdrawn instances after each snapshot, and opens some to new
/// instances.
async fn follow_routing_table(worker: Rc<WorkerContext>) {
    let mut changes = worker.table.subscribe();
    while changes.changed().await.is_ok() {
        worker.instance_connections.sweep_idle(0);
        worker.node_connections.sweep_idle(0);
        worker.loopback_pools.sweep_idle();
        deliver::open_ahead_of_calls(&worker);
    }
}
