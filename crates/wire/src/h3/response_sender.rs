//! An answer on its way to the client.

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
use crate::{BoxError, hop_headers};

/// Why an answer did not go as a whole. What was sent of it is reset, so that nobody takes it for complete.
#[derive(Debug, thiserror::Error)]
pub enum ResponseSendError {
    /// The client wants no more of it, or its connection ended.
    #[error("the client takes no more of it: {0}")]
    ClientGone(#[from] StreamError),
    /// Its source broke off.
    #[error("the answer broke off at its source: {0}")]
    Source(BoxError),
}

/// Where one answer goes. Dropped before the answer is complete, it resets the stream.
pub struct ResponseSender(RequestStream<Http3SendStream, Bytes>);

impl ResponseSender {
    pub(super) fn new(stream: RequestStream<Http3SendStream, Bytes>) -> Self {
        Self(stream)
    }

    /// Sends the whole answer. `bodiless`: its body must not be sent (HEAD, 204, 304).
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
        hop_headers::strip_hop_headers(&mut head.headers, false);
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
    if let Some(length) = length.filter(|_| !bodiless && !headers.contains_key(CONTENT_LENGTH)) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

impl fmt::Debug for ResponseSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answering")
    }
}
