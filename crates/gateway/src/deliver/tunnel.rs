//! An upgraded connection: bytes both ways until both sides have closed, or silence.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use nearpath_types::Reason;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::open_response::Held;
use crate::call::Call;

/// Joins the caller's and the instance's connection once both are upgraded. It counts as in flight until closed.
pub(crate) async fn run(caller: OnUpgrade, instance: OnUpgrade, held: Held, mut call: Box<Call>) {
    let joined = tokio::try_join!(caller, instance);
    let Ok((caller, instance)) = joined else { return call.record.cut(Reason::ResponseCut) };
    let last = Rc::new(Cell::new(Instant::now()));
    let (sent, got) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let mut caller = Counted { io: TokioIo::new(caller), read: sent, last: last.clone() };
    let mut instance = Counted { io: TokioIo::new(instance), read: got.clone(), last: last.clone() };
    let end = tokio::select! {
        copied = tokio::io::copy_bidirectional(&mut caller, &mut instance) => copied.map(drop),
        () = silence(&last, call.clock.idle()) => Err(io::ErrorKind::TimedOut.into()),
    };
    call.record.bytes_out = got.get();
    match end {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => call.record.cut(Reason::IdleTimeout),
        _ => call.record.finished(), // a reset is a usual way to close a WebSocket
    }
    drop(held);
}

async fn silence(last: &Cell<Instant>, idle: Duration) {
    while last.get().elapsed() < idle {
        tokio::time::sleep_until((last.get() + idle).into()).await;
    }
}

/// Counts what is read and remembers when.
struct Counted {
    io: TokioIo<Upgraded>,
    read: Rc<Cell<u64>>,
    last: Rc<Cell<Instant>>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if polled.is_ready() {
            self.read.set(self.read.get() + (buf.filled().len() - before) as u64);
            self.last.set(Instant::now());
        }
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
