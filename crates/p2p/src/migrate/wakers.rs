//! One waker for who reads and who writes.
//!
//! A stream and a sink keep the last waker alone; both halves of a way poll them while it is on the relay.

use std::sync::Arc;
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

/// Wakes both.
#[derive(Debug, Default)]
pub(super) struct ReadWriteWakers {
    reader: AtomicWaker,
    writer: AtomicWaker,
}

impl ReadWriteWakers {
    pub(super) fn register_reader(&self, waker: &Waker) {
        self.reader.register(waker);
    }

    pub(super) fn register_writer(&self, waker: &Waker) {
        self.writer.register(waker);
    }
}

impl Wake for ReadWriteWakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.reader.wake();
        self.writer.wake();
    }
}
