//! A party inside a tokio event loop of one thread: calls are futures, incoming calls a queue.
//!
//! [`Post::join`] gives the post, a handle to share with [`Clone`], and its [`Driver`], a future that must run on the same
//! thread (`spawn_local`). The driver takes what comes and wakes who waits for it; it sleeps on the desk's eventfd, which
//! the event loop watches like a socket. What is sent is in the ring at once; the driver rings its receivers when the tasks
//! that are ready have run, once for all that they sent: a bell costs a system call, and on the same processor its receiver
//! would run at once, for one message at a time. A call whose future is dropped is cancelled.

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

use super::core::Core;
use super::join::{self, JoinError, Place, Settings};
use super::outbox::Whole;
use super::payload::{Draft, Load, Payload};
use super::words::{Published, Request, Unsent};
use crate::book::To;
use crate::clock;
use crate::packet;
use crate::protocol::{Bell, FromParty, Welcome};
use driver::readiness;
use shared::Shared;

pub use call::{Call, all, any};
pub use driver::Driver;
pub use received::Received;
pub use writer::Writer;

/// A handle to the party. Clones are the same party; it leaves when the last handle and the driver are gone.
#[derive(Debug, Clone)]
pub struct Post {
    shared: Rc<Shared>,
}

impl Post {
    /// Joins over a connected socket.
    pub async fn join(socket: OwnedFd, settings: Settings) -> Result<(Self, Driver), JoinError> {
        join::hello(&socket, Bell::Eventfd, &settings)?;
        let line = readiness(socket.try_clone()?)?;
        let welcomed = tokio::time::timeout(settings.patience, welcomed(&line)).await;
        let (welcome, descriptors) = welcomed.map_err(|_| JoinError::Silence)??;
        let joined = join::enter(socket, welcome, descriptors, &settings)?;
        let place = joined.place.clone();
        let core = Core::new(joined, settings);
        let event = core.inbox.as_ref().map(|inbox| inbox.wire.as_fd()).or(core.desk.event());
        let event = event.map(|event| readiness(event.try_clone_to_owned()?)).transpose()?;
        let shared = Shared::new(core, place);
        let driver = Driver::new(&shared, event, line);
        Ok((Self { shared }, driver))
    }

    /// Joins over the socket at `path`, which `NEARPATH_DISPATCH` names inside an instance.
    pub async fn dial(path: &Path, settings: Settings) -> Result<(Self, Driver), JoinError> {
        Self::join(join::dial(path)?, settings).await
    }

    /// What the node said at the door.
    pub fn place(&self) -> &Place {
        &self.shared.place
    }

    /// Tells the node that calls may come.
    pub fn ready(&self) -> io::Result<()> {
        self.shared.core.borrow().say(&FromParty::Ready {})
    }

    /// Whether a function can be called at this moment, credits aside.
    pub fn knows(&self, function: &nearpath_types::FunctionId) -> bool {
        self.shared.core.borrow().book.knows(function)
    }

    /// Whether an instance can be called at this moment, credits aside.
    pub fn reaches(&self, instance: nearpath_types::InstanceId) -> bool {
        self.shared.core.borrow().book.reaches(instance)
    }

    /// The functions that can be called at this moment.
    pub fn functions(&self) -> Vec<nearpath_types::FunctionId> {
        self.shared.core.borrow().functions()
    }

    /// Waits until an instance of the function has credit for another call, or there is none any more. Somebody else may
    /// take it first.
    pub async fn credit(&self, function: &nearpath_types::FunctionId) {
        poll_fn(|cx| match self.shared.core.borrow_mut().has_credit(function, cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Sends a call at once; the future is its outcome. Dropping the future cancels the call.
    pub fn call(&self, to: To<'_>, request: &Request<'_>) -> Result<Call, Unsent> {
        self.call_load(to, request, Load::Kept(&request.body))
    }

    /// As [`Post::call`] with this body in place of the request's: it is handed over where it lies, and nothing is left of it,
    /// if it lies in a slot and the call is sent. Otherwise it stays.
    pub fn call_with(&self, to: To<'_>, request: &Request<'_>, body: &mut Payload) -> Result<Call, Unsent> {
        self.call_load(to, request, Load::Given(body))
    }

    fn call_load(&self, to: To<'_>, request: &Request<'_>, load: Load<'_>) -> Result<Call, Unsent> {
        let call = self.shared.core.borrow_mut().call(to, request, load, Whole::Here, clock::now())?;
        self.shared.rearm();
        Ok(Call::new(&self.shared, call))
    }

    /// Memory to write a body in that goes out where it lies: so many zeros. In private memory when no slot is that large, or
    /// free; then it is copied when it is sent.
    pub fn draft(&self, bytes: usize) -> Draft {
        self.shared.core.borrow_mut().draft(bytes).unwrap_or_else(|| Draft::private(bytes))
    }

    /// Sends the beginning of a call; the rest of its body goes through the writer, `total` bytes in all, if that is known.
    /// The answer may come before all has been written: then nothing more of the body is wanted.
    pub fn open(&self, to: To<'_>, request: &Request<'_>, total: Option<u64>) -> Result<(Call, Writer), Unsent> {
        let mut core = self.shared.core.borrow_mut();
        let call = core.call(to, request, Load::Kept(&request.body), Whole::Open(total), clock::now())?;
        let channel = core.book.channel(call).ok_or(Unsent::NoPeer)?;
        drop(core);
        self.shared.rearm();
        Ok((Call::new(&self.shared, call), Writer::new(&self.shared, channel, call)))
    }

    /// Sends an event: nobody answers, and it may be lost with its receiver.
    pub fn notify(&self, to: To<'_>, request: &Request<'_>) -> Result<(), Unsent> {
        self.notify_load(to, request, Load::Kept(&request.body))
    }

    /// As [`Post::notify`] with this body in place of the request's; see [`Post::call_with`].
    pub fn notify_with(&self, to: To<'_>, request: &Request<'_>, body: &mut Payload) -> Result<(), Unsent> {
        self.notify_load(to, request, Load::Given(body))
    }

    fn notify_load(&self, to: To<'_>, request: &Request<'_>, load: Load<'_>) -> Result<(), Unsent> {
        let sent = self.shared.core.borrow_mut().notify(to, request, load, clock::now());
        self.shared.rearm();
        sent
    }

    /// Sends an event to one instance of each function that subscribes to this topic, without the gateway.
    pub fn publish(&self, topic: &str, request: &Request<'_>) -> Published {
        let published = self.shared.core.borrow_mut().publish(topic, request, clock::now());
        self.shared.rearm();
        published
    }

    /// The next call or event; nothing when the node has hung up. One task at a time waits here.
    pub async fn next(&self) -> Option<Received> {
        let incoming = poll_fn(|cx| {
            if let Some(incoming) = self.shared.core.borrow_mut().incoming.pop_front() {
                return Poll::Ready(Some(incoming));
            }
            if self.shared.over.get() {
                return Poll::Ready(None);
            }
            *self.shared.server.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        });
        incoming.await.map(|incoming| Received::new(&self.shared, incoming))
    }
}

async fn welcomed(line: &UnixDatagram) -> Result<(Welcome, Vec<OwnedFd>), JoinError> {
    loop {
        let packet = line.async_io(Interest::READABLE, || packet::receive(line)).await?;
        if let Some(welcomed) = join::welcome(packet)? {
            return Ok(welcomed);
        }
    }
}
