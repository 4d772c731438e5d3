//! A body on its way out.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use nearpath_types::head::HeadError;
use quinn::{SendStream, VarInt, WriteError};

use super::close_code;
use super::frame::{self, MAX_FRAME_BYTES, UNKNOWN_LENGTH};
use super::http_heads;
use crate::BoxError;

/// Why a body was not sent to its end.
#[derive(Debug, thiserror::Error)]
pub enum BodySendError {
    /// The peer wants no more of it, or the connection is gone.
    #[error("{0}")]
    Stream(#[from] WriteError),
    /// It broke off at its source; the peer is told.
    #[error("the body broke off at its source: {0}")]
    Source(BoxError),
    /// The trailers cannot be sent.
    #[error("the trailers cannot be sent: {0}")]
    Trailers(#[from] HeadError),
}

/// A stream that is reset, instead of ended, when it is dropped before its end: what was sent must not pass for the whole.
#[derive(Debug)]
pub(super) struct StreamBodyWriter {
    stream: SendStream,
    is_finished: bool,
}

impl StreamBodyWriter {
    pub(super) fn new(stream: SendStream) -> Self {
        Self {
            stream,
            is_finished: false,
        }
    }

    pub(super) fn stream(&mut self) -> &mut SendStream {
        &mut self.stream
    }

    /// Ends it with nothing sent, and says why.
    pub(super) fn reset_with(mut self, why: VarInt) {
        let _ = self.stream.reset(why); // it may be closed already
        self.is_finished = true;
    }

    /// Sends what came first, which is written already, and the body after it.
    pub(super) async fn send_body<B>(
        &mut self,
        mut first: BytesMut,
        body: B,
        announced: bool,
    ) -> Result<(), BodySendError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let mut body = std::pin::pin!(body);
        // A body that is there goes along with the opening: one packet, if it fits.
        if let Some(now) = first_frame_if_ready(body.as_mut()).await
            && let Some(rest) = self.append_frame(&mut first, now, announced)?
        {
            self.stream
                .write_all_chunks(&mut [first.split().freeze(), rest])
                .await?;
        }
        if !first.is_empty() {
            self.stream.write_chunk(first.freeze()).await?;
        }
        while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            let mut out = BytesMut::new();
            let rest = self.append_frame(&mut out, frame.map_err(Into::into), announced)?;
            self.stream
                .write_all_chunks(&mut [out.freeze(), rest.unwrap_or_default()])
                .await?;
        }
        self.finish_stream();
        Ok(())
    }

    /// Adds a frame to what goes out: small ones whole, of large ones the length; the bytes are given back, uncopied.
    fn append_frame(
        &mut self,
        out: &mut BytesMut,
        frame: Result<Frame<Bytes>, BoxError>,
        announced: bool,
    ) -> Result<Option<Bytes>, BodySendError> {
        /// Copying so much costs less than a piece of its own.
        const MAX_COPIED_BYTES: usize = 1024;
        let frame = frame.map_err(|error| self.fail_source(error))?;
        match frame.into_data() {
            Ok(data) if data.len() > MAX_FRAME_BYTES => {
                Err(self.fail_source("a piece of 2 GiB".into()))
            }
            Ok(data) if data.is_empty() => Ok(None),
            Ok(data) => {
                out.put_slice(&frame::data_frame_header(data.len()));
                if data.len() <= MAX_COPIED_BYTES {
                    out.put_slice(&data);
                    return Ok(None);
                }
                Ok(Some(data))
            }
            Err(frame) => {
                // RFC 9110 section 6.5.1: they may be discarded, and a body of announced length has no room for them.
                if let (Ok(trailers), false) = (frame.into_trailers(), announced) {
                    self.append_trailers(&trailers, out)?;
                }
                Ok(None)
            }
        }
    }

    fn append_trailers(
        &mut self,
        trailers: &HeaderMap,
        out: &mut BytesMut,
    ) -> Result<(), BodySendError> {
        let written = http_heads::write_trailers(trailers)?;
        out.put_slice(&frame::trailers_frame_header(written.len()));
        out.put_slice(&written);
        Ok(())
    }

    fn fail_source(&mut self, error: BoxError) -> BodySendError {
        let _ = self.stream.reset(close_code::BODY_CUT); // it may be closed already
        self.is_finished = true;
        BodySendError::Source(error)
    }

    fn finish_stream(&mut self) {
        let _ = self.stream.finish(); // the peer may have stopped it: then there is nobody to tell
        self.is_finished = true;
    }
}

impl Drop for StreamBodyWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = self.stream.reset(close_code::CANCELLED); // it may be closed already
        }
    }
}

/// The first frame, if it is there without waiting.
async fn first_frame_if_ready<B: Body>(
    mut body: Pin<&mut B>,
) -> Option<Result<Frame<B::Data>, BoxError>>
where
    B::Error: Into<BoxError>,
{
    use std::task::Poll;
    poll_fn(|cx| match body.as_mut().poll_frame(cx) {
        Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(Into::into))),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Bytes of a body, if they can be announced.
pub(super) fn announced_length<B: Body>(body: &B, headers: &HeaderMap) -> u64 {
    let trailers =
        headers.contains_key(http::header::TRAILER) || headers.contains_key(http::header::TE);
    body.size_hint()
        .exact()
        .filter(|_| !trailers)
        .unwrap_or(UNKNOWN_LENGTH)
}
