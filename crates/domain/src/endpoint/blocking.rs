//! An endpoint of one thread: it sleeps in its wakeup cell, and every wait also receives.
//!
//! While a handler waits for a response, incoming calls are queued, and handled when the handler is
//! done. So no second thread and no lock are needed, and a chain of calls costs one wakeup per hop.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use nearpath_shm::WakeupSignal;

use super::body_reader::BodyReader;
use super::endpoint_core::EndpointCore;
use super::join::{self, EndpointIdentity, EndpointSettings, JoinError, SOCKET_CHECK_INTERVAL};
use super::payload::{BodyDraft, BodySource, CallBody};
use super::send_queue::BodyExtent;
use super::types::{
    BodyUnwanted, CallError, CallReply, CallRequest, CallResponse, IncomingCall, PublishReport,
    UnsentReason,
};
use crate::clock::{self, MonotonicNanos};
use crate::peer_table::{CallDestination, CallNumber};
use crate::protocol::{EndpointMessage, WakeupMode};

/// Endpoint of one thread; see the module documentation.
#[derive(Debug)]
pub struct BlockingEndpoint {
    core: EndpointCore,
    identity: EndpointIdentity,
}

/// A call without a response yet. Pass it to [`BlockingEndpoint::wait_response`] or
/// [`BlockingEndpoint::cancel_call`].
#[derive(Debug)]
#[must_use = "a response without a waiter is kept as long as the endpoint"]
pub struct PendingCall(CallNumber);

/// A body that is being written. Pass it to [`BlockingEndpoint::finish_body`] or
/// [`BlockingEndpoint::abort_body`].
#[derive(Debug)]
#[must_use = "a body that is not finished is waited for"]
pub struct OpenBody {
    channel: u32,
    call: u64,
}

impl BlockingEndpoint {
    /// Joins over a connected socket. Serving starts with [`BlockingEndpoint::announce_ready`].
    pub fn join(socket: OwnedFd, settings: EndpointSettings) -> Result<Self, JoinError> {
        let joined = join::join_domain(socket, WakeupMode::Futex, &settings)?;
        let place = joined.identity.clone();
        Ok(Self {
            core: EndpointCore::new(joined, settings),
            identity: place,
        })
    }

    /// Joins over the socket at `path`, which `NEARPATH_DISPATCH` names inside an instance.
    pub fn dial(path: &Path, settings: EndpointSettings) -> Result<Self, JoinError> {
        Self::join(join::connect_socket(path)?, settings)
    }

    /// Returns the identity that the node assigned.
    pub fn identity(&self) -> &EndpointIdentity {
        &self.identity
    }

    /// Announces to the node that calls may arrive.
    pub fn announce_ready(&mut self) -> io::Result<()> {
        self.core.send_to_node(&EndpointMessage::Ready {})
    }

    /// Returns the functions that can be called now.
    pub fn callable_functions(&mut self) -> Vec<nearpath_types::FunctionId> {
        self.core.run_once(clock::monotonic_now());
        self.core.callable_functions()
    }

    /// Calls and waits for the response.
    pub fn call(
        &mut self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
    ) -> Result<CallReply, CallError> {
        let pending = self.begin_call(to, request)?;
        self.wait_response(pending)
    }

    /// Returns a zeroed draft that is sent in place. Without a free slot of that size it is private
    /// memory, and is copied when sent.
    pub fn draft_body(&mut self, bytes: usize) -> BodyDraft {
        self.draft_body_in_slot(bytes)
            .unwrap_or_else(|| BodyDraft::in_private_memory(bytes))
    }

    /// As [`BlockingEndpoint::draft_body`]; none when no slot is free.
    pub fn draft_body_in_slot(&mut self, bytes: usize) -> Option<BodyDraft> {
        self.core.claim_draft(bytes)
    }

    /// Sends a call without waiting, for several calls at once.
    pub fn begin_call(
        &mut self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
    ) -> Result<PendingCall, UnsentReason> {
        self.begin_call_from(to, request, BodySource::Borrowed(&request.body))
    }

    /// As [`BlockingEndpoint::begin_call`] with this body. A body in a slot is moved out when the
    /// call is sent; otherwise it stays.
    pub fn begin_call_with(
        &mut self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        body: &mut CallBody,
    ) -> Result<PendingCall, UnsentReason> {
        self.begin_call_from(to, request, BodySource::Owned(body))
    }

    fn begin_call_from(
        &mut self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        load: BodySource<'_>,
    ) -> Result<PendingCall, UnsentReason> {
        let now = clock::monotonic_now();
        // Runs first: answers that have arrived give back credits, and a drained socket shows new
        // peers.
        self.core.run_once(now);
        let sent = self
            .core
            .send_call(to, request, load, BodyExtent::Complete, now)
            .map(PendingCall);
        self.core.flush_links();
        sent
    }

    /// Begins a call whose body is written later, `total` bytes if known. The response may come
    /// before the body is complete; then no more of it is wanted.
    pub fn open_call(
        &mut self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        total: Option<u64>,
    ) -> Result<(PendingCall, OpenBody), UnsentReason> {
        let now = clock::monotonic_now();
        self.core.run_once(now);
        let call = self.core.send_call(
            to,
            request,
            BodySource::Borrowed(&request.body),
            BodyExtent::Open(total),
            now,
        )?;
        self.core.flush_links();
        // The writer needs the channel: the call may be settled before its body is complete.
        let channel = self
            .core
            .peer_table
            .call_channel(call)
            .ok_or(UnsentReason::NoPeer)?;
        Ok((PendingCall(call), OpenBody { channel, call }))
    }

    /// Begins a response whose body is written later, `total` bytes if known. A later response to
    /// the call is not sent. Without [`BlockingEndpoint::finish_body`] the response is aborted.
    pub fn begin_response(
        &mut self,
        incoming: &IncomingCall,
        answer: CallResponse,
        total: Option<u64>,
    ) -> OpenBody {
        let (channel, call) = (incoming.channel, incoming.call);
        self.core.begin_response(channel, call, answer, total);
        self.core.flush_links();
        OpenBody { channel, call }
    }

    /// Streams the response of a call that was just sent ([`CallReply::reader`]), also when
    /// responses are assembled by default.
    pub fn stream_response(&mut self, pending: &PendingCall) {
        self.core.stream_response(pending.0);
    }

    /// Returns true if the next chunk of a body can be written without waiting.
    pub fn is_writable(&mut self, to: &OpenBody) -> Result<bool, BodyUnwanted> {
        self.core.is_writable(to.channel, to.call)
    }

    /// Writes a chunk of a body; waits until the previous one was sent.
    pub fn write_chunk(&mut self, to: &OpenBody, piece: Bytes) -> Result<(), BodyUnwanted> {
        // Received messages may say that the body is unwanted
        self.core.run_once(clock::monotonic_now());
        // No core is named: the room comes from a release, which is not worth spinning for.
        while !self.core.is_writable(to.channel, to.call)? {
            self.sleep_and_run(0, None);
        }
        let handed = self.core.push_chunk(to.channel, to.call, piece);
        self.core.flush_links();
        handed
    }

    /// Completes the body.
    pub fn finish_body(&mut self, body: OpenBody) {
        self.core.finish_body(body.channel, body.call);
        self.core.flush_links();
    }

    /// Aborts the body; the peer is told.
    pub fn abort_body(&mut self, body: OpenBody) {
        self.core.abort_body(body.channel, body.call);
        self.core.flush_links();
    }

    /// Returns the next part of a body; none at the end. Fails with [`CallError::Timeout`] after
    /// `timeout` (none: no limit).
    pub fn next_part(
        &mut self,
        rest: &BodyReader,
        timeout: Option<Duration>,
    ) -> Option<Result<Bytes, CallError>> {
        let end = timeout.map(clock::deadline_after);
        loop {
            // No waker: this thread itself runs the core, which fills the queue.
            if let Poll::Ready(part) = rest.poll_part(None) {
                return part;
            }
            if end.is_some_and(|end| clock::monotonic_now() >= end) {
                return Some(Err(CallError::Timeout));
            }
            self.sleep_and_run(0, end);
        }
    }

    /// Waits for the response.
    pub fn wait_response(&mut self, pending: PendingCall) -> Result<CallReply, CallError> {
        loop {
            if let Poll::Ready(outcome) = self.core.poll_outcome(pending.0, None) {
                return outcome;
            }
            // The callee's core decides whether a spin pays: see `nearpath_shm::spin`.
            let core = self.core.expected_core(pending.0);
            self.sleep_and_run(core, None);
        }
    }

    /// Returns the outcome of a call if it is there. Do not poll the call again then.
    pub fn poll_response(&mut self, pending: &PendingCall) -> Poll<Result<CallReply, CallError>> {
        self.core.poll_outcome(pending.0, None)
    }

    /// Sleeps until a message arrives, or for `timeout`. `pending` is the likeliest call to be
    /// answered.
    pub fn sleep_for(&mut self, pending: Option<&PendingCall>, timeout: Duration) {
        let peer = pending.map_or(0, |pending| self.core.expected_core(pending.0));
        self.sleep_and_run(peer, Some(clock::deadline_after(timeout)));
    }

    /// Returns true if a call to the function would not fail for lack of credit.
    pub fn has_credit(&mut self, function: &nearpath_types::FunctionId) -> bool {
        self.core.can_call(function)
    }

    /// Waits for the first of several responses. Returns the position of its call, which is
    /// removed, and the outcome. None without calls.
    pub fn wait_any(
        &mut self,
        pending: &mut Vec<PendingCall>,
    ) -> Option<(usize, Result<CallReply, CallError>)> {
        while !pending.is_empty() {
            for at in 0..pending.len() {
                if let Poll::Ready(outcome) = self.core.poll_outcome(pending[at].0, None) {
                    // Order is kept: callers match the remaining calls by position.
                    let _ = pending.remove(at);
                    return Some((at, outcome));
                }
            }
            self.sleep_and_run(0, None);
        }
        None
    }

    /// Waits for all responses, in the order of the calls. A failed one does not affect the others.
    pub fn wait_all(
        &mut self,
        pending: impl IntoIterator<Item = PendingCall>,
    ) -> Vec<Result<CallReply, CallError>> {
        pending
            .into_iter()
            .map(|pending| self.wait_response(pending))
            .collect()
    }

    /// Cancels a call; the peer is told.
    pub fn cancel_call(&mut self, pending: PendingCall) {
        self.core.abandon_call(pending.0);
        self.core.flush_links();
    }

    /// Sends an event. No response follows, and it may be lost with its receiver.
    pub fn send_event(
        &mut self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
    ) -> Result<(), UnsentReason> {
        self.send_event_from(to, request, BodySource::Borrowed(&request.body))
    }

    /// As [`BlockingEndpoint::send_event`] with this body; see
    /// [`BlockingEndpoint::begin_call_with`].
    pub fn send_event_with(
        &mut self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        body: &mut CallBody,
    ) -> Result<(), UnsentReason> {
        self.send_event_from(to, request, BodySource::Owned(body))
    }

    fn send_event_from(
        &mut self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        load: BodySource<'_>,
    ) -> Result<(), UnsentReason> {
        let now = clock::monotonic_now();
        self.core.run_once(now);
        let sent = self.core.send_event(to, request, load, now);
        self.core.flush_links();
        sent
    }

    /// Sends an event to one instance of each subscribed function, without the gateway.
    pub fn publish_event(&mut self, topic: &str, request: &CallRequest<'_>) -> PublishReport {
        let now = clock::monotonic_now();
        self.core.run_once(now);
        let published = self.core.publish_event(topic, request, now);
        self.core.flush_links();
        published
    }

    /// Returns the next call or event. None after `timeout` (none: no limit), or when the node
    /// closed the socket.
    pub fn next_incoming(&mut self, timeout: Option<Duration>) -> Option<IncomingCall> {
        self.next_incoming_unless(timeout, || false)
    }

    /// As [`BlockingEndpoint::next_incoming`]; also ends when `enough` returns true, checked after
    /// each wakeup by [`BlockingEndpoint::wakeup_signal`].
    pub fn next_incoming_unless(
        &mut self,
        timeout: Option<Duration>,
        mut enough: impl FnMut() -> bool,
    ) -> Option<IncomingCall> {
        let end = timeout.map(clock::deadline_after);
        loop {
            self.core.run_once(clock::monotonic_now());
            if let Some(incoming) = self.core.incoming.pop_front() {
                return Some(incoming);
            }
            if enough()
                || self.core.hung_up()
                || end.is_some_and(|end| clock::monotonic_now() >= end)
            {
                return None;
            }
            self.sleep_and_run(0, end);
        }
    }

    /// Returns true if the node closed the socket: no new peers arrive, open calls continue.
    pub fn hung_up(&self) -> bool {
        self.core.hung_up()
    }

    /// Returns the signal that wakes this endpoint from another thread:
    /// [`WakeupSignal::notify_control`].
    pub fn wakeup_signal(&self) -> WakeupSignal {
        let signal = self.core.cell.wakeup_signal();
        match &self.core.inbox {
            // It sleeps in a read of its socket
            Some(inbox) => signal.via_sockmap(inbox.socket.clone(), 0),
            None => signal,
        }
    }

    /// Returns true if a function can be called, credits aside.
    pub fn has_function(&mut self, function: &nearpath_types::FunctionId) -> bool {
        // Runs only when the function is unknown: its peer message may lie unread in the socket.
        self.core.peer_table.has_function(function) || {
            self.core.run_once(clock::monotonic_now());
            self.core.peer_table.has_function(function)
        }
    }

    /// Responds to a call. For an event nothing is sent.
    pub fn send_response(&mut self, incoming: IncomingCall, answer: CallResponse) {
        let (channel, call, event) = (incoming.channel, incoming.call, incoming.is_event);
        drop(incoming); // frees its slot for the response
        if !event {
            self.core
                .send_response(channel, call, answer, clock::monotonic_now());
            self.core.flush_links();
        }
    }

    /// Serves until the node closes the socket. Results for events are not sent. The handler may
    /// take the body out and forward it.
    pub fn serve_calls(
        &mut self,
        mut handler: impl FnMut(&mut Self, &mut IncomingCall) -> CallResponse,
    ) -> io::Result<()> {
        self.serve_until(|post, incoming| ControlFlow::Continue(handler(post, incoming)))
    }

    /// Serves until the handler breaks, or the node closes the socket.
    pub fn serve_until(
        &mut self,
        mut handler: impl FnMut(&mut Self, &mut IncomingCall) -> ControlFlow<(), CallResponse>,
    ) -> io::Result<()> {
        self.announce_ready()?;
        while let Some(mut incoming) = self.next_incoming(None) {
            match handler(self, &mut incoming) {
                ControlFlow::Continue(answer) => self.send_response(incoming, answer),
                ControlFlow::Break(()) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Sleeps until a message arrives, then processes it.
    fn sleep_and_run(&mut self, peer: u32, end: Option<MonotonicNanos>) {
        let now = clock::monotonic_now();
        let next = [self.core.next_wakeup(now), end]
            .into_iter()
            .flatten()
            .min();
        let left = next.map_or(SOCKET_CHECK_INTERVAL, |next| {
            Duration::from_nanos(next.saturating_sub(now)).min(SOCKET_CHECK_INTERVAL)
        });
        self.core.sleep_until_work(peer, Some(left));
        let woken = clock::monotonic_now();
        // A killed node changes no word in the cell: only reading the socket shows the hang-up.
        if woken.saturating_sub(now) >= SOCKET_CHECK_INTERVAL.as_nanos() as u64 {
            self.core.read_socket();
        }
        self.core.run_once(woken);
    }
}
