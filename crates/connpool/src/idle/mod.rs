//! Where used connections wait for their next client: one [`IdlePool`] for each [`Key`](crate::destination_of::Key) and protocol, with a shelf of idle ones
//! and a line of clients for whom there was none.
//!
//! A client that finds nothing on the shelf asks the keeper for a new connection and stands in line at the same time, and takes what comes first
//! ([`IdlePool::acquire`]). A connection that is given back goes to the first in line, or on the shelf, or is closed when somebody whom it cannot serve
//! waits below the same ceiling ([`NextWaiter`]).

mod list;
#[cfg(test)]
mod tests;
mod waiters;

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::adapter_state::IdleConnections;
use crate::counters::DestinationCounters;
use crate::destination::EgressDestination;
use crate::pool::{ConnectionLease, NextWaiter, NoConnection};
use crate::upstream::UpstreamHandle;

use list::IdleList;
pub use list::{IdleLimits, UsedConnection};
use waiters::{QueuedReuse, ReuseQueue};

/// Idle connections are looked at this often: one that the destination has closed holds no place for longer.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A used connection that can serve again.
pub trait ReusableConnection: Debug + 'static {
    /// Whether it is open and has nothing to read.
    fn is_quiet(&self) -> bool;

    /// Whether it goes to where its destination is now.
    fn is_binding_current(&self) -> bool {
        true
    }

    /// Takes leave in the words of its protocol. Its lease is dropped when the destination has let go of it, so that a ceiling holds there, too.
    fn close(self);
}

/// What a client of [`IdlePool::acquire`] gets.
#[derive(Debug)]
pub enum AcquireOutcome<T> {
    /// A connection that has served before, and is quiet.
    Reused(UsedConnection<T>),
    /// A connection that nobody has used.
    New(ConnectionLease),
}

/// The used connections of one key. `F` says which of them serve whom: as whom they are logged in, and the like.
pub struct IdlePool<F, T: ReusableConnection> {
    list: RefCell<IdleList<F, T>>,
    waiters: ReuseQueue<F, T>,
    sweep_running: Cell<bool>,
    is_shut_down: Cell<bool>,
}

impl<F: Clone + PartialEq + 'static, T: ReusableConnection> IdlePool<F, T> {
    /// With the limits of its destination.
    pub fn new(to: &EgressDestination) -> Rc<Self> {
        let limits = IdleLimits {
            max_idle: to.egress.idle,
            max_age: to.egress.age,
        };
        Rc::new(Self {
            list: RefCell::new(IdleList::new(limits)),
            waiters: ReuseQueue::default(),
            sweep_running: Cell::new(false),
            is_shut_down: Cell::new(false),
        })
    }

    /// An idle connection for `fingerprint`, if there is a quiet one.
    pub fn take(&self, fingerprint: &F) -> Option<UsedConnection<T>> {
        loop {
            let kept = self.list.borrow_mut().take(fingerprint, Instant::now())?;
            if kept.connection.is_quiet() && kept.connection.is_binding_current() {
                return Some(kept);
            }
            kept.connection.close();
        }
    }

    /// An idle connection, or a new one, or the first one that is given back, until `deadline` at the latest.
    ///
    /// # Errors
    /// As [`ConnectionSource::connect_to_address`](crate::pool::ConnectionSource::connect_to_address).
    pub async fn acquire(
        self: &Rc<Self>,
        upstream: &UpstreamHandle,
        fingerprint: &F,
        deadline: Instant,
    ) -> Result<AcquireOutcome<T>, NoConnection> {
        if let Some(kept) = self.take(fingerprint) {
            DestinationCounters::increase(&upstream.counters.hits, 1);
            return Ok(AcquireOutcome::Reused(kept));
        }
        let mut place = WaiterGuard {
            pool: self,
            upstream,
            fingerprint,
            waiter: self.waiters.join(fingerprint.clone()),
        };
        let mut connecting = upstream.source.connect(&upstream.destination, deadline);
        let mut asked = false;
        poll_fn(|cx| {
            if let Poll::Ready(Ok(kept)) = Pin::new(&mut place.waiter.receiver).poll(cx) {
                DestinationCounters::increase(&upstream.counters.hits, 1);
                return Poll::Ready(Ok(AcquireOutcome::Reused(kept)));
            }
            if let Poll::Ready(done) = connecting.as_mut().poll(cx) {
                return Poll::Ready(done.map(AcquireOutcome::New));
            }
            // Idle connections that cannot serve this client may be what stands in its way.
            if !std::mem::replace(&mut asked, true)
                && upstream.source.next_waiter(&upstream.destination) != NextWaiter::None
            {
                upstream.adapters.reclaim_oldest(&upstream.destination.key);
            }
            Poll::Pending
        })
        .await
    }

    /// Takes a connection back that its adapter has proved quiet.
    pub fn give_back(
        self: &Rc<Self>,
        upstream: &UpstreamHandle,
        fingerprint: &F,
        kept: UsedConnection<T>,
    ) {
        let next = match upstream.source.next_waiter(&upstream.destination) {
            _ if self.is_shut_down.get() || !kept.connection.is_binding_current() => {
                return kept.connection.close();
            }
            NextWaiter::OtherKey => return kept.connection.close(),
            NextWaiter::SameKey => self.waiters.take_first(fingerprint),
            NextWaiter::None => Ok(self.waiters.take_matching(fingerprint)),
        };
        match next {
            Ok(Some(place)) => drop(
                place
                    .give(kept)
                    .map_err(|kept| self.give_back(upstream, fingerprint, kept)),
            ),
            Ok(None) => self.store_idle(fingerprint.clone(), kept),
            Err(_) => kept.connection.close(),
        }
    }

    fn store_idle(self: &Rc<Self>, fingerprint: F, kept: UsedConnection<T>) {
        let put = self
            .list
            .borrow_mut()
            .put(fingerprint, kept, Instant::now());
        match put {
            Ok(()) if !self.sweep_running.replace(true) => {
                drop(tokio::task::spawn_local(sweep_expired(Rc::downgrade(self))))
            }
            Ok(()) => {}
            Err(old) => old.close(),
        }
    }
}

impl<F: Clone + PartialEq + 'static, T: ReusableConnection> IdleConnections for IdlePool<F, T> {
    fn oldest_since(&self) -> Option<Instant> {
        self.list.borrow().oldest_since()
    }

    fn idle_count(&self) -> usize {
        self.list.borrow().len()
    }

    fn close_oldest(&self) {
        let oldest = self.list.borrow_mut().take_oldest();
        oldest.into_iter().for_each(T::close);
    }

    fn shut_down(&self) {
        self.is_shut_down.set(true);
        while self.idle_count() > 0 {
            self.close_oldest();
        }
    }
}

/// Closes what has been idle for too long. Ends when nothing is on the shelf.
async fn sweep_expired<F: Clone + PartialEq + 'static, T: ReusableConnection>(
    bench: Weak<IdlePool<F, T>>,
) {
    let due = || {
        Some(
            bench
                .upgrade()?
                .list
                .borrow()
                .next_expiry()?
                .min(Instant::now() + SWEEP_INTERVAL),
        )
    };
    while let Some(due) = due() {
        tokio::time::sleep_until(due.into()).await;
        let Some(bench) = bench.upgrade() else { return };
        let over = bench
            .list
            .borrow_mut()
            .take_expired(Instant::now(), |item| {
                !(item.is_quiet() && item.is_binding_current())
            });
        over.into_iter().for_each(T::close);
    }
    if let Some(bench) = bench.upgrade() {
        bench.sweep_running.set(false);
    }
}

/// A place in line. Left early, it gives on what it was given in the same moment.
struct WaiterGuard<'a, F: Clone + PartialEq + 'static, T: ReusableConnection> {
    pool: &'a Rc<IdlePool<F, T>>,
    upstream: &'a UpstreamHandle,
    fingerprint: &'a F,
    waiter: QueuedReuse<T>,
}

impl<F: Clone + PartialEq + 'static, T: ReusableConnection> Drop for WaiterGuard<'_, F, T> {
    fn drop(&mut self) {
        self.waiter.receiver.close();
        if let Ok(kept) = self.waiter.receiver.try_recv() {
            self.pool.give_back(self.upstream, self.fingerprint, kept);
        }
    }
}
