//! One serving thread: a runtime of its own, everything on it, and its orderly end.

use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nearpath_daemon::drain;
use tokio::task::LocalSet;

use super::life::{Patience, TICK, ticks};
use super::{Port, accept, http3};
use crate::adapt::Adapter;
use crate::deliver;
use crate::lane::Lane;
use crate::{Settings, Shared};

/// What a thread needs to begin.
pub(crate) struct Thread {
    pub number: u64,
    pub ports: Vec<(Port, TcpListener)>,
    pub http3: Vec<http3::Port>,
    pub adapters: Vec<Adapter>,
    pub drain: drain::Watch,
}

/// Serves until the drain, then until the last request has ended or the drain's time is over.
///
/// # Errors
/// When the runtime or a socket cannot be set up.
pub(crate) fn run(thread: Thread, settings: &Settings, shared: &Shared) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let lane = Lane::new(settings, shared, 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread.number + 1));
    runtime.block_on(local.run_until(serve(lane.clone(), thread, settings)))?;
    lane.cut(); // whatever is left in the set is dropped with it, and recorded as cut
    drop(local);
    Ok(())
}

async fn serve(lane: Rc<Lane>, thread: Thread, settings: &Settings) -> io::Result<()> {
    tokio::task::spawn_local(look_after(lane.clone(), patience(settings), settings.pool_idle_timeout));
    tokio::task::spawn_local(follow_table(lane.clone()));
    tokio::task::spawn_local(follow_caller(lane.clone()));
    if let Some(sockets) = lane.control.domains() {
        tokio::task::spawn_local(deliver::join_all(lane.clone(), sockets));
    }
    let adapters = thread.adapters.into_iter();
    let adapters = adapters.map(|one| tokio::task::spawn_local(one.serve(lane.clone(), thread.drain.clone())));
    let ports = thread.ports.into_iter();
    let ports = ports.map(|(port, socket)| tokio::task::spawn_local(accept::accept(lane.clone(), port.into(), socket)));
    let ends = Rc::<http3::Ends>::default();
    let http3 = thread.http3.into_iter();
    let http3 = http3.map(|port| tokio::task::spawn_local(http3::accept(lane.clone(), port, ends.clone())));
    let accepting: Vec<_> = ports.chain(adapters).chain(http3).collect();
    for accepted in accepting {
        accepted.await.map_err(io::Error::other)??;
    }
    thread.drain.signaled().await;
    lane.lives.drain(lane.now());
    if tokio::time::timeout(settings.drain_timeout, lane.settled()).await.is_err() {
        tracing::warn!(limit = ?settings.drain_timeout, "requests were still running at the end of the drain; cutting them");
        lane.cut();
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
async fn look_after(lane: Rc<Lane>, patience: Patience, pool_idle: Duration) {
    let kept = ticks(pool_idle);
    loop {
        tokio::time::sleep(TICK).await;
        let now = lane.ticks().fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        lane.lives.sweep(now, &patience);
        lane.answers.sweep(Instant::now(), now, patience.stuck);
        lane.pools.sweep(now.saturating_sub(kept));
        lane.lines.sweep(now.saturating_sub(kept));
    }
}

/// Connections to withdrawn instances close as soon as they are withdrawn; to new ones some are opened ahead.
async fn follow_table(lane: Rc<Lane>) {
    let mut changes = lane.table.changes();
    while changes.changed().await.is_ok() {
        lane.pools.sweep(0);
        lane.lines.sweep(0);
        deliver::open_ahead(&lane);
    }
}

/// Who calls shows its newest certificate.
async fn follow_caller(lane: Rc<Lane>) {
    lane.lines.follow(|caller| lane.pools.meet(caller)).await;
}
