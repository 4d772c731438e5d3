//! An endpoint in a single-threaded tokio event loop: calls are futures, incoming calls a queue.
//!
//! [`AsyncEndpoint::join`] returns a handle that can be cloned, and its [`EndpointDriver`], a
//! future for the same thread (`spawn_local`). The driver receives and wakes waiting tasks; it
//! sleeps on the eventfd of the wakeup cell. Sent messages enter the ring at once. The driver wakes
//! the receivers once all ready tasks have run. A wakeup costs a system call, and a receiver on the
//! same core would run after a single message. Dropping the future of a call cancels it.

mod call;
mod driver;
mod received;
mod shared;
mod writer;

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::task::Poll;

use tokio::io::Interest;
use tokio::net::UnixDatagram;

use super::endpoint_core::EndpointCore;
use super::join::{self, EndpointIdentity, EndpointSettings, JoinError};
use super::payload::{BodyDraft, BodySource, CallBody};
use super::send_queue::BodyExtent;
use super::types::{CallRequest, CalleeKind, PublishReport, UnsentReason};
use crate::clock;
use crate::packet;
use crate::peer_table::CallDestination;
use crate::protocol::{EndpointMessage, WakeupMode, WelcomeMessage};
use driver::watch_readiness;
use shared::SharedEndpoint;

pub use call::{CallFuture, wait_all, wait_any};
pub use driver::EndpointDriver;
pub use received::ReceivedCall;
pub use writer::BodyWriter;

/// Handle of an endpoint; clones share it. The endpoint leaves with the last handle and the driver.
#[derive(Debug, Clone)]
pub struct AsyncEndpoint {
    shared: Rc<SharedEndpoint>,
}

impl AsyncEndpoint {
    /// Joins over a connected socket.
    pub async fn join(
        socket: OwnedFd,
        settings: EndpointSettings,
    ) -> Result<(Self, EndpointDriver), JoinError> {
        join::send_hello(&socket, WakeupMode::Eventfd, &settings)?;
        let line = watch_readiness(socket.try_clone()?)?;
        let welcomed = tokio::time::timeout(settings.join_timeout, receive_welcome(&line)).await;
        let (welcome, descriptors) = welcomed.map_err(|_| JoinError::Timeout)??;
        let joined = join::map_welcome(socket, welcome, descriptors, &settings)?;
        let place = joined.identity.clone();
        let core = EndpointCore::new(joined, settings);
        // In sockmap mode the socket wakes, otherwise the eventfd; polling has neither.
        let event = core
            .inbox
            .as_ref()
            .map(|inbox| inbox.socket.as_fd())
            .or(core.cell.eventfd());
        let event = event
            // A duplicate: tokio's socket owns its descriptor, and the core keeps the original.
            .map(|event| watch_readiness(event.try_clone_to_owned()?))
            .transpose()?;
        let shared = SharedEndpoint::new(core, place);
        let driver = EndpointDriver::new(&shared, event, line);
        Ok((Self { shared }, driver))
    }

    /// Joins over the socket at `path`, which `NEARPATH_DISPATCH` names inside an instance.
    pub async fn dial(
        path: &Path,
        settings: EndpointSettings,
    ) -> Result<(Self, EndpointDriver), JoinError> {
        Self::join(join::connect_socket(path)?, settings).await
    }

    /// Returns the identity that the node assigned.
    pub fn identity(&self) -> &EndpointIdentity {
        &self.shared.identity
    }

    /// Returns whether both are handles of one endpoint.
    pub fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.shared, &other.shared)
    }

    /// Announces to the node that calls may arrive.
    pub fn announce_ready(&self) -> io::Result<()> {
        self.shared
            .core
            .borrow()
            .send_to_node(&EndpointMessage::Ready {})
    }

    /// Returns true if a function can be called, credits aside.
    pub fn has_function(&self, function: &nearpath_types::FunctionId) -> bool {
        self.shared.core.borrow().peer_table.has_function(function)
    }

    /// Returns the kind of endpoint that takes the calls of an instance, credits aside; `None`: it cannot
    /// be called.
    pub fn callee_at(&self, instance: nearpath_types::InstanceId) -> Option<CalleeKind> {
        self.shared.core.borrow().callee_at(instance)
    }

    /// Returns the functions that can be called now.
    pub fn callable_functions(&self) -> Vec<nearpath_types::FunctionId> {
        self.shared.core.borrow().callable_functions()
    }

    /// Waits until an instance of the function has credit, or no instance is left. Another task may
    /// use the credit first.
    pub async fn wait_credit(&self, function: &nearpath_types::FunctionId) {
        poll_fn(|cx| {
            match self
                .shared
                .core
                .borrow_mut()
                .poll_credit(function, cx.waker())
            {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Sends a call at once; the future is its outcome. Dropping the future cancels the call.
    pub fn call(
        &self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
    ) -> Result<CallFuture, UnsentReason> {
        self.call_from(to, request, BodySource::Borrowed(&request.body))
    }

    /// As [`AsyncEndpoint::call`] with this body. A body in a slot is moved out when the call is
    /// sent; otherwise it stays.
    pub fn call_with(
        &self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        body: &mut CallBody,
    ) -> Result<CallFuture, UnsentReason> {
        self.call_from(to, request, BodySource::Owned(body))
    }

    fn call_from(
        &self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        load: BodySource<'_>,
    ) -> Result<CallFuture, UnsentReason> {
        let call = self.shared.core.borrow_mut().send_call(
            to,
            request,
            load,
            BodyExtent::Complete,
            clock::monotonic_now(),
        )?;
        self.shared.wake_driver_if_due();
        Ok(CallFuture::new(&self.shared, call))
    }

    /// Returns a zeroed draft that is sent in place. Without a free slot of that size it is private
    /// memory, and is copied when sent.
    pub fn draft_body(&self, bytes: usize) -> BodyDraft {
        self.shared
            .core
            .borrow_mut()
            .claim_draft(bytes)
            .unwrap_or_else(|| BodyDraft::in_private_memory(bytes))
    }

    /// Begins a call whose body goes through the writer, `total` bytes if known. The response may
    /// come before the body is complete; then no more of it is wanted.
    pub fn open_call(
        &self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        total: Option<u64>,
    ) -> Result<(CallFuture, BodyWriter), UnsentReason> {
        let mut core = self.shared.core.borrow_mut();
        let call = core.send_call(
            to,
            request,
            BodySource::Borrowed(&request.body),
            BodyExtent::Open(total),
            clock::monotonic_now(),
        )?;
        let channel = core
            .peer_table
            .call_channel(call)
            .ok_or(UnsentReason::NoPeer)?;
        // `wake_driver_if_due` borrows the core again.
        drop(core);
        self.shared.wake_driver_if_due();
        Ok((
            CallFuture::new(&self.shared, call),
            BodyWriter::new(&self.shared, channel, call),
        ))
    }

    /// Sends an event. No response follows, and it may be lost with its receiver.
    pub fn send_event(
        &self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
    ) -> Result<(), UnsentReason> {
        self.send_event_from(to, request, BodySource::Borrowed(&request.body))
    }

    /// As [`AsyncEndpoint::send_event`] with this body; see [`AsyncEndpoint::call_with`].
    pub fn send_event_with(
        &self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        body: &mut CallBody,
    ) -> Result<(), UnsentReason> {
        self.send_event_from(to, request, BodySource::Owned(body))
    }

    fn send_event_from(
        &self,
        to: CallDestination<'_>,
        request: &CallRequest<'_>,
        load: BodySource<'_>,
    ) -> Result<(), UnsentReason> {
        let sent =
            self.shared
                .core
                .borrow_mut()
                .send_event(to, request, load, clock::monotonic_now());
        self.shared.wake_driver_if_due();
        sent
    }

    /// Sends an event to one instance of each subscribed function, without the gateway.
    pub fn publish_event(&self, topic: &str, request: &CallRequest<'_>) -> PublishReport {
        let published =
            self.shared
                .core
                .borrow_mut()
                .publish_event(topic, request, clock::monotonic_now());
        self.shared.wake_driver_if_due();
        published
    }

    /// Returns the next call or event; none when the node closed the socket. Only one task may wait
    /// here.
    pub async fn next_incoming(&self) -> Option<ReceivedCall> {
        let incoming = poll_fn(|cx| {
            if let Some(incoming) = self.shared.core.borrow_mut().incoming.pop_front() {
                return Poll::Ready(Some(incoming));
            }
            // After the queue: calls that arrived before the hang-up are still handled.
            if self.shared.hung_up.get() {
                return Poll::Ready(None);
            }
            *self.shared.serve_waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        });
        incoming
            .await
            .map(|incoming| ReceivedCall::new(&self.shared, incoming))
    }
}

async fn receive_welcome(line: &UnixDatagram) -> Result<(WelcomeMessage, Vec<OwnedFd>), JoinError> {
    loop {
        let packet = line
            .async_io(Interest::READABLE, || packet::receive_packet(line))
            .await?;
        if let Some(welcomed) = join::parse_welcome(packet)? {
            return Ok(welcomed);
        }
    }
}
