//! One waker for who reads and who writes.
//!
//! A stream and a sink keep the last waker alone; both halves of a way poll them while it is on the relay.

use std::sync::Arc;
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

/// Wakes both.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    reader: AtomicWaker,
    writer: AtomicWaker,
}

impl Wakers {
    pub(super) fn reads(&self, waker: &Waker) {
        self.reader.register(waker);
    }

    pub(super) fn writes(&self, waker: &Waker) {
        self.writer.register(waker);
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.reader.wake();
        self.writer.wake();
    }
}
