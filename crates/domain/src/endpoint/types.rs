//! Requests, responses and errors of calls.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use nearpath_shm::head;
use nearpath_types::{FunctionId, InstanceId, Reason};

use super::body_reader::BodyReader;
use super::caller_field::{encode_caller, set_caller};
pub use super::errors::{BodyUnwanted, CallError, UnsentReason};
use super::payload::CallBody;
use crate::clock::MonotonicNanos;

/// Kind of endpoint that takes the calls of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalleeKind {
    /// Its watchdog, for code that does not use shared memory.
    Watchdog,
    /// The function's code.
    Code,
}

/// Fields of a head, in order.
pub type FieldSlice<'a> = &'a [(&'a str, &'a [u8])];
/// An owned head field.
pub type OwnedField = (Cow<'static, str>, Bytes);

/// A request to send.
#[derive(Debug, Clone, Default)]
pub struct CallRequest<'a> {
    /// Head fields: `:method` and `:path` as in HTTP/2, headers in lower case.
    pub fields: FieldSlice<'a>,
    /// Body; cheap to clone, so that another path can be tried.
    pub body: Bytes,
    /// Deadline ([`crate::clock`]); 0: none.
    pub deadline: MonotonicNanos,
    /// W3C trace id.
    pub trace: [u8; 16],
    /// Span id of the parent.
    pub span: [u8; 8],
}

/// A response to send.
#[derive(Debug, Default)]
pub struct CallResponse {
    /// HTTP status, or 0.
    pub status: u16,
    /// Reason code of `contract/reasons.toml`, or 0.
    pub reason: u16,
    /// True if the platform responds, not the function.
    pub is_platform: bool,
    /// Head fields.
    pub fields: Vec<OwnedField>,
    /// Body. One in a slot is sent in place: a draft, or a received body.
    pub body: CallBody,
}

impl CallResponse {
    /// Creates a response of status 200 with this body.
    pub fn ok(body: impl Into<CallBody>) -> Self {
        Self {
            status: 200,
            body: body.into(),
            ..Self::default()
        }
    }

    /// Creates an error of the platform. The text names the setting and the remedy.
    pub fn platform_error(reason: Reason, text: &'static str) -> Self {
        let (status, reason) = (reason.status(), reason as u16);
        Self {
            status,
            reason,
            is_platform: true,
            body: text.into(),
            ..Self::default()
        }
    }
}

/// A received response. The body may lie in shared memory: drop it early, and before the endpoint.
#[derive(Debug)]
pub struct CallReply {
    /// HTTP status, or 0.
    pub status: u16,
    /// Reason code of `contract/reasons.toml`; 0 unless the platform responded.
    pub reason: u16,
    /// True if the callee's watchdog responded for the platform. An endpoint of the function's own
    /// cannot: its responses are the function's.
    pub is_platform: bool,
    /// The responding instance.
    pub answered_by: InstanceId,
    pub(crate) head: Vec<u8>,
    /// Body, without a copy if it arrived in one message; the first part when `reader` is set.
    pub body: CallBody,
    /// Reader of the remaining parts, when bodies are streamed.
    pub reader: Option<BodyReader>,
}

impl CallReply {
    /// Returns true if the callee's platform reports that the function did not run: the call may be
    /// retried on another path.
    pub fn did_not_run(&self) -> bool {
        let reason = || {
            Reason::ALL
                .iter()
                .find(|reason| **reason as u16 == self.reason)
        };
        self.is_platform && reason().is_some_and(|reason| reason.did_not_run())
    }

    /// Returns the head fields, which were validated on receipt.
    pub fn head_fields(&self) -> head::HeadFields<'_> {
        head::HeadFields::new(&self.head)
    }

    /// Takes the head out; [`head::HeadFields`] parses it.
    pub fn take_head(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.head)
    }
}

/// Identity of a caller, as reported by the node, not by the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerIdentity {
    /// Function of the caller; none for the gateway.
    pub function: Option<FunctionId>,
    /// Instance of the caller; none for the gateway.
    pub instance: Option<InstanceId>,
    /// Formatted once for all its calls.
    function_name: Option<Box<str>>,
    /// The field that names the function to handlers; empty for the gateway.
    encoded_field: Vec<u8>,
}

impl CallerIdentity {
    pub(crate) fn new(function: Option<FunctionId>, instance: Option<InstanceId>) -> Self {
        let name = function
            .as_ref()
            .map(|function| function.to_string().into_boxed_str());
        Self {
            function,
            instance,
            encoded_field: name.as_deref().map(encode_caller).unwrap_or_default(),
            function_name: name,
        }
    }

    /// Names the caller in the head of its call. The gateway names its own callers; every other
    /// caller's fields of the platform are dropped. `None`: the head has no room for the name.
    pub(super) fn sign_head(&self, head: Vec<u8>) -> Option<Vec<u8>> {
        match self.encoded_field.is_empty() {
            true => Some(head),
            false => set_caller(head, &self.encoded_field),
        }
    }

    /// Returns the bytes that [`Self::sign_head`] adds.
    pub(super) fn added_bytes(&self) -> usize {
        self.encoded_field.len()
    }

    /// Returns the function as `NAME.NAMESPACE`; none for the gateway.
    pub fn function_name(&self) -> Option<&str> {
        self.function_name.as_deref()
    }
}

/// A received call or event. A call must be answered, once.
#[derive(Debug)]
pub struct IncomingCall {
    /// The caller.
    pub caller: Arc<CallerIdentity>,
    /// True for an event, which has no response.
    pub is_event: bool,
    /// Deadline of the caller; 0: none.
    pub deadline: MonotonicNanos,
    /// W3C trace id.
    pub trace: [u8; 16],
    /// Span id of the parent.
    pub span: [u8; 8],
    pub(crate) head: Vec<u8>,
    /// Body, without a copy if it arrived in one message; the first part when `reader` is set.
    pub body: CallBody,
    /// Reader of the remaining parts, when bodies are streamed.
    pub reader: Option<BodyReader>,
    pub(crate) channel: u32,
    pub(crate) call: u64,
}

impl IncomingCall {
    /// Returns the head fields, which were validated on receipt.
    pub fn head_fields(&self) -> head::HeadFields<'_> {
        head::HeadFields::new(&self.head)
    }

    /// Takes the head out; [`head::HeadFields`] parses it.
    pub fn take_head(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.head)
    }
}

/// Result of publishing an event. The event may still be lost with its receiver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublishReport {
    /// Subscribed functions to one of whose instances the event was sent. Those that run on other
    /// nodes alone count as one.
    pub sent: usize,
    /// Subscribed functions whose instances had no room; those on other nodes as above.
    pub missed: usize,
}
