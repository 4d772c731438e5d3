//! Memory of whether an HTTP/1 peer may still be sending its request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// Knowledge of bytes that the peer of a connection may be sending and no handler reads. Clones
/// refer to the same connection.
#[derive(Debug, Clone, Default)]
pub struct UnreadInput(Arc<InputState>);

#[derive(Debug, Default)]
struct InputState {
    /// Number of the last request; numbers begin at 1.
    last_request: AtomicU32,
    /// Number of the request whose end was not read; 0: none.
    unread_request: AtomicU32,
}

// All accesses are relaxed: the numbers guard no other data, and a connection is closed by the task
// that reads it.
impl UnreadInput {
    /// Watches whether the body of a request is read to its end. Requests of HTTP/2 are left alone:
    /// their streams end without the connection.
    pub fn watch_request(&self, request: Request<Incoming>) -> Request<WatchedBody> {
        let is_http1 = request.version() < Version::HTTP_2;
        request.map(|body| WatchedBody {
            unread: is_http1
                .then(|| self.begin_request(body.is_end_stream()))
                .flatten(),
            body,
        })
    }

    /// Begins a request. Returns its watch unless it is complete.
    fn begin_request(&self, is_complete: bool) -> Option<RequestWatch> {
        let number = self
            .0
            .last_request
            .load(Ordering::Relaxed)
            .wrapping_add(1)
            .max(1);
        self.0.last_request.store(number, Ordering::Relaxed);
        let unread = if is_complete { 0 } else { number };
        self.0.unread_request.store(unread, Ordering::Relaxed);
        (!is_complete).then(|| RequestWatch {
            input: self.clone(),
            number,
        })
    }

    /// Notes that the rest of the input is not read, as after a malformed head.
    pub fn mark_unread(&self) {
        drop(self.begin_request(false));
    }

    /// Returns whether the peer may be sending bytes that are not read.
    pub fn is_unread(&self) -> bool {
        self.0.unread_request.load(Ordering::Relaxed) != 0
    }
}

#[derive(Debug)]
struct RequestWatch {
    input: UnreadInput,
    number: u32,
}

impl RequestWatch {
    /// Notes that the request was read to its end.
    fn mark_read(self) {
        // Another request may have begun: a body can outlive its response.
        let _ = self.input.0.unread_request.compare_exchange(
            self.number,
            0,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}

/// Body of a request that notes its end for its connection.
#[derive(Debug)]
pub struct WatchedBody {
    body: Incoming,
    /// `None` after the end.
    unread: Option<RequestWatch>,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        // Readers do not poll again once the end is known.
        let has_ended = matches!(polled, Poll::Ready(None))
            || matches!(polled, Poll::Ready(Some(Ok(_)))) && self.body.is_end_stream();
        if has_ended && let Some(unread) = self.unread.take() {
            unread.mark_read();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_unread_until_its_end_or_the_next_request() {
        let input = UnreadInput::default();
        assert!(!input.is_unread());
        let watch = input.begin_request(false).unwrap();
        assert!(input.is_unread());
        watch.mark_read();
        assert!(!input.is_unread());
        input.mark_unread();
        assert!(input.is_unread());
        assert!(input.begin_request(true).is_none());
        assert!(!input.is_unread());
    }

    #[test]
    fn a_late_end_says_nothing_about_the_next_request() {
        let input = UnreadInput::default();
        let late = input.begin_request(false).unwrap();
        let next = input.begin_request(false).unwrap();
        late.mark_read();
        assert!(input.is_unread());
        next.mark_read();
        assert!(!input.is_unread());
    }
}
