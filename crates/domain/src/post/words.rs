//! What callers and handlers say to each other.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use nearpath_shm::channel::State;
use nearpath_shm::head;
use nearpath_types::{FunctionId, InstanceId, Reason};

use super::payload::Payload;
use super::rest::Rest;
use crate::clock::Nanos;
use crate::protocol::Lack;

/// Fields of a head, in order.
pub type Fields<'a> = &'a [(&'a str, &'a [u8])];
/// A field with an owner.
pub type OwnedField = (Cow<'static, str>, Bytes);

/// What is asked.
#[derive(Debug, Clone, Default)]
pub struct Request<'a> {
    /// The head: `:method` and `:path` as for HTTP, headers by their lower-case names.
    pub fields: Fields<'a>,
    /// The body; cheap to clone, so that it can go another way when it was not sent.
    pub body: Bytes,
    /// See [`crate::clock`]; 0: none.
    pub deadline: Nanos,
    /// Trace id (W3C).
    pub trace: [u8; 16],
    /// The parent's span id.
    pub span: [u8; 8],
}

/// What is answered.
#[derive(Debug, Default)]
pub struct Answer {
    /// HTTP status, or 0 where there is none.
    pub status: u16,
    /// A number of `contract/reasons.toml`, or 0.
    pub reason: u16,
    /// The platform says so, not the function.
    pub platform: bool,
    /// The head.
    pub fields: Vec<OwnedField>,
    /// The body. One that lies in a slot goes out where it lies: a draft, or one that came and is passed on.
    pub body: Payload,
}

impl Answer {
    /// Status 200 with this body.
    pub fn ok(body: impl Into<Payload>) -> Self {
        Self { status: 200, body: body.into(), ..Self::default() }
    }

    /// An error that the platform makes, with a text for people: which setting, and what to do.
    pub fn platform(reason: Reason, text: &'static str) -> Self {
        let (status, reason) = (reason.status(), reason as u16);
        Self { status, reason, platform: true, body: text.into(), ..Self::default() }
    }
}

/// The answer as it came. The body may lie in shared memory: do not keep it longer than needed, and not longer than the post.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status, or 0.
    pub status: u16,
    /// A number of `contract/reasons.toml`, or 0.
    pub reason: u16,
    /// The platform says so, not the function.
    pub platform: bool,
    /// Who answered.
    pub from: InstanceId,
    pub(crate) head: Vec<u8>,
    /// The body, without a copy when it came in one message; its first part when there is a rest.
    pub body: Payload,
    /// What follows, for a party that takes bodies as they come.
    pub rest: Option<Rest>,
}

impl Reply {
    /// Whether the callee's platform says that its code has not seen the call, because it is full or stops: the call may go
    /// another way.
    pub fn did_not_run(&self) -> bool {
        let reason = || Reason::ALL.iter().find(|reason| **reason as u16 == self.reason);
        self.platform && reason().is_some_and(|reason| reason.did_not_run())
    }

    /// The head's fields, checked when they came.
    pub fn fields(&self) -> head::Fields<'_> {
        head::Fields::new(&self.head)
    }

    /// The head for who keeps it; [`head::Fields`] reads it. Nothing is left here.
    pub fn take_head(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.head)
    }
}

/// Who calls. What the node says, not the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its function; none for the gateway.
    pub function: Option<FunctionId>,
    /// Its instance; none for the gateway.
    pub instance: Option<InstanceId>,
    /// Written once for all its calls.
    name: Option<Box<str>>,
}

impl Caller {
    pub(crate) fn new(function: Option<FunctionId>, instance: Option<InstanceId>) -> Self {
        let name = function.as_ref().map(|function| function.to_string().into());
        Self { function, instance, name }
    }

    /// Its function as text, `NAME.NAMESPACE`; none for the gateway.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// A call or event that came in. A call must be answered, once.
#[derive(Debug)]
pub struct Incoming {
    /// Who calls.
    pub caller: Arc<Caller>,
    /// One way: nobody waits for an answer.
    pub event: bool,
    /// When the caller gives up; 0: never.
    pub deadline: Nanos,
    /// Trace id (W3C).
    pub trace: [u8; 16],
    /// The parent's span id.
    pub span: [u8; 8],
    pub(crate) head: Vec<u8>,
    /// The body, without a copy when it came in one message; its first part when there is a rest.
    pub body: Payload,
    /// What follows, for a party that takes bodies as they come.
    pub rest: Option<Rest>,
    pub(crate) channel: u32,
    pub(crate) call: u64,
}

impl Incoming {
    /// The head's fields, checked when they came.
    pub fn fields(&self) -> head::Fields<'_> {
        head::Fields::new(&self.head)
    }

    /// The head for who keeps it longer than the message; [`head::Fields`] reads it. Nothing is left here.
    pub fn take_head(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.head)
    }
}

/// Why nothing was sent: the caller may go another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// No edge, or no instance that is ready.
    #[error("no peer of that name: the edge is not declared, or no instance is ready on this machine")]
    NoPeer,
    /// The node could make no channel to it, and tries again.
    #[error("no channel to that function could be made: {0}")]
    NoChannel(Lack),
    /// Every instance has as many calls as it may have.
    #[error("no instance has credit for another call")]
    NoCredit,
    /// The pool has no free slot of that size, or the party holds as much as it may.
    #[error("no free slot in the domain's pool")]
    NoSlot,
    /// The head does not fit into the largest slot, or a field is none.
    #[error("the head is too large or holds what a head may not hold")]
    Head,
    /// The slot that the body lay in was taken from this party: nothing is left that could go another way.
    #[error("the slot of the body is no longer this party's")]
    Lost,
    /// The channel was closed meanwhile.
    #[error("the channel is closed: {0:?}")]
    Closed(State),
}

/// To how many functions an event went. It may still be lost with its receiver: nobody answers, nobody keeps it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Published {
    /// Functions that subscribe and to one of whose instances it was sent.
    pub sent: usize,
    /// Functions that subscribe and whose instances had no room for it.
    pub missed: usize,
}

/// Nobody wants more of a body: the call has ended, was given up, or the peer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side takes no more of this body")]
pub struct NotWanted;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer has not seen it.
    #[error("not sent: {0}")]
    Unsent(#[from] Unsent),
    /// The peer died, or broke the rules, after it was sent: it may have been executed.
    #[error("the called instance died before it answered")]
    Died,
    /// The deadline passed after it was sent; the peer has been told.
    #[error("no answer before the deadline")]
    Timeout,
    /// The peer gave up in the middle of its answer or call.
    #[error("the peer broke its message off")]
    BrokenOff,
    /// The answer is larger than the caller takes, or its head is faulty.
    #[error("the answer is larger than {0} bytes, or its head is faulty")]
    BadAnswer(usize),
}
