//! The caller's side: connections, and calls on their streams.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use nearpath_types::head::BadHead;
use nearpath_types::spiffe::Role;
use quinn::{ClientConfig, ConnectError, ConnectionError, Endpoint, ReadError, ZeroRttAccepted};
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::body::{BodyError, Incoming};
use super::code;
use super::config::IDLE;
use super::frame::{Answered, Asked};
use super::heads;
use super::rest::Rest;
use super::upload::{self, Outgoing};
use crate::BoxError;
use crate::identity::{Peer, Refusal, Trust};

/// Whether a request may go in the first flight (`zero_rtt` of a function).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Early {
    /// It waits for the handshake.
    Never,
    /// It goes at once, if there is a session.
    Allowed,
}

/// Opens connections of one thread: one UDP socket.
#[derive(Debug, Clone)]
pub struct Dialer {
    endpoint: Endpoint,
    config: ClientConfig,
    trust: Trust,
    rest: Duration,
}

/// A connection to one worker. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Line {
    connection: quinn::Connection,
    stage: watch::Receiver<Stage>,
    open: Rc<Cell<u32>>,
    _rest: Rc<Rest>,
}

/// How far the handshake is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// What is sent goes in the first flight.
    Early,
    /// Complete; whether the first flight was taken.
    Done { early: bool },
    /// It failed, or the peer is not admitted.
    Failed(Arc<str>),
    /// Nothing came within this time.
    Silent(Duration),
}

/// Why there is no connection. Nothing was sent that could have run.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name is none, or the endpoint is closed.
    #[error("cannot call {addr}: {source}")]
    Begin {
        /// Where to.
        addr: SocketAddr,
        /// Why.
        source: ConnectError,
    },
    /// No answer, a refusal, or no common protocol.
    #[error("cannot connect to {addr}: {source}")]
    Handshake {
        /// Where to.
        addr: SocketAddr,
        /// Why.
        source: ConnectionError,
    },
    /// The peer did not answer in time.
    #[error("cannot connect to {addr}: no answer over UDP within {limit:?}")]
    Timeout {
        /// Where to.
        addr: SocketAddr,
        /// How long was waited.
        limit: Duration,
    },
    /// Another one than was called.
    #[error("{addr} is not who was called: {refusal}")]
    Peer {
        /// Where to.
        addr: SocketAddr,
        /// Why.
        refusal: Refusal,
    },
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

impl Dialer {
    /// On this endpoint, as `config` says ([`super::config::caller`]).
    pub fn new(endpoint: Endpoint, config: ClientConfig, trust: Trust) -> Self {
        Self { endpoint, config, trust, rest: IDLE }
    }

    /// Ends connections on which nobody has called for so long, up to twice that; [`IDLE`] unless told otherwise.
    #[must_use]
    pub fn resting(self, rest: Duration) -> Self {
        Self { rest, ..self }
    }

    /// Opens a connection to the incarnation `name`; at once, if there is a session for it. Either way the handshake ends within `limit`.
    /// Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// See [`DialError`].
    pub async fn dial(&self, addr: SocketAddr, name: &str, limit: Duration) -> Result<Line, DialError> {
        let begun = self.endpoint.connect_with(self.config.clone(), addr, name);
        let connecting = begun.map_err(|source| DialError::Begin { addr, source })?;
        match connecting.into_0rtt() {
            Ok((connection, accepted)) => Ok(self.early(connection, accepted, name, limit)),
            Err(connecting) => {
                let done = tokio::time::timeout(limit, connecting).await;
                let done = done.map_err(|_| DialError::Timeout { addr, limit })?;
                let connection = done.map_err(|source| DialError::Handshake { addr, source })?;
                self.check(&connection, name).map_err(|refusal| DialError::Peer { addr, refusal })?;
                Ok(Line::new(connection, watch::channel(Stage::Done { early: false }).1, self.rest))
            }
        }
    }

    fn early(&self, connection: quinn::Connection, accepted: ZeroRttAccepted, name: &str, limit: Duration) -> Line {
        let (tell, stage) = watch::channel(Stage::Early);
        let (dialer, name, one) = (self.clone(), name.to_owned(), connection.clone());
        tokio::task::spawn_local(async move {
            let Ok(early) = tokio::time::timeout(limit, accepted).await else {
                tell.send_replace(Stage::Silent(limit)); // before the calls break
                return one.close(code::DONE, b"");
            };
            tell.send_replace(dialer.outcome(&one, &name, early));
        });
        Line::new(connection, stage, self.rest)
    }

    fn outcome(&self, connection: &quinn::Connection, name: &str, early: bool) -> Stage {
        if let Some(error) = connection.close_reason() {
            return Stage::Failed(error.to_string().into());
        }
        self.check(connection, name)
            .map_or_else(|refusal| Stage::Failed(refusal.to_string().into()), |_| Stage::Done { early })
    }

    /// rustls has checked chain and name; what it does not know is when a certificate was taken back.
    fn check(&self, connection: &quinn::Connection, name: &str) -> Result<Peer, Refusal> {
        let checked = self.trust.admit(&certificates(connection), SystemTime::now());
        let checked = checked.and_then(|peer| match (&peer.id.role, peer.name == name) {
            (Role::Instance(..), true) => Ok(peer),
            (_, true) => Err(Refusal::NoInstance(peer.id)),
            (_, false) => Err(Refusal::Unreadable(format!("it is called {}", peer.name))),
        });
        if let Err(refusal) = &checked {
            connection.close(code::REFUSED, refusal.to_string().as_bytes());
        }
        checked
    }
}

/// What the peer showed, now or when the session began.
pub(super) fn certificates(connection: &quinn::Connection) -> Vec<CertificateDer<'static>> {
    let shown = connection.peer_identity().and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    shown.map(|shown| *shown).unwrap_or_default()
}

impl Line {
    fn new(connection: quinn::Connection, stage: watch::Receiver<Stage>, rest: Duration) -> Self {
        let open = Rc::default();
        let rest = Rest::of(&connection, &open, rest);
        Self { connection, stage, open, _rest: rest }
    }

    /// Calls that are under way.
    pub fn open(&self) -> u32 {
        self.open.get()
    }

    /// Whether no new call can be made.
    pub fn is_closed(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// Whether the handshake is still under way.
    pub fn is_early(&self) -> bool {
        *self.stage.borrow() == Stage::Early
    }

    /// Measured round trip.
    pub fn rtt(&self) -> Duration {
        self.connection.rtt()
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
        if self.is_early() && (early == Early::Never || !empty) {
            // A body that can be repeated is made so by the caller: `call_whole`.
            self.settled().await?;
        }
        if self.is_early() {
            return self.call_whole_of(&head, Bytes::new()).await;
        }
        let (asked, announced) = asked(&body, &head);
        self.once(&asked, &head, body, announced).await.map_err(Failed::into_error)
    }

    /// As [`call`](Self::call), with a body that is there as a whole, so that it can go in the first flight.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_whole(&self, request: Request<Bytes>, early: Early) -> Result<Response<Answer>, CallError> {
        let (head, body) = request.into_parts();
        if self.is_early() && early == Early::Never {
            self.settled().await?;
        }
        self.call_whole_of(&head, body).await
    }

    async fn call_whole_of(&self, head: &http::request::Parts, body: Bytes) -> Result<Response<Answer>, CallError> {
        let whole = || http_body_util::Full::new(body.clone());
        let (asked, announced) = asked(&whole(), head);
        match self.once(&asked, head, whole(), announced).await {
            Err(Failed::NotTaken) => {
                self.settled().await?; // the worker did not decrypt it
                self.once(&asked, head, whole(), announced).await.map_err(Failed::into_error)
            }
            other => other.map_err(Failed::into_error),
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
        let mut first = BytesMut::with_capacity(512);
        heads::write_asked(asked, head, &mut first).map_err(CallError::Head)?;
        let (send, receive) = self.connection.open_bi().await.map_err(|error| CallError::Unseen(error.to_string()))?;
        let busy = Busy::new(&self.open);
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
        Ok(response.map(|()| Answer { incoming, answered, _upload: upload, _busy: busy }))
    }
}

impl Line {
    fn failed(&self, error: BodyError) -> Failed {
        match *self.stage.borrow() {
            Stage::Silent(limit) => Failed::For(CallError::Silent(limit)),
            _ => Failed::of(error),
        }
    }
}

/// Bytes of a body that is sent before the answer is looked for: less than any window.
const SHORT: u64 = 64 * 1024;

fn asked<B: Body>(body: &B, head: &http::request::Parts) -> (Asked, bool) {
    let total = upload::total(body, &head.headers);
    let asked = Asked { event: false, total, patience: 0, trace: [0; 16], span: [0; 8] };
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
                if close.error_code == code::FULL =>
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
struct Busy(Rc<Cell<u32>>);

impl Busy {
    fn new(open: &Rc<Cell<u32>>) -> Self {
        open.set(open.get() + 1);
        Self(open.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
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
    _upload: Option<Upload>,
    _busy: Busy,
}

impl Answer {
    /// What was said beside HTTP's head.
    pub fn answered(&self) -> &Answered {
        &self.answered
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
