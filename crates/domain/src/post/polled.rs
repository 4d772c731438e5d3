//! A party inside a tokio event loop of one thread: calls are futures, incoming calls a queue.
//!
//! [`Post::join`] gives the post, a handle to share with [`Clone`], and its [`Driver`], a future that must run on the same
//! thread (`spawn_local`). The driver takes what comes and wakes who waits for it; it sleeps on the desk's eventfd, which
//! the event loop watches like a socket. What is sent is in the ring at once; the driver rings its receivers when the tasks
//! that are ready have run, once for all that they sent: a bell costs a system call, and on the same processor its receiver
//! would run at once, for one message at a time. A call whose future is dropped is cancelled.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram as Plain;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nearpath_types::Reason;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::time::{Instant, Sleep, sleep};

use super::core::Core;
use super::join::{self, JoinError, Place, Settings};
use super::outbox::Whole;
use super::payload::{Draft, Load, Payload};
use super::rest::Rest;
use super::words::{Answer, CallError, Incoming, NotWanted, Published, Reply, Request, Unsent};
use crate::book::{self, To};
use crate::clock::{self, Nanos};
use crate::packet;
use crate::protocol::{Bell, FromParty, Welcome};

/// A handle to the party. Clones are the same party; it leaves when the last handle and the driver are gone.
#[derive(Debug, Clone)]
pub struct Post {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    core: RefCell<Core>,
    place: Place,
    /// Who waits for incoming calls.
    server: RefCell<Option<Waker>>,
    /// The driver, and when it will look again by itself.
    driver: RefCell<Option<Waker>>,
    alarm: Cell<Option<Nanos>>,
    over: Cell<bool>,
}

/// Runs a party. Ends when no handle is left; when the node hangs up, open calls go on.
#[must_use = "a party does nothing unless its driver runs"]
pub struct Driver {
    run: Pin<Box<dyn Future<Output = io::Result<()>>>>,
}

impl Future for Driver {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.run.as_mut().poll(cx)
    }
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
        let shared = Rc::new(Shared {
            core: RefCell::new(core),
            place,
            server: RefCell::default(),
            driver: RefCell::default(),
            alarm: Cell::default(),
            over: Cell::default(),
        });
        let run = Box::pin(drive(Rc::downgrade(&shared), event, line));
        Ok((Self { shared }, Driver { run }))
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
        Ok(Call { shared: Rc::clone(&self.shared), call: Some(call) })
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
        let shared = Rc::clone(&self.shared);
        Ok((Call { shared, call: Some(call) }, Writer::new(&self.shared, channel, call)))
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
        incoming.await.map(|incoming| Received { shared: Rc::clone(&self.shared), incoming: Some(incoming) })
    }
}

/// A call that was sent.
#[derive(Debug)]
#[must_use = "a call whose future is dropped is cancelled"]
pub struct Call {
    shared: Rc<Shared>,
    call: Option<book::Call>,
}

impl Call {
    /// Its answer is read as it comes ([`Reply::rest`]), also where the party has answers put together. Say so at once.
    pub fn as_it_comes(self) -> Self {
        self.call.into_iter().for_each(|call| self.shared.core.borrow_mut().as_it_comes(call));
        self
    }
}

impl Future for Call {
    type Output = Result<Reply, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(call) = self.call else { return Poll::Ready(Err(CallError::Died)) };
        let outcome = self.shared.core.borrow_mut().poll(call, Some(cx.waker()));
        if outcome.is_ready() {
            self.call = None;
        }
        outcome
    }
}

/// The outcomes of all calls, in their order. One that fails leaves the others alone; dropping the future cancels those that
/// are open.
pub async fn all(calls: impl IntoIterator<Item = Call>) -> Vec<Result<Reply, CallError>> {
    let mut outcomes = Vec::new();
    for call in calls.into_iter().collect::<Vec<_>>() {
        outcomes.push(call.await); // they run side by side already: each was sent when it was made
    }
    outcomes
}

/// The first outcome of several calls, and where its call stood. The call is taken out, the others stay. Nothing when there
/// is no call.
pub async fn any(calls: &mut Vec<Call>) -> Option<(usize, Result<Reply, CallError>)> {
    poll_fn(|cx| {
        if calls.is_empty() {
            return Poll::Ready(None);
        }
        for at in 0..calls.len() {
            if let Poll::Ready(outcome) = Pin::new(&mut calls[at]).poll(cx) {
                drop(calls.remove(at));
                return Poll::Ready(Some((at, outcome)));
            }
        }
        Poll::Pending
    })
    .await
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            self.shared.core.borrow_mut().leave(call);
            self.shared.rearm();
        }
    }
}

/// A call or event that was received. One that is dropped without an answer is answered with status 500.
#[derive(Debug)]
pub struct Received {
    shared: Rc<Shared>,
    incoming: Option<Incoming>,
}

impl std::ops::Deref for Received {
    type Target = Incoming;

    fn deref(&self) -> &Incoming {
        self.incoming.as_ref().expect("taken only by answer and drop, which consume it")
    }
}

impl std::ops::DerefMut for Received {
    fn deref_mut(&mut self) -> &mut Incoming {
        self.incoming.as_mut().expect("taken only by answer and drop, which consume it")
    }
}

impl Received {
    /// Answers. An event has no answer: nothing is sent.
    pub fn answer(mut self, answer: Answer) {
        self.finish(answer);
    }

    /// Begins an answer; the rest of its body goes through the writer, `total` bytes in all, if that is known.
    pub fn begin(mut self, answer: Answer, total: Option<u64>) -> Writer {
        let (channel, call) = (self.channel, self.call);
        let mut incoming = self.incoming.take();
        drop(incoming.as_mut().and_then(|incoming| incoming.rest.take()));
        self.shared.core.borrow_mut().begin_answer(channel, call, answer, total);
        self.shared.rearm();
        Writer::new(&self.shared, channel, call)
    }

    /// What follows the first part of the body, to be read while the answer is written.
    pub fn take_rest(&mut self) -> Option<Rest> {
        self.incoming.as_mut().and_then(|incoming| incoming.rest.take())
    }

    /// Resolves when the caller has given the call up, or is gone.
    pub async fn given_up(&self) {
        self.shared.given_up(self.channel, self.call).await;
    }

    fn finish(&mut self, answer: Answer) {
        let Some(incoming) = self.incoming.take() else { return };
        let (channel, call, event) = (incoming.channel, incoming.call, incoming.event);
        drop(incoming); // its slot is free for the answer
        if !event {
            self.shared.core.borrow_mut().answer(channel, call, answer, clock::now());
            self.shared.rearm();
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.finish(Answer::platform(Reason::FunctionFailed, "the handler gave no answer\n"));
    }
}

/// The rest of a body that was begun. Dropping it before [`Writer::finish`] breaks the call, or the answer, off.
#[derive(Debug)]
#[must_use = "a body that is not finished is broken off"]
pub struct Writer {
    shared: Rc<Shared>,
    channel: u32,
    call: u64,
    open: bool,
}

impl Writer {
    fn new(shared: &Rc<Shared>, channel: u32, call: u64) -> Self {
        Self { shared: Rc::clone(shared), channel, call, open: true }
    }

    /// Whether the next piece can be handed over: the one before has been sent. The task is woken too when nobody wants more.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), NotWanted>> {
        self.shared.core.borrow_mut().poll_room(self.channel, self.call, cx)
    }

    /// Hands the next piece over. Only when the writer is ready.
    pub fn hand(&mut self, piece: Bytes) -> Result<(), NotWanted> {
        let handed = self.shared.core.borrow_mut().hand(self.channel, self.call, piece);
        self.shared.rearm();
        handed
    }

    /// Waits until the writer is ready, then hands the piece over.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), NotWanted> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        self.hand(piece)
    }

    /// Of an answer: resolves when nobody wants the rest of it. For a writer that has nothing to write for long.
    pub async fn given_up(&self) {
        self.shared.given_up(self.channel, self.call).await;
    }

    /// Hands the last piece over. Only when the writer is ready.
    pub fn end(mut self, piece: Bytes) {
        self.open = false;
        self.shared.core.borrow_mut().end(self.channel, self.call, piece);
        self.shared.rearm();
    }

    /// The body is complete.
    pub fn finish(mut self) {
        self.open = false;
        self.shared.core.borrow_mut().finish(self.channel, self.call);
        self.shared.rearm();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.open {
            self.shared.core.borrow_mut().abort(self.channel, self.call);
            self.shared.rearm();
        }
    }
}

/// tokio's datagram socket waits for the readiness of any descriptor and leaves the calls to us.
fn readiness(descriptor: OwnedFd) -> io::Result<UnixDatagram> {
    rustix::io::ioctl_fionbio(&descriptor, true)?; // a party's socket comes as one that blocks
    UnixDatagram::from_std(Plain::from(descriptor))
}

async fn welcomed(line: &UnixDatagram) -> Result<(Welcome, Vec<OwnedFd>), JoinError> {
    loop {
        let packet = line.async_io(Interest::READABLE, || packet::receive(line)).await?;
        if let Some(welcomed) = join::welcome(packet)? {
            return Ok(welcomed);
        }
    }
}

/// Forgets a readiness that has been seen, without a call to the kernel: the next write is an edge of its own.
fn seen(descriptor: &UnixDatagram) {
    let _ = descriptor.try_io(Interest::READABLE, || -> io::Result<()> { Err(io::ErrorKind::WouldBlock.into()) });
}

async fn drive(shared: Weak<Shared>, event: Option<UnixDatagram>, socket: UnixDatagram) -> io::Result<()> {
    let mut alarm = pin!(sleep(Duration::ZERO));
    while let Some(post) = shared.upgrade() {
        let asleep = post.turn(alarm.as_mut());
        let (armed, over) = (post.alarm.get().is_some(), post.over.get());
        let cut = post.core.borrow().is_cut_off(); // a socket at its end is readable for ever
        drop(post); // the handles alone keep the party
        let Some(event) = event.as_ref().filter(|_| asleep) else {
            tokio::task::yield_now().await; // whom the turn has woken goes first
            if event.is_none() {
                std::thread::yield_now(); // a party that polls: its peer may wait for this very processor
            }
            continue;
        };
        tokio::select! {
            biased;
            ready = event.readable(), if !cut => ready.map(|()| seen(event))?,
            ready = socket.readable(), if !over => {
                ready.map(|()| seen(&socket))?;
                shared.upgrade().inspect(|post| post.core.borrow_mut().read_socket());
            }
            () = alarm.as_mut(), if armed => {}
            () = called(&shared) => {}
        }
        shared.upgrade().inspect(|post| post.core.borrow().desk.rise());
    }
    Ok(())
}

/// Resolves when a handle needs an earlier alarm, or the last handle is gone.
async fn called(shared: &Weak<Shared>) {
    let mut waits = false;
    poll_fn(|cx| {
        let Some(post) = shared.upgrade() else { return Poll::Ready(()) };
        let mut driver = post.driver.borrow_mut();
        if waits && driver.is_none() {
            return Poll::Ready(());
        }
        (*driver, waits) = (Some(cx.waker().clone()), true);
        Poll::Pending
    })
    .await;
}

impl Shared {
    /// Resolves when a call that was taken need not be answered any more.
    async fn given_up(&self, channel: u32, call: u64) {
        poll_fn(|cx| match self.core.borrow_mut().given_up(channel, call, cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Takes what is there. Whether the party sleeps now, as its peers see it.
    fn turn(&self, alarm: Pin<&mut Sleep>) -> bool {
        let now = clock::now();
        let mut core = self.core.borrow_mut();
        core.turn(now);
        let next = core.next_turn(now);
        if let Some(next) = next.filter(|next| self.alarm.get() != Some(*next)) {
            alarm.reset(Instant::now() + Duration::from_nanos(next.saturating_sub(now)));
        }
        self.alarm.set(next);
        self.over.set(core.hung_up());
        let serves = !core.incoming.is_empty() || core.hung_up();
        let asleep = core.announce();
        drop(core);
        if serves && let Some(server) = self.server.borrow_mut().take() {
            server.wake();
        }
        asleep
    }

    /// Wakes the driver when there is somebody to ring, or when it would sleep too long. It runs after the tasks that are
    /// ready now, so that all they send is one batch.
    fn rearm(&self) {
        let mut core = self.core.borrow_mut();
        let next = core.next_turn(clock::now());
        let soon = next.is_some_and(|next| self.alarm.get().is_none_or(|alarm| next < alarm));
        let due = soon || core.unrung;
        drop(core);
        if due && let Some(driver) = self.driver.borrow_mut().take() {
            driver.wake();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.driver.get_mut().take().into_iter().for_each(Waker::wake);
    }
}
