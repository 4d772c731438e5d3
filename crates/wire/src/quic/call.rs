//! The caller's side: a connection, and calls on its streams.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use nearpath_types::head::BadHead;
use quinn::{ConnectionError, ReadError, RecvStream, SendStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::body::{BodyError, Incoming};
use super::code;
use super::frame::{Answered, Asked};
use super::heads;
use super::rest::Rest;
use super::upload::{self, Outgoing};
use crate::BoxError;
use crate::mutual::is_of_certificates;

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

/// A connection to one worker. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Line {
    connection: quinn::Connection,
    stage: watch::Receiver<Stage>,
    /// Shared with answers, which may go to another thread.
    open: Arc<AtomicU32>,
    /// When the peer's certificate ends, in seconds since 1970.
    until: Rc<Cell<i64>>,
    _rest: Rc<Rest>,
}

/// How far the handshake is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    /// What is sent goes in the first flight.
    Early,
    /// Complete; whether the first flight was taken.
    Done { early: bool },
    /// It failed, or the peer is not admitted.
    Failed(Arc<str>),
    /// Nothing came within this time.
    Silent(Duration),
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The callee has not seen it: making it again is safe.
    #[error("not sent: {0}")]
    Unseen(String),
    /// The head is larger than a head may be.
    #[error("the request's head cannot be sent: {0}")]
    Head(#[from] BadHead),
    /// It went in the first flight, and nothing came back, as where UDP is blocked in one direction or in both; it may have run.
    #[error("no answer over UDP within {0:?}; it may have run")]
    Silent(Duration),
    /// It broke off; it may have run.
    #[error("{0}")]
    Broken(#[from] BodyError),
}

impl Line {
    pub(super) fn new(connection: quinn::Connection, stage: watch::Receiver<Stage>, rest: Duration) -> Self {
        let (open, until) = (Arc::default(), Rc::new(Cell::new(i64::MAX)));
        let rest = Rest::of(&connection, &open, rest);
        Self { connection, stage, open, until, _rest: rest }
    }

    /// The peer has shown this certificate's end.
    pub(super) fn good_until(&self, not_after: i64) {
        self.until.set(not_after);
    }

    /// Whether the peer's certificate has ended: no new calls then.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.until.get() <= crate::identity::seconds(now)
    }

    /// Calls that are under way.
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether no new call can be made.
    pub fn is_closed(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// Whether the handshake is still under way.
    pub fn is_early(&self) -> bool {
        *self.stage.borrow() == Stage::Early
    }

    /// Whether nothing came back in the time that the handshake had: whether calls in its first flight ran is not known.
    pub fn is_silent(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Silent(_))
    }

    /// Measured round trip.
    pub fn rtt(&self) -> Duration {
        self.connection.rtt()
    }

    /// Datagrams that came so far. One that is sent is acknowledged whatever the handler does: where none comes, nothing gets through.
    pub fn received(&self) -> u64 {
        self.connection.stats().udp_rx.datagrams
    }

    /// The connection itself: for its counters, or to watch its end.
    pub fn connection(&self) -> &quinn::Connection {
        &self.connection
    }

    /// Ends the connection; calls that are open break off.
    pub fn close(&self) {
        self.connection.close(code::DONE, b"");
    }

    /// Waits for the handshake: whether the first flight was taken; without one it was not.
    ///
    /// # Errors
    /// [`CallError::Unseen`] when the handshake failed or the peer is not admitted.
    pub async fn settled(&self) -> Result<bool, CallError> {
        let mut stage = self.stage.clone();
        let settled = stage.wait_for(|stage| *stage != Stage::Early).await;
        match settled.as_deref() {
            Ok(Stage::Done { early }) => Ok(*early),
            Ok(Stage::Failed(why)) => Err(CallError::Unseen(why.to_string())),
            Ok(Stage::Silent(limit)) => Err(CallError::Unseen(format!("no answer over UDP within {limit:?}"))),
            Ok(Stage::Early) | Err(_) => Err(CallError::Unseen("the connection's task ended".to_owned())),
        }
    }

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
        let (send, receive) = self.connection.open_bi().await.map_err(|error| CallError::Unseen(error.to_string()))?;
        Ok(Begun { first, send, receive, busy: Busy::new(&self.open) })
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
        Ok(response.map(|()| Answer { incoming, answered, early: false, _upload: upload, _busy: busy }))
    }
}

impl Line {
    fn failed(&self, error: BodyError) -> Failed {
        match *self.stage.borrow() {
            Stage::Silent(limit) => Failed::For(CallError::Silent(limit)),
            Stage::Done { early: false } if is_turned_down(&error) => Failed::For(CallError::Unseen(error.to_string())),
            _ => Failed::of(error),
        }
    }
}

/// Whether the worker did not accept the caller's certificate: without a session it looks at that last of all, when the caller's handshake is
/// complete. Nothing that came was looked at.
fn is_turned_down(error: &BodyError) -> bool {
    /// RFC 9001 section 4.8: TLS alerts as errors of QUIC.
    const ALERTS: u64 = 0x100;
    let BodyError::Stream(ReadError::ConnectionLost(ConnectionError::ConnectionClosed(close))) = error else {
        return false;
    };
    let alert = u64::from(close.error_code).checked_sub(ALERTS).and_then(|alert| u8::try_from(alert).ok());
    alert.is_some_and(is_of_certificates)
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

enum Failed {
    /// The worker did not take the first flight: nothing of it was looked at.
    NotTaken,
    For(CallError),
}

impl Failed {
    fn of(error: BodyError) -> Self {
        match &error {
            BodyError::Stream(ReadError::ZeroRttRejected) => Self::NotTaken,
            BodyError::Stream(ReadError::Reset(number)) if *number == code::UNSEEN => {
                Self::For(CallError::Unseen("the worker is stopping".to_owned()))
            }
            BodyError::Stream(ReadError::ConnectionLost(ConnectionError::ApplicationClosed(close)))
                if [code::FULL, code::REFUSED].contains(&close.error_code) =>
            {
                Self::For(CallError::Unseen(String::from_utf8_lossy(&close.reason).into_owned()))
            }
            _ => Self::For(CallError::Broken(error)),
        }
    }

    fn into_error(self) -> CallError {
        match self {
            Self::For(error) => error,
            Self::NotTaken => CallError::Unseen("the worker did not take the first flight".to_owned()),
        }
    }
}

impl From<CallError> for Failed {
    fn from(error: CallError) -> Self {
        Self::For(error)
    }
}

/// One call that is under way.
#[derive(Debug)]
struct Busy(Arc<AtomicU32>);

impl Busy {
    fn new(open: &Arc<AtomicU32>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The request's body, while the answer is read.
#[derive(Debug)]
struct Upload(AbortHandle);

impl Upload {
    fn of<B>(mut out: Outgoing, first: BytesMut, body: B, announced: bool) -> Self
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let sending = async move {
            let _ = out.send(first, body, announced).await; // the answer tells why
        };
        Self(tokio::task::spawn_local(sending).abort_handle())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body of an answer. Dropped before its end, it tells the worker that nobody waits.
#[derive(Debug)]
pub struct Answer {
    incoming: Incoming<Answered>,
    answered: Answered,
    early: bool,
    _upload: Option<Upload>,
    _busy: Busy,
}

impl Answer {
    /// What was said beside HTTP's head.
    pub fn answered(&self) -> &Answered {
        &self.answered
    }

    /// Whether its request went in the first flight, and was taken.
    pub fn was_early(&self) -> bool {
        self.early
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, BodyError>>> {
        std::pin::Pin::new(&mut self.get_mut().incoming).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.incoming.size_hint()
    }
}
