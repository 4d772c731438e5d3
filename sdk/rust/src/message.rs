//! Requests and responses.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nearpath_domain::clock;
use nearpath_domain::endpoint::{BodyReader, CallBody, CallerIdentity};
use nearpath_domain::{CallReply, CallResponse, IncomingCall};
pub use nearpath_path::Path;
use nearpath_types::Reason;
use nearpath_types::platform_field::CALLER_FIELD;

use crate::body_stream::{BodySource, BodyStream};
use crate::context::CallContext;
use crate::error::{Error, ErrorKind};
use crate::head::HeaderFields;
use crate::path_header::ReportedPath;

/// A call or event that came in.
#[derive(Debug)]
pub struct Request {
    pub(crate) head: HeaderFields,
    pub(crate) body: CallBody,
    /// Source of the remaining body, for a streaming server.
    pub(crate) source: Option<BodySource>,
    /// None when it came over HTTP.
    pub(crate) caller: Option<Arc<CallerIdentity>>,
    pub(crate) is_event: bool,
    pub(crate) path: Path,
    pub(crate) context: CallContext,
}

impl Request {
    /// Takes what the handler needs; the rest stays to answer with.
    pub(crate) fn from_incoming(incoming: &mut IncomingCall) -> Self {
        let context = CallContext {
            deadline: incoming.deadline,
            trace: incoming.trace,
            span: incoming.span,
        };
        Self {
            head: HeaderFields::from_bytes(incoming.take_head()),
            body: std::mem::take(&mut incoming.body),
            source: incoming.reader.take().map(BodySource::Shm),
            caller: Some(Arc::clone(&incoming.caller)),
            is_event: incoming.is_event,
            path: Path::Shm,
            context,
        }
    }

    /// The method; `POST` when the caller says nothing.
    pub fn method(&self) -> &str {
        self.pseudo_field(":method", "POST")
    }

    /// Path and query after the function's name; `/` when the caller says nothing.
    pub fn path(&self) -> &str {
        self.pseudo_field(":path", "/")
    }

    fn pseudo_field(&self, name: &str, otherwise: &'static str) -> &str {
        self.head
            .get(name)
            .and_then(|value| std::str::from_utf8(value).ok())
            .unwrap_or(otherwise)
    }

    /// The first header field of that name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .get(name)
            .and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The header fields.
    pub fn head(&self) -> &HeaderFields {
        &self.head
    }

    /// The payload. It may lie in shared memory, whose slot is free when the last clone of these bytes is dropped: copy what is
    /// kept. A function of the domain that breaks the rules can change it meanwhile.
    ///
    /// Of a server that streams ([`crate::FunctionServer::streaming`]) it is what has come: see [`Request::into_stream`].
    pub fn body(&self) -> &Bytes {
        self.body.bytes()
    }

    /// The payload alone. Called on with it, or answered with it, nothing is copied, unless somebody keeps bytes of it.
    pub fn into_body(self) -> CallBody {
        self.body
    }

    /// The payload as it comes. It comes so where the server streams; otherwise it is there, and comes in one piece.
    pub fn into_stream(self) -> BodyStream {
        let deadline = self.context.deadline;
        BodyStream::from_source("", self.path, self.body.into(), self.source)
            .with_deadline(deadline)
    }

    /// Takes the payload out, to be read as it comes; the rest of the request stays.
    pub fn take_stream(&mut self) -> BodyStream {
        let (first, rest) = (std::mem::take(&mut self.body).into(), self.source.take());
        BodyStream::from_source("", self.path, first, rest).with_deadline(self.context.deadline)
    }

    /// Returns true if more of the payload may follow, on a streaming server.
    pub fn is_partial(&self) -> bool {
        self.source.is_some()
    }

    /// The payload apart, as a request without anything else: for who reads it in parts and looks at the rest meanwhile.
    pub fn take_payload(&mut self) -> Self {
        let (body, rest) = (self.body.share(), self.source.take());
        let (path, context) = (self.path, self.context);
        Self {
            head: HeaderFields::default(),
            body,
            source: rest,
            caller: None,
            is_event: self.is_event,
            path,
            context,
        }
    }

    /// With a payload that was read from its parts.
    pub fn put_back(&mut self, body: Bytes) {
        self.body = body.into();
    }

    /// The payload in common with this request: as long as both are there, it is copied when it is sent.
    pub fn share_body(&self) -> CallBody {
        self.body.share()
    }

    /// The function that calls, `NAME.NAMESPACE`, as node or gateway say; none for callers outside, and for calls over HTTP.
    pub fn caller(&self) -> Option<&str> {
        let known = self.caller.as_ref().map(|caller| caller.function_name());
        match known {
            Some(Some(name)) => Some(name),
            // The gateway names those for which it calls, and has no name of its own.
            Some(None) => self.header(CALLER_FIELD),
            None => self.header(CALLER_FIELD).filter(|_| self.is_event),
        }
    }

    /// Returns true for an event, which has no answer.
    pub fn is_event(&self) -> bool {
        self.is_event
    }

    /// The topic of an event that was published; none for everything else.
    pub fn topic(&self) -> Option<&str> {
        self.header(":name").filter(|_| self.is_event)
    }

    /// The way that it came.
    pub fn arrival_path(&self) -> Path {
        self.path
    }

    /// How long the caller still waits; none: it did not say.
    pub fn time_left(&self) -> Option<Duration> {
        (self.context.deadline != 0).then(|| clock::time_until(self.context.deadline))
    }
}

/// An answer.
#[derive(Debug, Default)]
pub struct Response {
    status: u16,
    pub(crate) head: HeaderFields,
    body: CallBody,
    path: Option<Path>,
    obstacle: Option<Cow<'static, str>>,
    instance: Option<u64>,
    length: Option<u64>,
}

/// The clone has its body in common with the original: neither is passed on without a copy while the other is there.
impl Clone for Response {
    fn clone(&self) -> Self {
        let Self {
            status,
            head,
            body,
            path,
            obstacle,
            instance,
            length,
        } = self;
        let (head, body, obstacle) = (head.clone(), body.share(), obstacle.clone());
        Self {
            status: *status,
            head,
            body,
            path: *path,
            obstacle,
            instance: *instance,
            length: *length,
        }
    }
}

impl Response {
    /// Status 200 with this body.
    pub fn new(body: impl Into<CallBody>) -> Self {
        Self {
            status: 200,
            body: body.into(),
            ..Self::default()
        }
    }

    /// With another status.
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// With a header field more.
    ///
    /// # Errors
    /// [`ErrorKind::Head`] when it is none.
    pub fn with_header(mut self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.head.push_field(name, value.as_ref())?;
        Ok(self)
    }

    /// The payload in common with this response: as long as both are there, it is copied when it is sent.
    pub fn share_body(&self) -> CallBody {
        self.body.share()
    }

    /// With these header fields instead of those that it had.
    pub fn with_head(mut self, head: HeaderFields) -> Self {
        self.head = head;
        self
    }

    /// Without its body, and that.
    pub(crate) fn into_parts(mut self) -> (Self, Bytes) {
        let body = std::mem::take(&mut self.body);
        (self, body.into())
    }

    pub(crate) fn with_body(mut self, body: CallBody) -> Self {
        self.body = body;
        self
    }

    /// With this body instead of the one that it had.
    pub fn with_payload(self, body: impl Into<CallBody>) -> Self {
        self.with_body(body.into())
    }

    pub(crate) fn with_path_report(self, ReportedPath { path, obstacle }: ReportedPath) -> Self {
        Self {
            path: Some(path),
            obstacle,
            ..self
        }
    }

    /// HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns true for a status of success (200–299).
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The first header field of that name, in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .get(name)
            .and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The header fields.
    pub fn head(&self) -> &HeaderFields {
        &self.head
    }

    /// The payload; as [`Request::body`].
    pub fn body(&self) -> &Bytes {
        self.body.bytes()
    }

    /// The payload alone. Called on with it, or answered with it, nothing is copied, unless somebody keeps bytes of it.
    pub fn into_body(self) -> CallBody {
        self.body
    }

    /// The way that the call took, as the platform tells; none for an answer of one's own.
    pub fn path(&self) -> Option<Path> {
        self.path
    }

    /// Returns the obstacle to a nearer path: a name that `nearpath paths` explains (`caller_no_endpoint`, `no_endpoint`, `no_room`, …).
    pub fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
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

    pub(crate) fn with_length(self, length: Option<u64>) -> Self {
        Self { length, ..self }
    }

    /// Converts a reply of shared memory; an answer of the platform is an error.
    pub(crate) fn from_reply(function: &str, reply: &mut CallReply) -> Result<Self, Error> {
        if reply.is_platform {
            let reason = Reason::ALL
                .iter()
                .find(|reason| **reason as u16 == reply.reason);
            let text = String::from_utf8_lossy(&reply.body).trim_end().to_owned();
            let kind = ErrorKind::Platform {
                status: reply.status,
                reason: reason.map(|reason| reason.name().into()),
                text,
            };
            return Err(Error::new(function, Some(Path::Shm), kind));
        }
        let status = if reply.status == 0 { 200 } else { reply.status };
        let head = HeaderFields::from_bytes(reply.take_head());
        let (path, instance) = (Some(Path::Shm), Some(reply.answered_by.0));
        let length = reply
            .reader
            .as_ref()
            .map_or(Some(reply.body.len() as u64), BodyReader::total_bytes);
        let body = std::mem::take(&mut reply.body);
        Ok(Self {
            status,
            head,
            body,
            path,
            instance,
            length,
            ..Self::default()
        })
    }

    pub(crate) fn into_call_response(self) -> CallResponse {
        let fields = self.head.iter();
        let fields = fields
            .map(|(name, value)| (name.to_owned().into(), Bytes::copy_from_slice(value)))
            .collect();
        CallResponse {
            status: self.status,
            fields,
            body: self.body,
            ..CallResponse::default()
        }
    }
}
