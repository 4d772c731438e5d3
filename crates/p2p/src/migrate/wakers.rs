//! A waker for the reading and the writing task.
//!
//! A stream or sink keeps only the last waker; both halves of a stream poll them while it is on the
//! relay.

use std::sync::Arc;
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

/// Waker that wakes both tasks.
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
        // Both, since either task may be the one that the event allows to continue.
        self.reader.wake();
        self.writer.wake();
    }
}
