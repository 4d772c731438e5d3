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

use super::transport::SendStream;
use crate::{BoxError, hop};

/// Why an answer did not go as a whole. What was sent of it is reset, so that nobody takes it for complete.
#[derive(Debug, thiserror::Error)]
pub enum Unsent {
    /// The client wants no more of it, or its connection ended.
    #[error("the client takes no more of it: {0}")]
    Gone(#[from] StreamError),
    /// Its source broke off.
    #[error("the answer broke off at its source: {0}")]
    Source(BoxError),
}

/// Where one answer goes. Dropped before the answer is complete, it resets the stream.
pub struct Answering(RequestStream<SendStream, Bytes>);

impl Answering {
    pub(super) fn new(stream: RequestStream<SendStream, Bytes>) -> Self {
        Self(stream)
    }

    /// Sends the whole answer. `bodiless`: its body must not be sent (HEAD, 204, 304).
    ///
    /// # Errors
    /// See [`Unsent`].
    pub async fn send<B>(mut self, answer: Response<B>, bodiless: bool) -> Result<(), Unsent>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let (mut head, body) = answer.into_parts();
        hop::strip(&mut head.headers, false);
        tell_length(&mut head.headers, body.size_hint().exact(), bodiless);
        self.0.send_response(Response::from_parts(head, ())).await?;
        if !bodiless {
            self.body(body).await?;
        }
        self.0.finish().await?;
        Ok(())
    }

    async fn body<B>(&mut self, body: B) -> Result<(), Unsent>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let mut body = pin!(body);
        while let Some(frame) = body.frame().await {
            match frame.map_err(|error| Unsent::Source(error.into()))?.into_data() {
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

fn tell_length(headers: &mut HeaderMap, length: Option<u64>, bodiless: bool) {
    if let Some(length) = length.filter(|_| !bodiless && !headers.contains_key(CONTENT_LENGTH)) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answering")
    }
}
