//! What a handler answers: a whole response, or one whose body goes as it is made.

use std::fmt;

use bytes::Bytes;
use futures_util::Stream;
use nearpath_domain::post::{Draft, Payload};

use crate::body::{self, Body};
use crate::error::Error;
use crate::head::Head;
use crate::message::{Path, Response};

/// An answer whose body comes, or goes, bit by bit.
#[derive(Debug)]
pub struct Streaming {
    /// Without a body.
    pub(crate) response: Response,
    pub(crate) body: Body,
}

impl Streaming {
    /// Status 200 with this body: each piece goes when it is there. A stream that fails breaks the answer off: its reader gets an
    /// error, never an end. When nobody reads any more the stream is dropped.
    pub fn new<S, B, E>(body: S) -> Self
    where
        S: Stream<Item = Result<B, E>> + 'static,
        B: Into<Bytes>,
        E: fmt::Display,
    {
        Self { response: Response::new(""), body: Body::of_own(body::own(body)) }
    }

    /// With another status.
    pub fn with_status(self, status: u16) -> Self {
        Self { response: self.response.with_status(status), ..self }
    }

    /// With a header field more.
    ///
    /// # Errors
    /// [`crate::Kind::Head`] when it is none.
    pub fn with_header(self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, Error> {
        Ok(Self { response: self.response.with_header(name, value)?, ..self })
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        self.response.status()
    }

    /// Whether the status is one of success (200 … 299).
    pub fn is_success(&self) -> bool {
        self.response.is_success()
    }

    /// The first header field of that name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.header(name)
    }

    /// The header fields.
    pub fn head(&self) -> &Head {
        self.response.head()
    }

    /// The way that the call took; none for an answer of one's own.
    pub fn path(&self) -> Option<Path> {
        self.response.path()
    }

    /// What stood against a nearer path: see [`Response::not_nearer`].
    pub fn not_nearer(&self) -> Option<&str> {
        self.response.not_nearer()
    }

    /// The instance that answered, where it is known.
    pub fn instance(&self) -> Option<u64> {
        self.response.instance()
    }

    /// The body, to be read as it comes.
    pub fn body(&mut self) -> &mut Body {
        &mut self.body
    }

    /// Without its body, and that.
    pub fn parted(self) -> (Response, Body) {
        (self.response, self.body)
    }

    /// With these header fields instead of those that it had.
    pub fn with_head(self, head: Head) -> Self {
        Self { response: self.response.with_head(head), ..self }
    }

    /// The body alone.
    pub fn into_body(self) -> Body {
        self.body
    }

    /// With its body put together, up to 64 MB.
    ///
    /// # Errors
    /// As [`Body::whole`].
    pub async fn whole(self) -> Result<Response, Error> {
        let body = self.body.whole().await?;
        Ok(self.response.with_body(body.into()))
    }
}

/// What a handler answers.
#[derive(Debug)]
pub enum Answer {
    /// All of it.
    Whole(Response),
    /// Its body goes as it is made.
    Streaming(Streaming),
}

impl Answer {
    fn with_status(self, status: u16) -> Self {
        match self {
            Self::Whole(response) => Self::Whole(response.with_status(status)),
            Self::Streaming(streaming) => Self::Streaming(streaming.with_status(status)),
        }
    }
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        Self::Whole(response)
    }
}

impl From<Streaming> for Answer {
    fn from(streaming: Streaming) -> Self {
        Self::Streaming(streaming)
    }
}

/// What a handler may return.
pub trait IntoAnswer {
    /// The answer.
    fn into_answer(self) -> Answer;
}

impl IntoAnswer for Answer {
    fn into_answer(self) -> Answer {
        self
    }
}

impl IntoAnswer for Response {
    fn into_answer(self) -> Answer {
        self.into()
    }
}

impl IntoAnswer for Streaming {
    fn into_answer(self) -> Answer {
        self.into()
    }
}

impl IntoAnswer for () {
    fn into_answer(self) -> Answer {
        Response::new(Bytes::new()).into()
    }
}

impl<T: IntoAnswer> IntoAnswer for (u16, T) {
    fn into_answer(self) -> Answer {
        self.1.into_answer().with_status(self.0)
    }
}

/// An error is status 500 with the error's text, and is written to stderr.
impl<T: IntoAnswer, E: fmt::Display> IntoAnswer for Result<T, E> {
    fn into_answer(self) -> Answer {
        self.map_or_else(|error| failed(&error).into(), T::into_answer)
    }
}

fn failed(error: &impl fmt::Display) -> Response {
    eprintln!("nearpath: the handler failed: {error}");
    Response::new(error.to_string()).with_status(500)
}

macro_rules! payloads {
    ($($payload:ty),*) => { $(
        impl IntoAnswer for $payload {
            fn into_answer(self) -> Answer {
                Response::new(self).into()
            }
        }
    )* };
}

payloads!(Payload, Draft, Bytes, Vec<u8>, String, &'static [u8], &'static str);
