//! Upgraded connections: bytes in both directions until both sides close or fall silent.

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

use super::open_response::RequestGuard;
use crate::call::GatewayCall;

/// Joins the connections of caller and instance once both are upgraded. Counts as in flight until
/// closed.
pub(crate) async fn run_tunnel(
    caller: OnUpgrade,
    instance: OnUpgrade,
    guard: RequestGuard,
    mut call: Box<GatewayCall>,
) {
    let joined = tokio::try_join!(caller, instance);
    // A side that never finishes its upgrade was already answered with 101, so only the record
    // can tell.
    let Ok((caller, instance)) = joined else {
        return call.record.mark_truncated(Reason::ResponseTruncated);
    };
    let last_read = Rc::new(Cell::new(Instant::now()));
    let (sent, received) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let mut caller = CountedStream {
        io: TokioIo::new(caller),
        bytes_read: sent,
        last_read: last_read.clone(),
    };
    let mut instance = CountedStream {
        io: TokioIo::new(instance),
        bytes_read: received.clone(),
        last_read: last_read.clone(),
    };
    let end = tokio::select! {
        copied = tokio::io::copy_bidirectional(&mut caller, &mut instance) => copied.map(drop),
        () = wait_for_silence(&last_read, call.deadlines.idle_timeout()) => Err(io::ErrorKind::TimedOut.into()),
    };
    // Bytes towards the caller, as for other responses.
    call.record.bytes_out = received.get();
    match end {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            call.record.mark_truncated(Reason::IdleTimeout)
        }
        _ => call.record.mark_finished(), // clients often close a WebSocket with a reset
    }
    drop(guard);
}

async fn wait_for_silence(last_read: &Cell<Instant>, idle: Duration) {
    // Sleeps to the end of the last activity's window instead of resetting a timer for each read.
    while last_read.get().elapsed() < idle {
        tokio::time::sleep_until((last_read.get() + idle).into()).await;
    }
}

/// Counts the bytes read, and keeps the time of the last read.
struct CountedStream {
    io: TokioIo<Upgraded>,
    bytes_read: Rc<Cell<u64>>,
    last_read: Rc<Cell<Instant>>,
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if polled.is_ready() {
            self.bytes_read
                .set(self.bytes_read.get() + (buf.filled().len() - before) as u64);
            self.last_read.set(Instant::now());
        }
        polled
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
