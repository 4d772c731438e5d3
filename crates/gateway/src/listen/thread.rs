//! One serving thread: a runtime of its own, everything on it, and its orderly end.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nearpath_daemon::drain;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::LocalSet;

use super::conn_state::{Lives, Patience, TICK, ticks};
use super::{ListenContext, Port, accept, http3};
use crate::Settings;
use crate::context::Shared;
use crate::context::WorkerContext;
use crate::deliver;
use crate::invoke::{Invoker, LocalTask};

/// What a thread needs to begin.
pub(crate) struct Thread {
    pub number: u64,
    pub ports: Vec<(Port, TcpListener)>,
    pub http3: Vec<http3::Port>,
    pub services: Vec<LocalTask>,
    pub drain: drain::Watch,
}

/// Serves until the drain, then until the last request has ended or the drain's time is over.
///
/// # Errors
/// When the runtime or a socket cannot be set up.
pub(crate) fn run(thread: Thread, settings: &Settings, shared: &Shared) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let worker = WorkerContext::new(settings, shared, 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread.number + 1));
    let context = Rc::new(ListenContext { worker, connections: Lives::default() });
    runtime.block_on(local.run_until(serve(context.clone(), thread, settings)))?;
    // What is left in the set is dropped with it, and recorded as cut.
    context.worker.recorder.begin_cutting();
    drop(local);
    Ok(())
}

async fn serve(context: Rc<ListenContext>, thread: Thread, settings: &Settings) -> io::Result<()> {
    let lane = context.worker.clone();
    tokio::task::spawn_local(look_after(context.clone(), patience(settings), settings.pool_idle_timeout));
    tokio::task::spawn_local(follow_table(lane.clone()));
    tokio::task::spawn_local(follow_caller(lane.clone()));
    if let Some(sockets) = lane.control.domains() {
        tokio::task::spawn_local(join_domains(lane.clone(), sockets));
    }
    let services = thread.services.into_iter();
    let services =
        services.map(|task| tokio::task::spawn_local(task(Invoker::new(lane.clone()), thread.drain.clone())));
    let ports = thread.ports.into_iter();
    let ports =
        ports.map(|(port, socket)| tokio::task::spawn_local(accept::accept(context.clone(), port.into(), socket)));
    let ends = Rc::<http3::Ends>::default();
    let http3 = thread.http3.into_iter();
    let http3 = http3.map(|port| tokio::task::spawn_local(http3::accept(context.clone(), port, ends.clone())));
    let accepting: Vec<_> = ports.chain(services).chain(http3).collect();
    for accepted in accepting {
        accepted.await.map_err(io::Error::other)??;
    }
    thread.drain.signaled().await;
    context.connections.drain(lane.now());
    if tokio::time::timeout(settings.drain_timeout, lane.settled()).await.is_err() {
        tracing::warn!(limit = ?settings.drain_timeout, "requests were still running at the end of the drain; cutting them");
        lane.recorder.begin_cutting();
        ends.close().await; // a QUIC client learns of it only when it is told
    }
    Ok(())
}

fn patience(settings: &Settings) -> Patience {
    Patience {
        head: ticks(settings.header_timeout),
        idle: ticks(settings.idle_timeout),
        stuck: ticks(settings.write_timeout),
    }
}

/// Each tick: cuts connections that took too long, drops connections to instances that nobody used.
async fn look_after(context: Rc<ListenContext>, patience: Patience, pool_idle: Duration) {
    let (lane, kept) = (&context.worker, ticks(pool_idle));
    loop {
        tokio::time::sleep(TICK).await;
        let now = lane.ticks().fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        context.connections.sweep(now, &patience);
        lane.open_responses.sweep(Instant::now(), now, patience.stuck);
        lane.pools.sweep(now.saturating_sub(kept));
        lane.lines.sweep(now.saturating_sub(kept));
    }
}

/// Joins every domain whose socket comes, for as long as the node sends any.
async fn join_domains(lane: Rc<WorkerContext>, mut sockets: UnboundedReceiver<OwnedFd>) {
    while let Some(socket) = sockets.recv().await {
        let lane = lane.clone();
        tokio::task::spawn_local(async move { lane.domains.join(socket).await });
    }
}

/// Connections to withdrawn instances close as soon as they are withdrawn; to new ones some are opened ahead.
async fn follow_table(lane: Rc<WorkerContext>) {
    let mut changes = lane.table.changes();
    while changes.changed().await.is_ok() {
        lane.pools.sweep(0);
        lane.lines.sweep(0);
        deliver::open_ahead(&lane);
    }
}

/// Who calls shows its newest certificate.
async fn follow_caller(lane: Rc<WorkerContext>) {
    lane.lines.follow(|caller| lane.pools.meet(caller)).await;
}
