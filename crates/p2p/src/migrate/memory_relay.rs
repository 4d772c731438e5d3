//! Relay within one process: for workers that share it, and for tests of the layers above.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::{Sink, Stream};

use super::relay::{RelayConnection, StreamFrame};

/// A direction of the relay.
#[derive(Debug, Default)]
struct RelayDirection {
    frames: VecDeque<StreamFrame>,
    closed: bool,
    wakers: Vec<Waker>,
}

impl RelayDirection {
    fn register_waker(&mut self, cx: &Context<'_>) {
        // Reader and writer of an end may wait at once, each with its own waker.
        if !self.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
    }

    fn wake_all(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

/// An end of [`memory_relays`].
#[derive(Debug)]
pub struct MemoryRelay {
    outgoing: Arc<Mutex<RelayDirection>>,
    incoming: Arc<Mutex<RelayDirection>>,
    capacity: usize,
}

/// Creates both ends of a relay that holds `capacity` frames per direction.
pub fn memory_relays(capacity: usize) -> (MemoryRelay, MemoryRelay) {
    let (forward, backward) = <(Arc<Mutex<RelayDirection>>, Arc<Mutex<RelayDirection>>)>::default();
    let near = MemoryRelay {
        outgoing: Arc::clone(&forward),
        incoming: Arc::clone(&backward),
        capacity,
    };
    (
        near,
        MemoryRelay {
            outgoing: backward,
            incoming: forward,
            capacity,
        },
    )
}

fn lock_direction(direction: &Mutex<RelayDirection>) -> MutexGuard<'_, RelayDirection> {
    direction.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream for MemoryRelay {
    type Item = io::Result<StreamFrame>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut direction = lock_direction(&self.incoming);
        if let Some(frame) = direction.frames.pop_front() {
            direction.wake_all();
            return Poll::Ready(Some(Ok(frame)));
        }
        if direction.closed {
            return Poll::Ready(None);
        }
        direction.register_waker(cx);
        Poll::Pending
    }
}

impl Sink<StreamFrame> for MemoryRelay {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut direction = lock_direction(&self.outgoing);
        if direction.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if direction.frames.len() < self.capacity {
            return Poll::Ready(Ok(()));
        }
        direction.register_waker(cx);
        Poll::Pending
    }

    fn start_send(self: Pin<&mut Self>, frame: StreamFrame) -> io::Result<()> {
        let mut direction = lock_direction(&self.outgoing);
        direction.frames.push_back(frame);
        direction.wake_all();
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        close_direction(&self.outgoing);
        Poll::Ready(Ok(()))
    }
}

impl RelayConnection for MemoryRelay {}

impl Drop for MemoryRelay {
    fn drop(&mut self) {
        close_direction(&self.outgoing);
        close_direction(&self.incoming);
    }
}

fn close_direction(direction: &Mutex<RelayDirection>) {
    let mut direction = lock_direction(direction);
    direction.closed = true;
    direction.wake_all();
}
