//! The `h3` crate's reading of a head, to which tests compare the scan.

use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt;
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use http::Request;

/// Returns how `h3` reads a head with this field section; `None`: `h3` refuses it.
pub(super) fn read_by_h3(section: &[u8]) -> Option<Request<()>> {
    // A length of four bytes.
    let length = u32::try_from(section.len()).unwrap() | 0x8000_0000;
    let frame = [&[1], &length.to_be_bytes()[..], section].concat();
    let reading = async {
        let connection = MemoryConnection(Some(frame.into()));
        let mut h3 = h3::server::builder().build(connection).await.ok()?;
        let resolver = h3.accept().await.ok()??;
        resolver.resolve_request().await.ok()
    };
    let (request, _stream) = reading.now_or_never().expect("all is in memory")?;
    Some(request)
}

/// Connection of a client that sends one request and reads nothing.
struct MemoryConnection(Option<Bytes>);

/// Stream that gives these bytes and takes any.
struct MemoryStream(Option<Bytes>);

impl quic::Connection<Bytes> for MemoryConnection {
    type RecvStream = MemoryStream;
    type OpenStreams = Self;

    fn poll_accept_recv(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<MemoryStream, ConnectionErrorIncoming>> {
        Poll::Pending
    }

    fn poll_accept_bidi(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<MemoryStream, ConnectionErrorIncoming>> {
        match self.0.take() {
            Some(request) => Poll::Ready(Ok(MemoryStream(Some(request)))),
            None => Poll::Pending,
        }
    }

    fn opener(&self) -> Self {
        Self(None)
    }
}

impl quic::OpenStreams<Bytes> for MemoryConnection {
    type BidiStream = MemoryStream;
    type SendStream = MemoryStream;

    fn poll_open_bidi(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<MemoryStream, StreamErrorIncoming>> {
        Poll::Ready(Ok(MemoryStream(None)))
    }

    fn poll_open_send(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<MemoryStream, StreamErrorIncoming>> {
        Poll::Ready(Ok(MemoryStream(None)))
    }

    fn close(&mut self, _: Code, _: &[u8]) {}
}

impl quic::RecvStream for MemoryStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        _: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        Poll::Ready(Ok(self.0.take()))
    }

    fn stop_sending(&mut self, _: u64) {}

    fn recv_id(&self) -> StreamId {
        StreamId::try_from(0).expect("0 is an id")
    }
}

impl quic::SendStream<Bytes> for MemoryStream {
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, _: T) -> Result<(), StreamErrorIncoming> {
        Ok(())
    }

    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        Poll::Ready(Ok(()))
    }

    fn reset(&mut self, _: u64) {}

    fn send_id(&self) -> StreamId {
        StreamId::try_from(0).expect("0 is an id")
    }
}

impl quic::BidiStream<Bytes> for MemoryStream {
    type SendStream = Self;
    type RecvStream = Self;

    fn split(self) -> (Self, Self) {
        (Self(None), self)
    }
}
