//! Used connections that wait for their next client. Each [`PoolKey`](crate::destination::PoolKey)
//! and protocol has one [`IdlePool`] with a list of idle connections and a queue of waiting
//! clients.
//!
//! A client that finds no idle connection queues for one and dials a new one at the same time. It
//! takes what comes first ([`IdlePool::acquire`]). A connection that is given back goes to the
//! first queued client, or into the list. It is closed when the next waiter below the same limit
//! cannot use it ([`NextWaiter`]).

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

/// Interval of the checks of idle connections. A connection closed by the destination holds its
/// slot no longer than that.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A used connection that can serve another client.
pub trait ReusableConnection: Debug + 'static {
    /// Returns true if the connection is open and has nothing to read.
    fn is_quiet(&self) -> bool;

    /// Returns true if the destination's name still resolves to the server of this connection.
    fn is_binding_current(&self) -> bool {
        true
    }

    /// Closes with the farewell of its protocol. The lease is dropped once the destination has
    /// closed, so that the limit holds there as well.
    fn close(self);
}

/// Result of [`IdlePool::acquire`].
#[derive(Debug)]
pub enum AcquireOutcome<T> {
    /// A connection that has served before and is quiet.
    Reused(UsedConnection<T>),
    /// A connection without any previous client.
    New(ConnectionLease),
}

/// Used connections of one key. `F` is the fingerprint that connection and client must share, such
/// as the login.
pub struct IdlePool<F, T: ReusableConnection> {
    list: RefCell<IdleList<F, T>>,
    waiters: ReuseQueue<F, T>,
    sweep_running: Cell<bool>,
    is_shut_down: Cell<bool>,
}

impl<F: Clone + PartialEq + 'static, T: ReusableConnection> IdlePool<F, T> {
    /// Creates an empty pool with the limits of its destination.
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

    /// Takes a quiet idle connection with this fingerprint, if there is one.
    pub fn take(&self, fingerprint: &F) -> Option<UsedConnection<T>> {
        loop {
            // Servers often close idle connections, so each one is checked before it is handed out.
            let used = self.list.borrow_mut().take(fingerprint, Instant::now())?;
            if used.connection.is_quiet() && used.connection.is_binding_current() {
                return Some(used);
            }
            used.connection.close();
        }
    }

    /// Returns an idle connection, a new one, or the first one given back, until `deadline` at the
    /// latest.
    ///
    /// # Errors
    /// As [`ConnectionSource::connect`](crate::pool::ConnectionSource::connect).
    pub async fn acquire(
        self: &Rc<Self>,
        upstream: &UpstreamHandle,
        fingerprint: &F,
        deadline: Instant,
    ) -> Result<AcquireOutcome<T>, NoConnection> {
        if let Some(used) = self.take(fingerprint) {
            DestinationCounters::increase(&upstream.counters.hits, 1);
            return Ok(AcquireOutcome::Reused(used));
        }
        // Queued before the dial starts, so that a connection given back meanwhile is not missed.
        let mut waiter = WaiterGuard {
            pool: self,
            upstream,
            fingerprint,
            waiter: self.waiters.join(fingerprint.clone()),
        };
        let mut connecting = upstream.source.connect(&upstream.destination, deadline);
        let mut reclaim_asked = false;
        poll_fn(|cx| {
            // Used connections first: they are logged in already. Dropping the dial returns its
            // socket to the pool.
            if let Poll::Ready(Ok(used)) = Pin::new(&mut waiter.waiter.receiver).poll(cx) {
                DestinationCounters::increase(&upstream.counters.hits, 1);
                return Poll::Ready(Ok(AcquireOutcome::Reused(used)));
            }
            if let Poll::Ready(done) = connecting.as_mut().poll(cx) {
                return Poll::Ready(done.map(AcquireOutcome::New));
            }
            // Idle connections with other fingerprints may be what fills the limit; closing one
            // frees a slot for this client.
            if !std::mem::replace(&mut reclaim_asked, true)
                && upstream.source.next_waiter(&upstream.destination) != NextWaiter::None
            {
                upstream.adapters.reclaim_oldest(&upstream.destination.key);
            }
            Poll::Pending
        })
        .await
    }

    /// Takes back a connection that its adapter has reset.
    pub fn give_back(
        self: &Rc<Self>,
        upstream: &UpstreamHandle,
        fingerprint: &F,
        used: UsedConnection<T>,
    ) {
        let next = match upstream.source.next_waiter(&upstream.destination) {
            // A pool that shuts down keeps nothing, and a server that the name has left must not
            // serve again.
            _ if self.is_shut_down.get() || !used.connection.is_binding_current() => {
                return used.connection.close();
            }
            // The next waiter has another key: closing this connection frees the slot for it.
            NextWaiter::OtherKey => return used.connection.close(),
            // The limit is reached, so only the first client counts.
            NextWaiter::SameKey => self.waiters.take_first(fingerprint),
            NextWaiter::None => Ok(self.waiters.take_matching(fingerprint)),
        };
        match next {
            // The client may have gone in between; then the next one is served.
            Ok(Some(waiter)) => drop(
                waiter
                    .give(used)
                    .map_err(|used| self.give_back(upstream, fingerprint, used)),
            ),
            Ok(None) => self.store_idle(fingerprint.clone(), used),
            // The first client needs another fingerprint: closing frees the slot for its new
            // connection.
            Err(_) => used.connection.close(),
        }
    }

    fn store_idle(self: &Rc<Self>, fingerprint: F, used: UsedConnection<T>) {
        let put = self
            .list
            .borrow_mut()
            .put(fingerprint, used, Instant::now());
        match put {
            // The sweep runs only while connections are idle, so an unused pool has no timer.
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
        // Set before the loop, so that nothing is added behind it.
        self.is_shut_down.set(true);
        while self.idle_count() > 0 {
            self.close_oldest();
        }
    }
}

/// Closes expired and dead connections at [`SWEEP_INTERVAL`]. Ends when the list is empty.
async fn sweep_expired<F: Clone + PartialEq + 'static, T: ReusableConnection>(
    pool: Weak<IdlePool<F, T>>,
) {
    // A weak reference, so that the task does not keep a dropped pool alive.
    let due = || {
        Some(
            pool.upgrade()?
                .list
                .borrow()
                .next_expiry()?
                .min(Instant::now() + SWEEP_INTERVAL),
        )
    };
    while let Some(due) = due() {
        tokio::time::sleep_until(due.into()).await;
        let Some(pool) = pool.upgrade() else { return };
        let expired = pool.list.borrow_mut().take_expired(Instant::now(), |item| {
            !(item.is_quiet() && item.is_binding_current())
        });
        expired.into_iter().for_each(T::close);
    }
    if let Some(pool) = pool.upgrade() {
        pool.sweep_running.set(false);
    }
}

/// A queued client. On drop it passes on a connection that arrived in the same moment.
struct WaiterGuard<'a, F: Clone + PartialEq + 'static, T: ReusableConnection> {
    pool: &'a Rc<IdlePool<F, T>>,
    upstream: &'a UpstreamHandle,
    fingerprint: &'a F,
    waiter: QueuedReuse<T>,
}

impl<F: Clone + PartialEq + 'static, T: ReusableConnection> Drop for WaiterGuard<'_, F, T> {
    fn drop(&mut self) {
        // Closed first, so that no connection can arrive after the check.
        self.waiter.receiver.close();
        if let Ok(used) = self.waiter.receiver.try_recv() {
            self.pool.give_back(self.upstream, self.fingerprint, used);
        }
    }
}
