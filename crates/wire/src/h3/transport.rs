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

use super::error_code;
use super::unread_limit::UnreadLimit;

/// Most of a stream that is read at once.
const MAX_CHUNK_BYTES: usize = 16 * 1024;
/// What a peer's control streams may bring at most, and how much of it again with each request: settings, priorities.
const CONTROL_BUDGET_BYTES: (u64, u64) = (64 * 1024, 256);

type OpenedUni = Result<quinn::SendStream, ConnectionError>;
type AcceptedBi = Result<(quinn::SendStream, quinn::RecvStream), ConnectionError>;
type AcceptedUni = Result<quinn::RecvStream, ConnectionError>;

/// What `h3` does not hand on of a request's stream.
pub(super) struct RequestSide {
    /// Done when the client wants no answer any more, or has all of it.
    pub(super) stopped: Pin<Box<dyn Future<Output = ()>>>,
    pub(super) unread: UnreadLimit,
    pub(super) early: bool,
    /// To be set once the request goes on: until then `h3` may have answered it.
    pub(super) resolved: Arc<AtomicBool>,
}

/// See the module's text.
pub(super) struct Http3Connection {
    quic: quinn::Connection,
    bi: LocalBoxStream<'static, AcceptedBi>,
    uni: LocalBoxStream<'static, AcceptedUni>,
    opened_uni: LocalBoxStream<'static, OpenedUni>,
    /// Of the request that was accepted last.
    side: Rc<RefCell<Option<RequestSide>>>,
    /// Most of a request's head.
    head: u64,
    control_limit: UnreadLimit,
}

impl Http3Connection {
    /// A request's head may be `head` bytes long. After a request was accepted its side is where the second one leads.
    pub(super) fn new(
        quic: quinn::Connection,
        max_head_bytes: u64,
    ) -> (Self, Rc<RefCell<Option<RequestSide>>>) {
        let side = Rc::<RefCell<Option<RequestSide>>>::default();
        let bi = unfold(quic.clone(), |quic| async move {
            Some((quic.accept_bi().await, quic))
        })
        .boxed_local();
        let uni = unfold(quic.clone(), |quic| async move {
            Some((quic.accept_uni().await, quic))
        })
        .boxed_local();
        let opening = unfold(quic.clone(), |quic| async move {
            Some((quic.open_uni().await, quic))
        })
        .boxed_local();
        let control = UnreadLimit::new(CONTROL_BUDGET_BYTES.0);
        (
            Self {
                quic,
                bi,
                uni,
                opened_uni: opening,
                side: side.clone(),
                head: max_head_bytes,
                control_limit: control,
            },
            side,
        )
    }
}

impl quic::Connection<Bytes> for Http3Connection {
    type RecvStream = Http3RecvStream;
    type OpenStreams = StreamOpener;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Http3RecvStream, ConnectionErrorIncoming>> {
        let stream = ready!(self.uni.poll_next_unpin(cx))
            .expect("it asks again for ever")
            .map_err(connection_error)?;
        Poll::Ready(Ok(Http3RecvStream::new(stream, self.control_limit.clone())))
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Http3BidiStream, ConnectionErrorIncoming>> {
        let accepted = ready!(self.bi.poll_next_unpin(cx)).expect("it asks again for ever");
        let (send, receive) = accepted.map_err(connection_error)?;
        self.control_limit.grant_bytes(CONTROL_BUDGET_BYTES.1);
        let (unread, early) = (UnreadLimit::new(self.head), receive.is_0rtt());
        let stopped = send.stopped();
        let stopped = Box::pin(async move { drop(stopped.await) });
        let resolved = Arc::<AtomicBool>::default();
        *self.side.borrow_mut() = Some(RequestSide {
            stopped,
            unread: unread.clone(),
            early,
            resolved: resolved.clone(),
        });
        let send = Http3SendStream {
            stream: send,
            writing: None,
            request_resolved: Some(resolved),
            has_written: false,
        };
        Poll::Ready(Ok(Http3BidiStream {
            send,
            receive: Http3RecvStream::new(receive, unread),
        }))
    }

    fn opener(&self) -> StreamOpener {
        StreamOpener(self.quic.clone())
    }
}

impl quic::OpenStreams<Bytes> for Http3Connection {
    type BidiStream = Http3BidiStream;
    type SendStream = Http3SendStream;

    fn poll_open_bidi(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<Http3BidiStream, StreamErrorIncoming>> {
        Poll::Ready(Err(unsupported_open()))
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Http3SendStream, StreamErrorIncoming>> {
        let opened = ready!(self.opened_uni.poll_next_unpin(cx)).expect("it asks again for ever");
        let stream = opened.map_err(|error| connection_lost(connection_error(error)))?;
        Poll::Ready(Ok(Http3SendStream {
            stream,
            writing: None,
            request_resolved: None,
            has_written: false,
        }))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        close_connection(&self.quic, code, reason);
    }
}

/// `h3` asks for one, and a server has no use for it.
pub(super) struct StreamOpener(quinn::Connection);

impl quic::OpenStreams<Bytes> for StreamOpener {
    type BidiStream = Http3BidiStream;
    type SendStream = Http3SendStream;

    fn poll_open_bidi(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<Http3BidiStream, StreamErrorIncoming>> {
        Poll::Ready(Err(unsupported_open()))
    }

    fn poll_open_send(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<Http3SendStream, StreamErrorIncoming>> {
        Poll::Ready(Err(unsupported_open()))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        close_connection(&self.0, code, reason);
    }
}

fn close_connection(quic: &quinn::Connection, code: Code, reason: &[u8]) {
    quic.close(
        VarInt::from_u64(code.value()).unwrap_or(error_code::NO_ERROR),
        reason,
    );
}

fn unsupported_open() -> StreamErrorIncoming {
    StreamErrorIncoming::Unknown("a server opens no such stream".into())
}

/// A request's stream.
pub(super) struct Http3BidiStream {
    send: Http3SendStream,
    receive: Http3RecvStream,
}

impl quic::BidiStream<Bytes> for Http3BidiStream {
    type SendStream = Http3SendStream;
    type RecvStream = Http3RecvStream;

    fn split(self) -> (Http3SendStream, Http3RecvStream) {
        (self.send, self.receive)
    }
}

impl quic::RecvStream for Http3BidiStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.receive.poll_data(cx)
    }

    fn stop_sending(&mut self, code: u64) {
        self.receive.stop_sending(code);
    }

    fn recv_id(&self) -> StreamId {
        self.receive.recv_id()
    }
}

impl quic::SendStream<Bytes> for Http3BidiStream {
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
pub(super) struct Http3RecvStream {
    stream: quinn::RecvStream,
    unread: UnreadLimit,
}

impl Http3RecvStream {
    fn new(stream: quinn::RecvStream, unread: UnreadLimit) -> Self {
        Self { stream, unread }
    }
}

impl quic::RecvStream for Http3RecvStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        // Its future keeps nothing between polls: who waits is noted with the stream.
        let polled = pin!(self.stream.read_chunk(MAX_CHUNK_BYTES, true)).poll(cx);
        let chunk = ready!(polled).map_err(read_error)?;
        let Some(chunk) = chunk else {
            return Poll::Ready(Ok(None));
        };
        if !self.unread.count_received(chunk.bytes.len()) {
            let _ = self.stream.stop(error_code::EXCESSIVE_LOAD); // it has ended meanwhile: as good
            return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated {
                error_code: error_code::EXCESSIVE_LOAD.into(),
            }));
        }
        Poll::Ready(Ok(Some(chunk.bytes)))
    }

    fn stop_sending(&mut self, code: u64) {
        let _ = self
            .stream
            .stop(VarInt::from_u64(code).unwrap_or(error_code::NO_ERROR)); // it has ended already: as good
    }

    fn recv_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

/// Whatever was not read is not wanted, which is no error (RFC 9114 section 4.1).
impl Drop for Http3RecvStream {
    fn drop(&mut self) {
        let _ = self.stream.stop(error_code::NO_ERROR);
    }
}

/// What goes.
pub(super) struct Http3SendStream {
    stream: quinn::SendStream,
    writing: Option<WriteBuf<Bytes>>,
    /// Until it is finished, where it is a request's: whether that went on.
    request_resolved: Option<Arc<AtomicBool>>,
    has_written: bool,
}

impl quic::SendStream<Bytes> for Http3SendStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        while let Some(data) = self.writing.as_mut().filter(|data| data.has_remaining()) {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data.chunk()))
                .map_err(write_error)?;
            data.advance(written);
            self.has_written = true;
        }
        self.writing = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        if self.writing.is_some() {
            return Err(connection_lost(ConnectionErrorIncoming::InternalError(
                "written to before it was ready".into(),
            )));
        }
        self.writing = Some(data.into());
        Ok(())
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        ready!(self.poll_ready(cx))?;
        self.request_resolved = None;
        Poll::Ready(
            self.stream
                .finish()
                .map_err(|error| StreamErrorIncoming::Unknown(Box::new(error))),
        )
    }

    fn reset(&mut self, code: u64) {
        self.request_resolved = None;
        let _ = self
            .stream
            .reset(VarInt::from_u64(code).unwrap_or(error_code::NO_ERROR)); // it has ended already: as good
    }

    fn send_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

/// An answer that nobody goes on with was cut. Not so `h3`'s own, which is a head alone (431) and which it does not finish.
impl Drop for Http3SendStream {
    fn drop(&mut self) {
        let cut =
            |resolved: &Arc<AtomicBool>| resolved.load(Ordering::Relaxed) || !self.has_written;
        if self.request_resolved.as_ref().is_some_and(cut) {
            let _ = self.stream.reset(error_code::REQUEST_CANCELLED); // it was stopped already: as good
        }
    }
}

impl fmt::Debug for Http3SendStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendStream({:?})", self.stream.id())
    }
}

fn stream_id(id: quinn::StreamId) -> StreamId {
    u64::from(id).try_into().expect("both have 62 bits")
}

fn connection_lost(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}

fn connection_error(error: ConnectionError) -> ConnectionErrorIncoming {
    match error {
        ConnectionError::ApplicationClosed(close) => ConnectionErrorIncoming::ApplicationClose {
            error_code: close.error_code.into(),
        },
        ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        other => ConnectionErrorIncoming::Undefined(Arc::new(other)),
    }
}

fn read_error(error: ReadError) -> StreamErrorIncoming {
    match error {
        ReadError::Reset(code) => StreamErrorIncoming::StreamTerminated {
            error_code: code.into(),
        },
        ReadError::ConnectionLost(error) => connection_lost(connection_error(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}

fn write_error(error: WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated {
            error_code: code.into(),
        },
        WriteError::ConnectionLost(error) => connection_lost(connection_error(error)),
        other => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}
