//! What the handles of a party and its driver share.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::clock::{self, Nanos};
use crate::post::core::Core;
use crate::post::join::Place;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) core: RefCell<Core>,
    pub(super) place: Place,
    /// Who waits for incoming calls.
    pub(super) server: RefCell<Option<Waker>>,
    /// The driver, and when it will look again by itself.
    pub(super) driver: RefCell<Option<Waker>>,
    pub(super) alarm: Cell<Option<Nanos>>,
    pub(super) over: Cell<bool>,
}

impl Shared {
    pub(super) fn new(core: Core, place: Place) -> Rc<Self> {
        Rc::new(Self {
            core: RefCell::new(core),
            place,
            server: RefCell::default(),
            driver: RefCell::default(),
            alarm: Cell::default(),
            over: Cell::default(),
        })
    }

    /// Resolves when a call that was taken need not be answered any more.
    pub(super) async fn given_up(&self, channel: u32, call: u64) {
        poll_fn(|cx| match self.core.borrow_mut().given_up(channel, call, cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Takes what is there. Whether the party sleeps now, as its peers see it.
    pub(super) fn turn(&self, alarm: Pin<&mut Sleep>) -> bool {
        let now = clock::now();
        let mut core = self.core.borrow_mut();
        core.turn(now);
        let next = core.next_turn(now);
        if let Some(next) = next.filter(|next| self.alarm.get() != Some(*next)) {
            alarm.reset(Instant::now() + Duration::from_nanos(next.saturating_sub(now)));
        }
        self.alarm.set(next);
        self.over.set(core.hung_up());
        let serves = !core.incoming.is_empty() || core.hung_up();
        let asleep = core.announce();
        drop(core);
        if serves && let Some(server) = self.server.borrow_mut().take() {
            server.wake();
        }
        asleep
    }

    /// Wakes the driver when there is somebody to ring, or when it would sleep too long. It runs after the tasks that are
    /// ready now, so that all they send is one batch.
    pub(super) fn rearm(&self) {
        let mut core = self.core.borrow_mut();
        let next = core.next_turn(clock::now());
        let soon = next.is_some_and(|next| self.alarm.get().is_none_or(|alarm| next < alarm));
        let due = soon || core.unrung;
        drop(core);
        if due && let Some(driver) = self.driver.borrow_mut().take() {
            driver.wake();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.driver.get_mut().take().into_iter().for_each(Waker::wake);
    }
}
