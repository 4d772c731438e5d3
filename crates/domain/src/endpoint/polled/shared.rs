//! State shared by the handles of an endpoint and its driver.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::clock::{self, MonotonicNanos};
use crate::endpoint::endpoint_core::EndpointCore;
use crate::endpoint::join::EndpointIdentity;

#[derive(Debug)]
pub(super) struct SharedEndpoint {
    pub(super) core: RefCell<EndpointCore>,
    pub(super) identity: EndpointIdentity,
    /// Waker of the task that waits for incoming calls.
    pub(super) serve_waker: RefCell<Option<Waker>>,
    /// Waker of the driver, and the time of its next run.
    pub(super) driver_waker: RefCell<Option<Waker>>,
    pub(super) alarm_at: Cell<Option<MonotonicNanos>>,
    pub(super) hung_up: Cell<bool>,
}

impl SharedEndpoint {
    pub(super) fn new(core: EndpointCore, place: EndpointIdentity) -> Rc<Self> {
        Rc::new(Self {
            core: RefCell::new(core),
            identity: place,
            serve_waker: RefCell::default(),
            driver_waker: RefCell::default(),
            alarm_at: Cell::default(),
            hung_up: Cell::default(),
        })
    }

    /// Resolves when a received call needs no response any more.
    pub(super) async fn given_up(&self, channel: u32, call: u64) {
        poll_fn(|cx| {
            match self
                .core
                .borrow_mut()
                .poll_given_up(channel, call, cx.waker())
            {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Runs the core once; returns true if the endpoint announced a sleep.
    pub(super) fn run_once(&self, alarm: Pin<&mut Sleep>) -> bool {
        let now = clock::monotonic_now();
        let mut core = self.core.borrow_mut();
        core.run_once(now);
        let next = core.next_wakeup(now);
        // A reset moves the entry in tokio's timer: only a changed time is worth it.
        if let Some(next) = next.filter(|next| self.alarm_at.get() != Some(*next)) {
            alarm.reset(Instant::now() + Duration::from_nanos(next.saturating_sub(now)));
        }
        self.alarm_at.set(next);
        self.hung_up.set(core.hung_up());
        let serves = !core.incoming.is_empty() || core.hung_up();
        // Last: whatever arrives from now on wakes the eventfd.
        let asleep = core.announce_sleep();
        drop(core);
        // After the borrow ends: the woken task uses the core.
        if serves && let Some(server) = self.serve_waker.borrow_mut().take() {
            server.wake();
        }
        asleep
    }

    /// Wakes the driver when messages need a flush, or when it would sleep too long. It runs after
    /// all ready tasks, so that their messages form one batch.
    pub(super) fn wake_driver_if_due(&self) {
        let mut core = self.core.borrow_mut();
        let next = core.next_wakeup(clock::monotonic_now());
        let soon = next.is_some_and(|next| self.alarm_at.get().is_none_or(|alarm| next < alarm));
        let due = soon || core.needs_flush;
        drop(core);
        if due && let Some(driver) = self.driver_waker.borrow_mut().take() {
            driver.wake();
        }
    }
}

impl Drop for SharedEndpoint {
    fn drop(&mut self) {
        self.driver_waker
            .get_mut()
            .take()
            .into_iter()
            .for_each(Waker::wake);
    }
}
