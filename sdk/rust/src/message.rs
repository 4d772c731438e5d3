//! What is asked and what is answered.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nearpath_domain::clock;
use nearpath_domain::post::{Caller, Payload, Rest};
use nearpath_domain::{Answer, Incoming, Reply};
use nearpath_types::Reason;

use crate::body::{Body, Source};
use crate::context::Context;
use crate::error::{Error, Kind};
use crate::head::Head;
use crate::way::Told;

/// The way that a call takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// Shared memory of one machine.
    Shm,
    /// Straight to the callee's instance on another machine.
    Direct,
    /// QUIC to another machine.
    Quic,
    /// Through a hole in a NAT.
    Punch,
    /// By a relay.
    Relay,
    /// HTTP over TLS, with certificates on both sides, to another machine.
    Tls,
    /// HTTP through the gateway.
    Http,
}

impl Path {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Direct => "direct",
            Self::Quic => "quic",
            Self::Punch => "punch",
            Self::Relay => "relay",
            Self::Tls => "tls",
            Self::Http => "http",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        use Path::{Direct, Http, Punch, Quic, Relay, Shm, Tls};
        [Shm, Direct, Quic, Punch, Relay, Tls, Http].into_iter().find(|path| path.name() == name)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call or event that came in.
#[derive(Debug)]
pub struct Request {
    pub(crate) head: Head,
    pub(crate) body: Payload,
    /// What follows, for a server that streams.
    pub(crate) rest: Option<Source>,
    /// None when it came over HTTP.
    pub(crate) caller: Option<Arc<Caller>>,
    pub(crate) event: bool,
    pub(crate) path: Path,
    pub(crate) context: Context,
}

impl Request {
    /// Takes what the handler needs; the rest stays to answer with.
    pub(crate) fn of_memory(incoming: &mut Incoming) -> Self {
        let context = Context { deadline: incoming.deadline, trace: incoming.trace, span: incoming.span };
        Self {
            head: Head::received(incoming.take_head()),
            body: std::mem::take(&mut incoming.body),
            rest: incoming.rest.take().map(Source::Near),
            caller: Some(Arc::clone(&incoming.caller)),
            event: incoming.event,
            path: Path::Shm,
            context,
        }
    }

    /// The method; `POST` when the caller says nothing.
    pub fn method(&self) -> &str {
        self.own(":method", "POST")
    }

    /// Path and query after the function's name; `/` when the caller says nothing.
    pub fn path(&self) -> &str {
        self.own(":path", "/")
    }

    fn own(&self, name: &str, otherwise: &'static str) -> &str {
        self.head.get(name).and_then(|value| std::str::from_utf8(value).ok()).unwrap_or(otherwise)
    }

    /// The first header field of that name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The header fields.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The payload. It may lie in shared memory, whose slot is free when the last clone of these bytes is dropped: copy what is
    /// kept. A function of the domain that breaks the rules can change it meanwhile.
    ///
    /// Of a server that streams ([`crate::Server::streaming`]) it is what has come: see [`Request::into_stream`].
    pub fn body(&self) -> &Bytes {
        self.body.bytes()
    }

    /// The payload alone. Called on with it, or answered with it, nothing is copied, unless somebody keeps bytes of it.
    pub fn into_body(self) -> Payload {
        self.body
    }

    /// The payload as it comes. It comes so where the server streams; otherwise it is there, and comes in one piece.
    pub fn into_stream(self) -> Body {
        let deadline = self.context.deadline;
        Body::of("", self.path, self.body.into(), self.rest).until(deadline)
    }

    /// Takes the payload out, to be read as it comes; the rest of the request stays.
    pub fn take_stream(&mut self) -> Body {
        let (first, rest) = (std::mem::take(&mut self.body).into(), self.rest.take());
        Body::of("", self.path, first, rest).until(self.context.deadline)
    }

    /// Whether not all of the payload has come, of a server that streams.
    pub fn is_partial(&self) -> bool {
        self.rest.is_some()
    }

    /// The payload apart, as a request without anything else: for who reads it in parts and looks at the rest meanwhile.
    pub fn payload(&mut self) -> Self {
        let (body, rest) = (self.body.share(), self.rest.take());
        let (path, context) = (self.path, self.context);
        Self { head: Head::default(), body, rest, caller: None, event: self.event, path, context }
    }

    /// With a payload that was read from its parts.
    pub fn put_back(&mut self, body: Bytes) {
        self.body = body.into();
    }

    /// The payload in common with this request: as long as both are there, it is copied when it is sent.
    pub fn share_body(&self) -> Payload {
        self.body.share()
    }

    /// The function that calls, `NAME.NAMESPACE`, as the node says; none when it is the gateway or came over HTTP.
    pub fn caller(&self) -> Option<&str> {
        self.caller.as_ref().and_then(|caller| caller.name())
    }

    /// One way: nobody waits for the answer.
    pub fn is_event(&self) -> bool {
        self.event
    }

    /// The topic of an event that was published; none for everything else.
    pub fn topic(&self) -> Option<&str> {
        self.header(":name").filter(|_| self.event)
    }

    /// The way that it came.
    pub fn came_over(&self) -> Path {
        self.path
    }

    /// How long the caller still waits; none: it did not say.
    pub fn time_left(&self) -> Option<Duration> {
        (self.context.deadline != 0).then(|| clock::until(self.context.deadline))
    }
}

/// An answer.
#[derive(Debug, Default)]
pub struct Response {
    status: u16,
    pub(crate) head: Head,
    body: Payload,
    path: Option<Path>,
    not_nearer: Option<Cow<'static, str>>,
    instance: Option<u64>,
    length: Option<u64>,
}

/// The clone has its body in common with the original: neither is passed on without a copy while the other is there.
impl Clone for Response {
    fn clone(&self) -> Self {
        let Self { status, head, body, path, not_nearer, instance, length } = self;
        let (head, body, not_nearer) = (head.clone(), body.share(), not_nearer.clone());
        Self { status: *status, head, body, path: *path, not_nearer, instance: *instance, length: *length }
    }
}

impl Response {
    /// Status 200 with this body.
    pub fn new(body: impl Into<Payload>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }

    /// With another status.
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// With a header field more.
    ///
    /// # Errors
    /// [`Kind::Head`] when it is none.
    pub fn with_header(mut self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.head.push(name, value.as_ref())?;
        Ok(self)
    }

    /// The payload in common with this response: as long as both are there, it is copied when it is sent.
    pub fn share_body(&self) -> Payload {
        self.body.share()
    }

    /// With these header fields instead of those that it had.
    pub fn with_head(mut self, head: Head) -> Self {
        self.head = head;
        self
    }

    /// Without its body, and that.
    pub(crate) fn parted(mut self) -> (Self, Bytes) {
        let body = std::mem::take(&mut self.body);
        (self, body.into())
    }

    pub(crate) fn with_body(mut self, body: Payload) -> Self {
        self.body = body;
        self
    }

    /// With this body instead of the one that it had.
    pub fn filled(self, body: impl Into<Payload>) -> Self {
        self.with_body(body.into())
    }

    pub(crate) fn came_over(self, Told { path, not_nearer }: Told) -> Self {
        Self { path: Some(path), not_nearer, ..self }
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether the status is one of success (200 … 299).
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first header field of that name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The header fields.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The payload; as [`Request::body`].
    pub fn body(&self) -> &Bytes {
        self.body.bytes()
    }

    /// The payload alone. Called on with it, or answered with it, nothing is copied, unless somebody keeps bytes of it.
    pub fn into_body(self) -> Payload {
        self.body
    }

    /// The way that the call took, as the platform tells; none for an answer of one's own.
    pub fn path(&self) -> Option<Path> {
        self.path
    }

    /// What stood against a nearer path: a name that `nearpath paths` explains (`caller_no_party`, `no_party`, `no_room`, …).
    pub fn not_nearer(&self) -> Option<&str> {
        self.not_nearer.as_deref()
    }

    /// The instance that answered, where it is known.
    pub fn instance(&self) -> Option<u64> {
        self.instance
    }

    /// Bytes of the whole body of an answer that came, as its sender said; none when it did not know. To a HEAD that is what the body
    /// would have had.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    pub(crate) fn of_length(self, length: Option<u64>) -> Self {
        Self { length, ..self }
    }

    /// What came through memory; an answer of the platform is an error.
    pub(crate) fn of_memory(function: &str, reply: &mut Reply) -> Result<Self, Error> {
        if reply.platform {
            let reason = Reason::ALL.iter().find(|reason| **reason as u16 == reply.reason);
            let text = String::from_utf8_lossy(&reply.body).trim_end().to_owned();
            let kind = Kind::Platform { status: reply.status, reason: reason.map(|reason| reason.name().into()), text };
            return Err(Error::new(function, Some(Path::Shm), kind));
        }
        let status = if reply.status == 0 { 200 } else { reply.status };
        let head = Head::received(reply.take_head());
        let (path, instance) = (Some(Path::Shm), Some(reply.from.0));
        let length = reply.rest.as_ref().map_or(Some(reply.body.len() as u64), Rest::total);
        let body = std::mem::take(&mut reply.body);
        Ok(Self { status, head, body, path, instance, length, ..Self::default() })
    }

    pub(crate) fn into_answer(self) -> Answer {
        let fields = self.head.iter();
        let fields = fields.map(|(name, value)| (name.to_owned().into(), Bytes::copy_from_slice(value))).collect();
        Answer { status: self.status, fields, body: self.body, ..Answer::default() }
    }
}
