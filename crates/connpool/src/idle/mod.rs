//! Where used connections wait for their next client: one [`Bench`] for each [`Key`](crate::destination::Key) and protocol, with a shelf of idle ones
//! and a line of clients for whom there was none.
//!
//! A client that finds nothing on the shelf asks the keeper for a new connection and stands in line at the same time, and takes what comes first
//! ([`Bench::acquire`]). A connection that is given back goes to the first in line, or on the shelf, or is closed when somebody whom it cannot serve
//! waits below the same ceiling ([`Need`]).

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

use crate::adapter_state::Idlers;
use crate::counters::Ledger;
use crate::destination::Destination;
use crate::pool::{Lease, Need, NoConnection};
use crate::upstream::Upstream;

use list::Shelf;
pub use list::{Kept, Limits};
use waiters::{Line, Place};

/// Idle connections are looked at this often: one that the destination has closed holds no place for longer.
const LOOK: Duration = Duration::from_secs(5);

/// A used connection that can serve again.
pub trait Reused: Debug + 'static {
    /// Whether it is open and has nothing to read.
    fn is_quiet(&self) -> bool;

    /// Whether it goes to where its destination is now.
    fn is_at_home(&self) -> bool {
        true
    }

    /// Takes leave in the words of its protocol. Its lease is dropped when the destination has let go of it, so that a ceiling holds there, too.
    fn close(self);
}

/// What a client of [`Bench::acquire`] gets.
#[derive(Debug)]
pub enum Got<T> {
    /// A connection that has served before, and is quiet.
    Used(Kept<T>),
    /// A connection that nobody has used.
    New(Lease),
}

/// The used connections of one key. `F` says which of them serve whom: as whom they are logged in, and the like.
pub struct Bench<F, T: Reused> {
    shelf: RefCell<Shelf<F, T>>,
    line: Line<F, T>,
    swept: Cell<bool>,
    shut: Cell<bool>,
}

impl<F: Clone + PartialEq + 'static, T: Reused> Bench<F, T> {
    /// With the limits of its destination.
    pub fn new(to: &Destination) -> Rc<Self> {
        let limits = Limits { idle: to.egress.idle, age: to.egress.age };
        Rc::new(Self {
            shelf: RefCell::new(Shelf::new(limits)),
            line: Line::default(),
            swept: Cell::new(false),
            shut: Cell::new(false),
        })
    }

    /// An idle connection for `fingerprint`, if there is a quiet one.
    pub fn take(&self, fingerprint: &F) -> Option<Kept<T>> {
        loop {
            let kept = self.shelf.borrow_mut().take(fingerprint, Instant::now())?;
            if kept.item.is_quiet() && kept.item.is_at_home() {
                return Some(kept);
            }
            kept.item.close();
        }
    }

    /// An idle connection, or a new one, or the first one that is given back, until `deadline` at the latest.
    ///
    /// # Errors
    /// As [`Backends::connect`](crate::pool::Backends::connect).
    pub async fn acquire(
        self: &Rc<Self>,
        upstream: &Upstream,
        fingerprint: &F,
        deadline: Instant,
    ) -> Result<Got<T>, NoConnection> {
        if let Some(kept) = self.take(fingerprint) {
            Ledger::count(&upstream.ledger.hits, 1);
            return Ok(Got::Used(kept));
        }
        let mut place = InLine { bench: self, upstream, fingerprint, place: self.line.enter(fingerprint.clone()) };
        let mut connecting = upstream.backends.connect(&upstream.destination, deadline);
        let mut asked = false;
        poll_fn(|cx| {
            if let Poll::Ready(Ok(kept)) = Pin::new(&mut place.place.got).poll(cx) {
                Ledger::count(&upstream.ledger.hits, 1);
                return Poll::Ready(Ok(Got::Used(kept)));
            }
            if let Poll::Ready(done) = connecting.as_mut().poll(cx) {
                return Poll::Ready(done.map(Got::New));
            }
            // Idle connections that cannot serve this client may be what stands in its way.
            if !std::mem::replace(&mut asked, true) && upstream.backends.need(&upstream.destination) != Need::Nobody {
                upstream.rooms.reclaim(&upstream.destination.key);
            }
            Poll::Pending
        })
        .await
    }

    /// Takes a connection back that its adapter has proved quiet.
    pub fn give_back(self: &Rc<Self>, upstream: &Upstream, fingerprint: &F, kept: Kept<T>) {
        let next = match upstream.backends.need(&upstream.destination) {
            _ if self.shut.get() || !kept.item.is_at_home() => return kept.item.close(),
            Need::Others => return kept.item.close(),
            Need::Own => self.line.first(fingerprint),
            Need::Nobody => Ok(self.line.like(fingerprint)),
        };
        match next {
            Ok(Some(place)) => drop(place.give(kept).map_err(|kept| self.give_back(upstream, fingerprint, kept))),
            Ok(None) => self.put(fingerprint.clone(), kept),
            Err(_) => kept.item.close(),
        }
    }

    fn put(self: &Rc<Self>, fingerprint: F, kept: Kept<T>) {
        let put = self.shelf.borrow_mut().put(fingerprint, kept, Instant::now());
        match put {
            Ok(()) if !self.swept.replace(true) => drop(tokio::task::spawn_local(sweep(Rc::downgrade(self)))),
            Ok(()) => {}
            Err(old) => old.close(),
        }
    }
}

impl<F: Clone + PartialEq + 'static, T: Reused> Idlers for Bench<F, T> {
    fn oldest(&self) -> Option<Instant> {
        self.shelf.borrow().oldest()
    }

    fn idle(&self) -> usize {
        self.shelf.borrow().len()
    }

    fn close_oldest(&self) {
        let oldest = self.shelf.borrow_mut().take_oldest();
        oldest.into_iter().for_each(T::close);
    }

    fn shut(&self) {
        self.shut.set(true);
        while self.idle() > 0 {
            self.close_oldest();
        }
    }
}

/// Closes what has been idle for too long. Ends when nothing is on the shelf.
async fn sweep<F: Clone + PartialEq + 'static, T: Reused>(bench: Weak<Bench<F, T>>) {
    let due = || Some(bench.upgrade()?.shelf.borrow().due()?.min(Instant::now() + LOOK));
    while let Some(due) = due() {
        tokio::time::sleep_until(due.into()).await;
        let Some(bench) = bench.upgrade() else { return };
        let over = bench.shelf.borrow_mut().sweep(Instant::now(), |item| !(item.is_quiet() && item.is_at_home()));
        over.into_iter().for_each(T::close);
    }
    if let Some(bench) = bench.upgrade() {
        bench.swept.set(false);
    }
}

/// A place in line. Left early, it gives on what it was given in the same moment.
struct InLine<'a, F: Clone + PartialEq + 'static, T: Reused> {
    bench: &'a Rc<Bench<F, T>>,
    upstream: &'a Upstream,
    fingerprint: &'a F,
    place: Place<T>,
}

impl<F: Clone + PartialEq + 'static, T: Reused> Drop for InLine<'_, F, T> {
    fn drop(&mut self) {
        self.place.got.close();
        if let Ok(kept) = self.place.got.try_recv() {
            self.bench.give_back(self.upstream, self.fingerprint, kept);
        }
    }
}
