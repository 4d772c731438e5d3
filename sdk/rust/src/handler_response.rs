//! Responses of handlers: whole, or streamed.

use std::fmt;

use bytes::Bytes;
use futures_util::Stream;
use nearpath_domain::endpoint::{BodyDraft, CallBody};

use crate::body_stream::{self, BodyStream};
use crate::error::Error;
use crate::head::HeaderFields;
use crate::message::{Path, Response};

/// An answer whose body comes, or goes, bit by bit.
#[derive(Debug)]
pub struct StreamingResponse {
    /// Without a body.
    pub(crate) response: Response,
    pub(crate) body: BodyStream,
}

impl StreamingResponse {
    /// Status 200 with this body: each piece goes when it is there. A stream that fails breaks the answer off: its reader gets an
    /// error, never an end. The stream is dropped when its reader is gone.
    pub fn new<S, B, E>(body: S) -> Self
    where
        S: Stream<Item = Result<B, E>> + 'static,
        B: Into<Bytes>,
        E: fmt::Display,
    {
        Self {
            response: Response::new(""),
            body: BodyStream::from_stream(body_stream::boxed_stream(body)),
        }
    }

    /// With another status.
    pub fn with_status(self, status: u16) -> Self {
        Self {
            response: self.response.with_status(status),
            ..self
        }
    }

    /// With a header field more.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Head`] when it is none.
    pub fn with_header(self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, Error> {
        Ok(Self {
            response: self.response.with_header(name, value)?,
            ..self
        })
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        self.response.status()
    }

    /// Returns true for a status of success (200–299).
    pub fn is_success(&self) -> bool {
        self.response.is_success()
    }

    /// The first header field of that name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.header(name)
    }

    /// The header fields.
    pub fn head(&self) -> &HeaderFields {
        self.response.head()
    }

    /// The way that the call took; none for an answer of one's own.
    pub fn path(&self) -> Option<Path> {
        self.response.path()
    }

    /// Returns the obstacle to a nearer path: see [`Response::obstacle`].
    pub fn obstacle(&self) -> Option<&str> {
        self.response.obstacle()
    }

    /// The instance that answered, where it is known.
    pub fn instance(&self) -> Option<u64> {
        self.response.instance()
    }

    /// The body, to be read as it comes.
    pub fn body(&mut self) -> &mut BodyStream {
        &mut self.body
    }

    /// Without its body, and that.
    pub fn into_parts(self) -> (Response, BodyStream) {
        (self.response, self.body)
    }

    /// With these header fields instead of those that it had.
    pub fn with_head(self, head: HeaderFields) -> Self {
        Self {
            response: self.response.with_head(head),
            ..self
        }
    }

    /// The body alone.
    pub fn into_body(self) -> BodyStream {
        self.body
    }

    /// With its body assembled, up to 64 MB.
    ///
    /// # Errors
    /// As [`BodyStream::collect_all`].
    pub async fn collect_body(self) -> Result<Response, Error> {
        let body = self.body.collect_all().await?;
        Ok(self.response.with_body(body.into()))
    }
}

/// Response of a handler.
#[derive(Debug)]
pub enum HandlerResponse {
    /// All of it.
    Whole(Response),
    /// Its body goes as it is made.
    Streaming(StreamingResponse),
}

impl HandlerResponse {
    fn with_status(self, status: u16) -> Self {
        match self {
            Self::Whole(response) => Self::Whole(response.with_status(status)),
            Self::Streaming(streaming) => Self::Streaming(streaming.with_status(status)),
        }
    }
}

impl From<Response> for HandlerResponse {
    fn from(response: Response) -> Self {
        Self::Whole(response)
    }
}

impl From<StreamingResponse> for HandlerResponse {
    fn from(streaming: StreamingResponse) -> Self {
        Self::Streaming(streaming)
    }
}

/// Types that a handler may return.
pub trait IntoResponse {
    /// The answer.
    fn into_response(self) -> HandlerResponse;
}

impl IntoResponse for HandlerResponse {
    fn into_response(self) -> HandlerResponse {
        self
    }
}

impl IntoResponse for Response {
    fn into_response(self) -> HandlerResponse {
        self.into()
    }
}

impl IntoResponse for StreamingResponse {
    fn into_response(self) -> HandlerResponse {
        self.into()
    }
}

impl IntoResponse for () {
    fn into_response(self) -> HandlerResponse {
        Response::new(Bytes::new()).into()
    }
}

impl<T: IntoResponse> IntoResponse for (u16, T) {
    fn into_response(self) -> HandlerResponse {
        self.1.into_response().with_status(self.0)
    }
}

/// An error is status 500 with the error's text, and is written to stderr.
impl<T: IntoResponse, E: fmt::Display> IntoResponse for Result<T, E> {
    fn into_response(self) -> HandlerResponse {
        self.map_or_else(|error| error_response(&error).into(), T::into_response)
    }
}

fn error_response(error: &impl fmt::Display) -> Response {
    eprintln!("nearpath: the handler failed: {error}");
    Response::new(error.to_string()).with_status(500)
}

macro_rules! payloads {
    ($($payload:ty),*) => { $(
        impl IntoResponse for $payload {
            fn into_response(self) -> HandlerResponse {
                Response::new(self).into()
            }
        }
    )* };
}

payloads!(
    CallBody,
    BodyDraft,
    Bytes,
    Vec<u8>,
    String,
    &'static [u8],
    &'static str
);
