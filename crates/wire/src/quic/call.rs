//! The caller's side: calls on a line's streams, in its first flight where they may go there.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use quinn::{RecvStream, SendStream};

use super::answer::{Answer, Busy, Upload};
use super::body::Incoming;
use super::failed::{CallError, Failed};
use super::frame::{Answered, Asked};
use super::heads;
use super::line::Line;
use super::upload::{self, Outgoing};
use crate::BoxError;

/// Whether a request may go in the first flight (`zero_rtt` of a function).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Early {
    /// It waits for the handshake.
    Never,
    /// It goes at once, if there is a session.
    Allowed,
}

/// What a call says of itself beside HTTP's head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Terms {
    /// How long the caller will wait; `None`: it does not say.
    pub patience: Option<Duration>,
    /// Trace id and the parent's span id (W3C Trace Context); zeros: none.
    pub trace: ([u8; 16], [u8; 8]),
}

impl Line {
    /// Calls: sends the request, and returns when the answer begins. The body goes on beside it, until the answer is dropped.
    /// In the first flight goes only what could be sent again if the worker does not take it: a request whose body is
    /// there as a whole. Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call<B>(&self, request: Request<B>, early: Early) -> Result<Response<Answer>, CallError>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let (head, body) = request.into_parts();
        let empty = body.is_end_stream();
        if self.is_early() && empty {
            return self.call_whole_of(&head, Bytes::new(), early, Terms::default()).await;
        }
        self.settled().await?; // a body that can be repeated is made so by the caller: `call_whole`
        self.call_of(&head, body, Terms::default()).await.map_err(|(error, _)| error)
    }

    /// As [`call`](Self::call), with a body that is there as a whole, so that it can go in the first flight.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_whole(&self, request: Request<Bytes>, early: Early) -> Result<Response<Answer>, CallError> {
        let (head, body) = request.into_parts();
        self.call_whole_of(&head, body, early, Terms::default()).await
    }

    /// As [`call_whole`](Self::call_whole), and leaves the request with who may have to make it elsewhere.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_whole_of(
        &self,
        head: &http::request::Parts,
        body: Bytes,
        early: Early,
        terms: Terms,
    ) -> Result<Response<Answer>, CallError> {
        let whole = || http_body_util::Full::new(body.clone());
        let (asked, announced) = asked(&whole(), head, terms);
        if self.is_early() && early == Early::Allowed {
            match self.once(&asked, head, whole(), announced).await {
                Ok(answer) => return Ok(answer.map(|answer| Answer { early: true, ..answer })),
                Err(Failed::NotTaken) => {} // the worker did not decrypt it
                Err(Failed::For(error)) => return Err(error),
            }
        }
        self.settled().await?;
        self.once(&asked, head, whole(), announced).await.map_err(Failed::into_error)
    }

    /// As [`call`](Self::call), once the handshake is complete. The head stays with the caller; the body is given back when the call was not
    /// made at all.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_of<B>(
        &self,
        head: &http::request::Parts,
        body: B,
        terms: Terms,
    ) -> Result<Response<Answer>, (CallError, Option<B>)>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let (asked, announced) = asked(&body, head, terms);
        match self.begin(&asked, head).await {
            Ok(begun) => self.go_on(begun, body, announced).await.map_err(|failed| (failed.into_error(), None)),
            Err(error) => Err((error, Some(body))),
        }
    }

    async fn once<B>(
        &self,
        asked: &Asked,
        head: &http::request::Parts,
        body: B,
        announced: bool,
    ) -> Result<Response<Answer>, Failed>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let begun = self.begin(asked, head).await?;
        self.go_on(begun, body, announced).await
    }

    /// A stream, and what is to be sent on it first.
    async fn begin(&self, asked: &Asked, head: &http::request::Parts) -> Result<Begun, CallError> {
        let mut first = BytesMut::with_capacity(512);
        heads::write_asked(asked, head, &mut first)?;
        let (send, receive) =
            self.connection().open_bi().await.map_err(|error| CallError::Unseen(error.to_string()))?;
        Ok(Begun { first, send, receive, busy: Busy::of(&self.load) })
    }

    async fn go_on<B>(&self, begun: Begun, body: B, announced: bool) -> Result<Response<Answer>, Failed>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let Begun { first, send, receive, busy } = begun;
        let (mut out, mut incoming) = (Outgoing::new(send), Incoming::<Answered>::new(receive));
        let upload = match body.is_end_stream() || body.size_hint().exact().is_some_and(|size| size <= SHORT) {
            true => {
                let _ = out.send(first, body, announced).await; // the answer tells why
                None
            }
            false => Some(Upload::of(out, first, body, announced)),
        };
        let (answered, head) = incoming.opening().await.map_err(|error| self.failed(error))?;
        let response = heads::response(&answered, &head).map_err(|fault| Failed::of(fault.into()))?;
        Ok(response.map(|()| Answer { incoming, answered, early: false, _upload: upload, busy }))
    }
}

/// A stream that nothing was sent on.
struct Begun {
    first: BytesMut,
    send: SendStream,
    receive: RecvStream,
    busy: Busy,
}

/// Bytes of a body that is sent before the answer is looked for: less than any window.
const SHORT: u64 = 64 * 1024;

fn asked<B: Body>(body: &B, head: &http::request::Parts, terms: Terms) -> (Asked, bool) {
    let total = upload::total(body, &head.headers);
    let patience = terms.patience.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
    let asked = Asked { event: false, total, patience, trace: terms.trace.0, span: terms.trace.1 };
    (asked, total != super::frame::UNKNOWN)
}
