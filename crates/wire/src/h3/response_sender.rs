//! Sends a response to the client.

use std::fmt;
use std::pin::pin;

use bytes::Bytes;
use h3::error::StreamError;
use h3::server::RequestStream;
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::{HeaderMap, Response};
use http_body::Body;
use http_body_util::BodyExt;

use super::transport::Http3SendStream;
use crate::BoxError;
use crate::hop::headers::strip_hop_headers;

/// Reasons why a response was not sent completely. The stream is reset, so that the client does not
/// take the part for the whole.
#[derive(Debug, thiserror::Error)]
pub enum ResponseSendError {
    /// The client stopped reading, or its connection ended.
    #[error("the client stopped reading: {0}")]
    ClientGone(#[from] StreamError),
    /// The body failed at its source.
    #[error("the response body failed: {0}")]
    Source(BoxError),
}

/// Sender of one response. Dropping it before the response is complete resets the stream.
pub struct ResponseSender(RequestStream<Http3SendStream, Bytes>);

impl ResponseSender {
    pub(super) fn new(stream: RequestStream<Http3SendStream, Bytes>) -> Self {
        Self(stream)
    }

    /// Sends the whole response. With `bodiless` the body is left out (HEAD, 204, 304).
    ///
    /// # Errors
    /// See [`ResponseSendError`].
    pub async fn send_response<B>(
        mut self,
        response: Response<B>,
        bodiless: bool,
    ) -> Result<(), ResponseSendError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let (mut head, body) = response.into_parts();
        // RFC 9114 section 4.2: connection-specific fields make the message malformed.
        strip_hop_headers(&mut head.headers, false);
        set_content_length(&mut head.headers, body.size_hint().exact(), bodiless);
        self.0.send_response(Response::from_parts(head, ())).await?;
        if !bodiless {
            self.send_body(body).await?;
        }
        self.0.finish().await?;
        Ok(())
    }

    async fn send_body<B>(&mut self, body: B) -> Result<(), ResponseSendError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let mut body = pin!(body);
        while let Some(frame) = body.frame().await {
            match frame
                .map_err(|error| ResponseSendError::Source(error.into()))?
                .into_data()
            {
                // An empty DATA frame would carry nothing.
                Ok(data) if data.is_empty() => {}
                Ok(data) => self.0.send_data(data).await?,
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        self.0.send_trailers(trailers).await?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn set_content_length(headers: &mut HeaderMap, length: Option<u64>, bodiless: bool) {
    // HTTP/3 frames the body; the length still lets clients show progress and detect truncation.
    if let Some(length) = length.filter(|_| !bodiless && !headers.contains_key(CONTENT_LENGTH)) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

impl fmt::Debug for ResponseSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answering")
    }
}
