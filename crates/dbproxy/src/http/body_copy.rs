//! Copies of response bodies for the cache.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http_body::Frame;

use super::cache::{HttpCache, PendingStore};

/// Copy of a passing body for the cache.
pub(super) struct BodyCopy {
    cache: Rc<RefCell<HttpCache>>,
    pending: Box<PendingStore>,
    body: BytesMut,
}

impl BodyCopy {
    /// Creates an empty copy of the body that `pending` waits for.
    pub(super) fn new(cache: Rc<RefCell<HttpCache>>, pending: Box<PendingStore>) -> Self {
        Self {
            cache,
            pending,
            body: BytesMut::new(),
        }
    }

    /// Adds a frame. Returns `None` when the body is too long, or has trailers: it is not stored
    /// then.
    pub(super) fn push_frame(mut self, frame: &Frame<Bytes>) -> Option<Self> {
        let data = frame.data_ref()?;
        self.body.extend_from_slice(data);
        (self.body.len() <= self.pending.max_body_bytes).then_some(self)
    }

    /// Stores the complete body.
    pub(super) fn finish(self) {
        self.cache
            .borrow_mut()
            .store(*self.pending, self.body.freeze(), SystemTime::now());
    }
}
