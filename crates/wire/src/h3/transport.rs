//! quinn's connections and streams, as `h3` wants to have them.
//!
//! The crate `h3-quinn` does the same, but hides what a server of hostile peers needs: to learn that a client gave its request up
//! while the answer is not ready, to bound what a peer makes it hold, and to end an answer that broke off with a reset: quinn's own
//! streams, when they are dropped, end as if they were complete. It also panics when a stream is stopped while it is read.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::stream::{LocalBoxStream, StreamExt, unfold};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use quinn::{ConnectionError, ReadError, VarInt, WriteError};

use super::code;
use super::meter::Meter;

/// Most of a stream that is read at once.
const CHUNK: usize = 16 * 1024;
/// What a peer's control streams may bring at most, and how much of it again with each request: settings, priorities.
const CONTROL: (u64, u64) = (64 * 1024, 256);

type Opened = Result<quinn::SendStream, ConnectionError>;
type AcceptedBi = Result<(quinn::SendStream, quinn::RecvStream), ConnectionError>;
type AcceptedUni = Result<quinn::RecvStream, ConnectionError>;

/// What `h3` does not hand on of a request's stream.
pub(super) struct Side {
    /// Done when the client wants no answer any more, or has all of it.
    pub(super) stopped: Pin<Box<dyn Future<Output = ()>>>,
    pub(super) meter: Meter,
    pub(super) early: bool,
    /// To be set once the request goes on: until then `h3` may have answered it.
    pub(super) resolved: Arc<AtomicBool>,
}

/// See the module's text.
pub(super) struct Connection {
    quic: quinn::Connection,
    bi: LocalBoxStream<'static, AcceptedBi>,
    uni: LocalBoxStream<'static, AcceptedUni>,
    opening: LocalBoxStream<'static, Opened>,
    /// Of the request that was accepted last.
    side: Rc<RefCell<Option<Side>>>,
    /// Most of a request's head.
    head: u64,
    control: Meter,
}

impl Connection {
    /// A request's head may be `head` bytes long. After a request was accepted its side is where the second one leads.
    pub(super) fn new(quic: quinn::Connection, head: u64) -> (Self, Rc<RefCell<Option<Side>>>) {
        let side = Rc::<RefCell<Option<Side>>>::default();
        let bi = unfold(quic.clone(), |quic| async move { Some((quic.accept_bi().await, quic)) }).boxed_local();
        let uni = unfold(quic.clone(), |quic| async move { Some((quic.accept_uni().await, quic)) }).boxed_local();
        let opening = unfold(quic.clone(), |quic| async move { Some((quic.open_uni().await, quic)) }).boxed_local();
        let control = Meter::new(CONTROL.0);
        (Self { quic, bi, uni, opening, side: side.clone(), head, control }, side)
    }
}

impl quic::Connection<Bytes> for Connection {
    type RecvStream = RecvStream;
    type OpenStreams = Opener;

    fn poll_accept_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<RecvStream, ConnectionErrorIncoming>> {
        let stream = ready!(self.uni.poll_next_unpin(cx)).expect("it asks again for ever").map_err(connection_error)?;
        Poll::Ready(Ok(RecvStream::new(stream, self.control.clone())))
    }

    fn poll_accept_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BidiStream, ConnectionErrorIncoming>> {
        let accepted = ready!(self.bi.poll_next_unpin(cx)).expect("it asks again for ever");
        let (send, receive) = accepted.map_err(connection_error)?;
        self.control.allow(CONTROL.1);
        let (meter, early) = (Meter::new(self.head), receive.is_0rtt());
        let stopped = send.stopped();
        let stopped = Box::pin(async move { drop(stopped.await) });
        let resolved = Arc::<AtomicBool>::default();
        *self.side.borrow_mut() = Some(Side { stopped, meter: meter.clone(), early, resolved: resolved.clone() });
        let send = SendStream { stream: send, writing: None, request: Some(resolved), wrote: false };
        Poll::Ready(Ok(BidiStream { send, receive: RecvStream::new(receive, meter) }))
    }

    fn opener(&self) -> Opener {
        Opener(self.quic.clone())
    }
}

impl quic::OpenStreams<Bytes> for Connection {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    fn poll_open_bidi(&mut self, _: &mut Context<'_>) -> Poll<Result<BidiStream, StreamErrorIncoming>> {
        Poll::Ready(Err(no_server_opens_one()))
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        let opened = ready!(self.opening.poll_next_unpin(cx)).expect("it asks again for ever");
        let stream = opened.map_err(|error| lost(connection_error(error)))?;
        Poll::Ready(Ok(SendStream { stream, writing: None, request: None, wrote: false }))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        close(&self.quic, code, reason);
    }
}

/// `h3` asks for one, and a server has no use for it.
pub(super) struct Opener(quinn::Connection);

impl quic::OpenStreams<Bytes> for Opener {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    fn poll_open_bidi(&mut self, _: &mut Context<'_>) -> Poll<Result<BidiStream, StreamErrorIncoming>> {
        Poll::Ready(Err(no_server_opens_one()))
    }

    fn poll_open_send(&mut self, _: &mut Context<'_>) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        Poll::Ready(Err(no_server_opens_one()))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        close(&self.0, code, reason);
    }
}

fn close(quic: &quinn::Connection, code: Code, reason: &[u8]) {
    quic.close(VarInt::from_u64(code.value()).unwrap_or(code::NO_ERROR), reason);
}

fn no_server_opens_one() -> StreamErrorIncoming {
    StreamErrorIncoming::Unknown("a server opens no such stream".into())
}

/// A request's stream.
pub(super) struct BidiStream {
    send: SendStream,
    receive: RecvStream,
}

impl quic::BidiStream<Bytes> for BidiStream {
    type SendStream = SendStream;
    type RecvStream = RecvStream;

    fn split(self) -> (SendStream, RecvStream) {
        (self.send, self.receive)
    }
}

impl quic::RecvStream for BidiStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.receive.poll_data(cx)
    }

    fn stop_sending(&mut self, code: u64) {
        self.receive.stop_sending(code);
    }

    fn recv_id(&self) -> StreamId {
        self.receive.recv_id()
    }
}

impl quic::SendStream<Bytes> for BidiStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(cx)
    }

    fn reset(&mut self, code: u64) {
        self.send.reset(code);
    }

    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}

/// What comes.
pub(super) struct RecvStream {
    stream: quinn::RecvStream,
    meter: Meter,
}

impl RecvStream {
    fn new(stream: quinn::RecvStream, meter: Meter) -> Self {
        Self { stream, meter }
    }
}

impl quic::RecvStream for RecvStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        // Its future keeps nothing between polls: who waits is noted with the stream.
        let polled = pin!(self.stream.read_chunk(CHUNK, true)).poll(cx);
        let chunk = ready!(polled).map_err(read_error)?;
        let Some(chunk) = chunk else { return Poll::Ready(Ok(None)) };
        if !self.meter.came(chunk.bytes.len()) {
            let _ = self.stream.stop(code::EXCESSIVE_LOAD); // it has ended meanwhile: as good
            return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated { error_code: code::EXCESSIVE_LOAD.into() }));
        }
        Poll::Ready(Ok(Some(chunk.bytes)))
    }

    fn stop_sending(&mut self, code: u64) {
        let _ = self.stream.stop(VarInt::from_u64(code).unwrap_or(code::NO_ERROR)); // it has ended already: as good
    }

    fn recv_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

/// Whatever was not read is not wanted, which is no error (RFC 9114 section 4.1).
impl Drop for RecvStream {
    fn drop(&mut self) {
        let _ = self.stream.stop(code::NO_ERROR);
    }
}

/// What goes.
pub(super) struct SendStream {
    stream: quinn::SendStream,
    writing: Option<WriteBuf<Bytes>>,
    /// Until it is finished, where it is a request's: whether that went on.
    request: Option<Arc<AtomicBool>>,
    wrote: bool,
}

impl quic::SendStream<Bytes> for SendStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        while let Some(data) = self.writing.as_mut().filter(|data| data.has_remaining()) {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data.chunk())).map_err(write_error)?;
            data.advance(written);
            self.wrote = true;
        }
        self.writing = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        if self.writing.is_some() {
            return Err(lost(ConnectionErrorIncoming::InternalError("written to before it was ready".into())));
        }
        self.writing = Some(data.into());
        Ok(())
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        ready!(self.poll_ready(cx))?;
        self.request = None;
        Poll::Ready(self.stream.finish().map_err(|error| StreamErrorIncoming::Unknown(Box::new(error))))
    }

    fn reset(&mut self, code: u64) {
        self.request = None;
        let _ = self.stream.reset(VarInt::from_u64(code).unwrap_or(code::NO_ERROR)); // it has ended already: as good
    }

    fn send_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

/// An answer that nobody goes on with was cut. Not so `h3`'s own, which is a head alone (431) and which it does not finish.
impl Drop for SendStream {
    fn drop(&mut self) {
        let cut = |resolved: &Arc<AtomicBool>| resolved.load(Ordering::Relaxed) || !self.wrote;
        if self.request.as_ref().is_some_and(cut) {
            let _ = self.stream.reset(code::REQUEST_CANCELLED); // it was stopped already: as good
        }
    }
}

impl fmt::Debug for SendStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendStream({:?})", self.stream.id())
    }
}

fn stream_id(id: quinn::StreamId) -> StreamId {
    u64::from(id).try_into().expect("both have 62 bits")
}

fn lost(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}

fn connection_error(error: ConnectionError) -> ConnectionErrorIncoming {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            ConnectionErrorIncoming::ApplicationClose { error_code: close.error_code.into() }
        }
        ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        other => ConnectionErrorIncoming::Undefined(Arc::new(other)),
    }
}

fn read_error(error: ReadError) -> StreamErrorIncoming {
    match error {
        ReadError::Reset(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into() },
        ReadError::ConnectionLost(error) => lost(connection_error(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}

fn write_error(error: WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated { error_code: code.into() },
        WriteError::ConnectionLost(error) => lost(connection_error(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}
