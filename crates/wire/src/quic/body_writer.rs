//! Writes a body to a stream.

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

/// Reasons why a body was not sent completely.
#[derive(Debug, thiserror::Error)]
pub enum BodySendError {
    /// The peer stopped reading, or the connection ended.
    #[error("{0}")]
    Stream(#[from] WriteError),
    /// The body failed at its source; the peer is notified.
    #[error("the body failed at its source: {0}")]
    Source(BoxError),
    /// The trailers cannot be sent.
    #[error("cannot send the trailers: {0}")]
    Trailers(#[from] HeadError),
}

/// A stream that is reset instead of finished when dropped early: a part must not pass for the
/// whole body.
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

    /// Resets the stream without sending anything.
    pub(super) fn reset_with(mut self, why: VarInt) {
        let _ = self.stream.reset(why); // fails only if the stream is closed
        self.is_finished = true;
    }

    /// Sends `first`, then the body.
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
        // A body that is ready is sent with the opening, in one packet if it fits.
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
        // `write_all_chunks` waits for the window, which is the back-pressure on the source.
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

    /// Appends a frame to `out`: small ones completely, of large ones the header. Large data is
    /// returned, uncopied.
    fn append_frame(
        &mut self,
        out: &mut BytesMut,
        frame: Result<Frame<Bytes>, BoxError>,
        announced: bool,
    ) -> Result<Option<Bytes>, BodySendError> {
        /// Maximum size of data that is copied: cheaper than a chunk of its own.
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
                // A body of announced length has no trailers frame; RFC 9110 section 6.5.1 allows
                // to discard them.
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
        let _ = self.stream.reset(close_code::BODY_CUT); // fails only if the stream is closed
        self.is_finished = true;
        BodySendError::Source(error)
    }

    fn finish_stream(&mut self) {
        // fails only if the peer stopped the stream, which needs no end then
        let _ = self.stream.finish();
        self.is_finished = true;
    }
}

impl Drop for StreamBodyWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = self.stream.reset(close_code::CANCELLED); // fails only if the stream is closed
        }
    }
}

/// Returns the first frame, if it is ready.
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

/// Length of a body that can be announced, else [`UNKNOWN_LENGTH`].
pub(super) fn announced_length<B: Body>(body: &B, headers: &HeaderMap) -> u64 {
    let trailers =
        headers.contains_key(http::header::TRAILER) || headers.contains_key(http::header::TE);
    body.size_hint()
        .exact()
        .filter(|_| !trailers)
        .unwrap_or(UNKNOWN_LENGTH)
}
