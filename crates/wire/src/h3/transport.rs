//! Adapters from quinn's connections and streams to the traits of the `h3` crate.
//!
//! The crate `h3-quinn` does the same, but it lacks three things that a public server needs. It
//! does not report that a client cancelled a request before the response is ready. It does not
//! bound buffered data. It finishes an incomplete response instead of resetting it, because quinn's
//! streams finish when they are dropped. It also panics when a stream is stopped during a read.

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
use super::pseudo_header_scan::{PseudoHeaderFaults, PseudoHeaderScan};
use super::unread_limit::UnreadLimit;

/// Maximum number of bytes of a stream that are read at once.
const MAX_CHUNK_BYTES: usize = 16 * 1024;
/// Bytes that a peer's control streams may send, and bytes that each request adds: settings,
/// priorities.
const CONTROL_BUDGET_BYTES: (u64, u64) = (64 * 1024, 256);

type OpenedUni = Result<quinn::SendStream, ConnectionError>;
type AcceptedBi = Result<(quinn::SendStream, quinn::RecvStream), ConnectionError>;
type AcceptedUni = Result<quinn::RecvStream, ConnectionError>;

/// Data about a request's stream that `h3` does not pass on.
pub(super) struct RequestStreamInfo {
    /// Completes when the client cancels the request or has received the response.
    pub(super) stopped: Pin<Box<dyn Future<Output = ()>>>,
    pub(super) unread: UnreadLimit,
    pub(super) is_early: bool,
    /// Set once the request is forwarded. Until then `h3` may have answered it.
    pub(super) resolved: Arc<AtomicBool>,
    pub(super) faults: PseudoHeaderFaults,
}

/// A quinn connection for `h3`.
pub(super) struct Http3Connection {
    quic: quinn::Connection,
    bi: LocalBoxStream<'static, AcceptedBi>,
    uni: LocalBoxStream<'static, AcceptedUni>,
    opened_uni: LocalBoxStream<'static, OpenedUni>,
    /// Data about the request that was accepted last.
    stream_info: Rc<RefCell<Option<RequestStreamInfo>>>,
    /// Maximum size of a request's head in bytes.
    head: u64,
    control_limit: UnreadLimit,
}

impl Http3Connection {
    /// Wraps a connection. A request's head may be `max_head_bytes` long. After a request was
    /// accepted, the returned cell holds its stream info.
    pub(super) fn new(
        quic: quinn::Connection,
        max_head_bytes: u64,
    ) -> (Self, Rc<RefCell<Option<RequestStreamInfo>>>) {
        let stream_info = Rc::<RefCell<Option<RequestStreamInfo>>>::default();
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
        // One budget for all unidirectional streams: a peer may open several.
        let control = UnreadLimit::new(CONTROL_BUDGET_BYTES.0);
        (
            Self {
                quic,
                bi,
                uni,
                opened_uni: opening,
                stream_info: stream_info.clone(),
                head: max_head_bytes,
                control_limit: control,
            },
            stream_info,
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
            .expect("the stream is endless")
            .map_err(connection_error)?;
        Poll::Ready(Ok(Http3RecvStream::new(
            stream,
            self.control_limit.clone(),
            None,
        )))
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Http3BidiStream, ConnectionErrorIncoming>> {
        let accepted = ready!(self.bi.poll_next_unpin(cx)).expect("the stream is endless");
        let (send, receive) = accepted.map_err(connection_error)?;
        // Priority updates arrive with requests, so the budget grows with them.
        self.control_limit.grant_bytes(CONTROL_BUDGET_BYTES.1);
        let (unread, is_early) = (UnreadLimit::new(self.head), receive.is_0rtt());
        let stopped = send.stopped();
        // The reason does not matter: the client does not wait in any case.
        let stopped = Box::pin(async move { drop(stopped.await) });
        let resolved = Arc::<AtomicBool>::default();
        let scan = PseudoHeaderScan::default();
        // Handed over by a cell, because the trait returns the stream alone.
        *self.stream_info.borrow_mut() = Some(RequestStreamInfo {
            stopped,
            unread: unread.clone(),
            is_early,
            resolved: resolved.clone(),
            faults: scan.faults(),
        });
        let send = Http3SendStream {
            stream: send,
            writing: None,
            request_resolved: Some(resolved),
            has_written: false,
        };
        Poll::Ready(Ok(Http3BidiStream {
            send,
            receive: Http3RecvStream::new(receive, unread, Some(scan)),
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
        let opened = ready!(self.opened_uni.poll_next_unpin(cx)).expect("the stream is endless");
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

/// Opener of streams, which `h3` asks for although a server opens none with it.
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

/// Both directions of a request's stream.
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

/// Receiving side of a stream.
pub(super) struct Http3RecvStream {
    stream: quinn::RecvStream,
    unread: UnreadLimit,
    /// For a request's stream.
    scan: Option<PseudoHeaderScan>,
}

impl Http3RecvStream {
    fn new(stream: quinn::RecvStream, unread: UnreadLimit, scan: Option<PseudoHeaderScan>) -> Self {
        Self {
            stream,
            unread,
            scan,
        }
    }
}

impl quic::RecvStream for Http3RecvStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        // The future keeps no state between polls: quinn stores the waker with the stream.
        let polled = pin!(self.stream.read_chunk(MAX_CHUNK_BYTES, true)).poll(cx);
        let chunk = ready!(polled).map_err(read_error)?;
        let Some(chunk) = chunk else {
            self.scan.iter().for_each(PseudoHeaderScan::end_stream);
            return Poll::Ready(Ok(None));
        };
        // Below `h3`: it would buffer a huge frame before reporting it.
        if !self.unread.count_received(chunk.bytes.len()) {
            // fails only if the stream has ended
            let _ = self.stream.stop(error_code::EXCESSIVE_LOAD);
            return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated {
                error_code: error_code::EXCESSIVE_LOAD.into(),
            }));
        }
        if let Some(scan) = &mut self.scan {
            scan.read(&chunk.bytes);
        }
        Poll::Ready(Ok(Some(chunk.bytes)))
    }

    fn stop_sending(&mut self, code: u64) {
        let _ = self
            .stream
            // fails only if the stream has ended
            .stop(VarInt::from_u64(code).unwrap_or(error_code::NO_ERROR));
    }

    fn recv_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

/// Unread data is not needed, which is no error (RFC 9114 section 4.1).
impl Drop for Http3RecvStream {
    fn drop(&mut self) {
        let _ = self.stream.stop(error_code::NO_ERROR);
    }
}

/// Sending side of a stream.
pub(super) struct Http3SendStream {
    stream: quinn::SendStream,
    writing: Option<WriteBuf<Bytes>>,
    /// For a request's stream, until it is finished: the flag that the request was forwarded.
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
        // A violated contract of the trait; losing data silently would be worse.
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
        // The response is complete, or reset already: dropping must not reset it again.
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
            // fails only if the stream has ended
            .reset(VarInt::from_u64(code).unwrap_or(error_code::NO_ERROR));
    }

    fn send_id(&self) -> StreamId {
        stream_id(self.stream.id())
    }
}

/// Resets an incomplete response. The exception is `h3`'s own response, a head alone (431), which
/// `h3` does not finish.
impl Drop for Http3SendStream {
    fn drop(&mut self) {
        let cut =
            |resolved: &Arc<AtomicBool>| resolved.load(Ordering::Relaxed) || !self.has_written;
        if self.request_resolved.as_ref().is_some_and(cut) {
            // fails only if the client stopped the stream
            let _ = self.stream.reset(error_code::REQUEST_CANCELLED);
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
