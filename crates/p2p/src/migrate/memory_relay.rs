//! A relay within one process: for workers that share it, and for tests of everything above.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::{Sink, Stream};

use super::relay::{Piece, Relay};

/// One direction.
#[derive(Debug, Default)]
struct Lane {
    pieces: VecDeque<Piece>,
    closed: bool,
    waiting: Vec<Waker>,
}

impl Lane {
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiting.push(cx.waker().clone());
        }
    }

    fn changed(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

/// One end of [`local`].
#[derive(Debug)]
pub struct Local {
    out: Arc<Mutex<Lane>>,
    inward: Arc<Mutex<Lane>>,
    room: usize,
}

/// Both ends of a relay that holds `room` pieces a direction.
pub fn local(room: usize) -> (Local, Local) {
    let (there, back) = <(Arc<Mutex<Lane>>, Arc<Mutex<Lane>>)>::default();
    let near = Local { out: Arc::clone(&there), inward: Arc::clone(&back), room };
    (near, Local { out: back, inward: there, room })
}

fn lock(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream for Local {
    type Item = io::Result<Piece>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut lane = lock(&self.inward);
        if let Some(piece) = lane.pieces.pop_front() {
            lane.changed();
            return Poll::Ready(Some(Ok(piece)));
        }
        if lane.closed {
            return Poll::Ready(None);
        }
        lane.wait(cx);
        Poll::Pending
    }
}

impl Sink<Piece> for Local {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut lane = lock(&self.out);
        if lane.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if lane.pieces.len() < self.room {
            return Poll::Ready(Ok(()));
        }
        lane.wait(cx);
        Poll::Pending
    }

    fn start_send(self: Pin<&mut Self>, piece: Piece) -> io::Result<()> {
        let mut lane = lock(&self.out);
        lane.pieces.push_back(piece);
        lane.changed();
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        end(&self.out);
        Poll::Ready(Ok(()))
    }
}

impl Relay for Local {}

impl Drop for Local {
    fn drop(&mut self) {
        end(&self.out);
        end(&self.inward);
    }
}

fn end(lane: &Mutex<Lane>) {
    let mut lane = lock(lane);
    lane.closed = true;
    lane.changed();
}
