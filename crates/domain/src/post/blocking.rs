//! A party that is one thread: it sleeps at its desk, and whoever waits receives for all.
//!
//! While a handler waits for the answer to a call of its own, calls that come in are queued; they are handled when the
//! handler is done. So no second thread and no lock are needed, and a chain of calls costs one wake-up a hop.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use nearpath_shm::Knocker;

use super::core::Core;
use super::join::{self, HEARTBEAT, JoinError, Place, Settings};
use super::outbox::Whole;
use super::payload::{Draft, Load, Payload};
use super::rest::Rest;
use super::words::{Answer, CallError, Incoming, NotWanted, Published, Reply, Request, Unsent};
use crate::book::{Call, To};
use crate::clock::{self, Nanos};
use crate::protocol::{Bell, FromParty};

/// See the module.
#[derive(Debug)]
pub struct Post {
    core: Core,
    place: Place,
}

/// A call whose answer is not waited for yet. Hand it back to [`Post::wait`], or to [`Post::cancel`].
#[derive(Debug)]
#[must_use = "an answer that nobody waits for is kept for ever"]
pub struct Pending(Call);

/// A body that was begun and is being written. Hand it back to [`Post::finish`], or to [`Post::abort`].
#[derive(Debug)]
#[must_use = "a body that is not finished is waited for"]
pub struct Writing {
    channel: u32,
    call: u64,
}

impl Post {
    /// Joins over a connected socket. Serving begins with [`Post::ready`].
    pub fn join(socket: OwnedFd, settings: Settings) -> Result<Self, JoinError> {
        let joined = join::join(socket, Bell::Futex, &settings)?;
        let place = joined.place.clone();
        Ok(Self { core: Core::new(joined, settings), place })
    }

    /// Joins over the socket at `path`, which `NEARPATH_DISPATCH` names inside an instance.
    pub fn dial(path: &Path, settings: Settings) -> Result<Self, JoinError> {
        Self::join(join::dial(path)?, settings)
    }

    /// What the node said at the door.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Tells the node that calls may come.
    pub fn ready(&mut self) -> io::Result<()> {
        self.core.say(&FromParty::Ready {})
    }

    /// The functions that can be called at this moment.
    pub fn functions(&mut self) -> Vec<nearpath_types::FunctionId> {
        self.core.turn(clock::now());
        self.core.functions()
    }

    /// Calls and waits for the answer.
    pub fn call(&mut self, to: To<'_>, request: &Request<'_>) -> Result<Reply, CallError> {
        let pending = self.begin(to, request)?;
        self.wait(pending)
    }

    /// Memory to write a body in that goes out where it lies: so many zeros. In private memory when no slot is that large, or
    /// free; then it is copied when it is sent.
    pub fn draft(&mut self, bytes: usize) -> Draft {
        self.draft_in_slot(bytes).unwrap_or_else(|| Draft::private(bytes))
    }

    /// As [`Post::draft`], and nothing where it would be in private memory.
    pub fn draft_in_slot(&mut self, bytes: usize) -> Option<Draft> {
        self.core.draft(bytes)
    }

    /// Sends a call without waiting: for several at once.
    pub fn begin(&mut self, to: To<'_>, request: &Request<'_>) -> Result<Pending, Unsent> {
        self.begin_load(to, request, Load::Kept(&request.body))
    }

    /// As [`Post::begin`] with this body in place of the request's: it is handed over where it lies, and nothing is left of it,
    /// if it lies in a slot and the call is sent. Otherwise it stays.
    pub fn begin_with(&mut self, to: To<'_>, request: &Request<'_>, body: &mut Payload) -> Result<Pending, Unsent> {
        self.begin_load(to, request, Load::Given(body))
    }

    fn begin_load(&mut self, to: To<'_>, request: &Request<'_>, load: Load<'_>) -> Result<Pending, Unsent> {
        let now = clock::now();
        self.core.turn(now);
        let sent = self.core.call(to, request, load, Whole::Here, now).map(Pending);
        self.core.ring();
        sent
    }

    /// Sends the beginning of a call; the rest of its body is written, `total` bytes in all, if that is known. The answer may
    /// come before all has been written: then nothing more of the body is wanted.
    pub fn open(
        &mut self,
        to: To<'_>,
        request: &Request<'_>,
        total: Option<u64>,
    ) -> Result<(Pending, Writing), Unsent> {
        let now = clock::now();
        self.core.turn(now);
        let call = self.core.call(to, request, Load::Kept(&request.body), Whole::Open(total), now)?;
        self.core.ring();
        let channel = self.core.book.channel(call).ok_or(Unsent::NoPeer)?;
        Ok((Pending(call), Writing { channel, call }))
    }

    /// Begins an answer; the rest of its body is written, `total` bytes in all, if that is known. What is answered to the call
    /// after that is not sent; without [`Post::finish`] it breaks the answer off.
    pub fn begin_answer(&mut self, incoming: &Incoming, answer: Answer, total: Option<u64>) -> Writing {
        let (channel, call) = (incoming.channel, incoming.call);
        self.core.begin_answer(channel, call, answer, total);
        self.core.ring();
        Writing { channel, call }
    }

    /// The answer to a call that was just sent is read as it comes ([`Reply::rest`]), also where the party has answers put
    /// together.
    pub fn as_it_comes(&mut self, pending: &Pending) {
        self.core.as_it_comes(pending.0);
    }

    /// Whether the next piece of a body can be handed over without waiting.
    pub fn has_room(&mut self, to: &Writing) -> Result<bool, NotWanted> {
        self.core.has_room(to.channel, to.call)
    }

    /// Writes a piece of a body that was begun; waits until the one before has been sent.
    pub fn write(&mut self, to: &Writing, piece: Bytes) -> Result<(), NotWanted> {
        self.core.turn(clock::now()); // what came meanwhile may say that nobody reads
        while !self.core.has_room(to.channel, to.call)? {
            self.sleep(0, None);
        }
        let handed = self.core.hand(to.channel, to.call, piece);
        self.core.ring();
        handed
    }

    /// The body that was begun is complete.
    pub fn finish(&mut self, body: Writing) {
        self.core.finish(body.channel, body.call);
        self.core.ring();
    }

    /// The body that was begun will not be completed: the peer is told.
    pub fn abort(&mut self, body: Writing) {
        self.core.abort(body.channel, body.call);
        self.core.ring();
    }

    /// The next part of a body; nothing at the end. When none comes within `patience` (none: for ever): [`CallError::Timeout`].
    pub fn part(&mut self, rest: &Rest, patience: Option<Duration>) -> Option<Result<Bytes, CallError>> {
        let end = patience.map(clock::within);
        loop {
            if let Poll::Ready(part) = rest.next_for(None) {
                return part;
            }
            if end.is_some_and(|end| clock::now() >= end) {
                return Some(Err(CallError::Timeout));
            }
            self.sleep(0, end);
        }
    }

    /// Waits for an answer.
    pub fn wait(&mut self, pending: Pending) -> Result<Reply, CallError> {
        loop {
            if let Poll::Ready(outcome) = self.core.poll(pending.0, None) {
                return outcome;
            }
            let core = self.core.core_of(pending.0);
            self.sleep(core, None);
        }
    }

    /// The outcome of a call, if there is one: then it is not to be asked for again.
    pub fn poll(&mut self, pending: &Pending) -> Poll<Result<Reply, CallError>> {
        self.core.poll(pending.0, None)
    }

    /// Sleeps until something has come, or for `patience`; for who waits for several things. `pending`: what comes most likely.
    pub fn pause(&mut self, pending: Option<&Pending>, patience: Duration) {
        let peer = pending.map_or(0, |pending| self.core.core_of(pending.0));
        self.sleep(peer, Some(clock::within(patience)));
    }

    /// Whether a call to the function would not fail for want of credit at this moment.
    pub fn has_credit(&mut self, function: &nearpath_types::FunctionId) -> bool {
        self.core.may_send(function)
    }

    /// Waits for the first of several answers: where its call stood, and its outcome. The call is taken out, the others stay.
    /// Nothing when there is no call.
    pub fn wait_any(&mut self, pending: &mut Vec<Pending>) -> Option<(usize, Result<Reply, CallError>)> {
        while !pending.is_empty() {
            for at in 0..pending.len() {
                if let Poll::Ready(outcome) = self.core.poll(pending[at].0, None) {
                    let _ = pending.remove(at);
                    return Some((at, outcome));
                }
            }
            self.sleep(0, None);
        }
        None
    }

    /// Waits for all answers, in the order of the calls. One that fails leaves the others alone.
    pub fn wait_all(&mut self, pending: impl IntoIterator<Item = Pending>) -> Vec<Result<Reply, CallError>> {
        pending.into_iter().map(|pending| self.wait(pending)).collect()
    }

    /// Gives a call up; the peer is told.
    pub fn cancel(&mut self, pending: Pending) {
        self.core.leave(pending.0);
        self.core.ring();
    }

    /// Sends an event: nobody answers, and it may be lost with its receiver.
    pub fn notify(&mut self, to: To<'_>, request: &Request<'_>) -> Result<(), Unsent> {
        self.notify_load(to, request, Load::Kept(&request.body))
    }

    /// As [`Post::notify`] with this body in place of the request's; see [`Post::begin_with`].
    pub fn notify_with(&mut self, to: To<'_>, request: &Request<'_>, body: &mut Payload) -> Result<(), Unsent> {
        self.notify_load(to, request, Load::Given(body))
    }

    fn notify_load(&mut self, to: To<'_>, request: &Request<'_>, load: Load<'_>) -> Result<(), Unsent> {
        let now = clock::now();
        self.core.turn(now);
        let sent = self.core.notify(to, request, load, now);
        self.core.ring();
        sent
    }

    /// Sends an event to one instance of each function that subscribes to this topic, without the gateway.
    pub fn publish(&mut self, topic: &str, request: &Request<'_>) -> Published {
        let now = clock::now();
        self.core.turn(now);
        let published = self.core.publish(topic, request, now);
        self.core.ring();
        published
    }

    /// The next call or event; nothing when none came within `patience` (none: for ever) or the node has hung up.
    pub fn next(&mut self, patience: Option<Duration>) -> Option<Incoming> {
        self.next_unless(patience, || false)
    }

    /// As [`Post::next`], and nothing too when `enough` says so: it is asked after each wake-up. [`Post::knocker`] wakes.
    pub fn next_unless(&mut self, patience: Option<Duration>, mut enough: impl FnMut() -> bool) -> Option<Incoming> {
        let end = patience.map(clock::within);
        loop {
            self.core.turn(clock::now());
            if let Some(incoming) = self.core.incoming.pop_front() {
                return Some(incoming);
            }
            if enough() || self.core.hung_up() || end.is_some_and(|end| clock::now() >= end) {
                return None;
            }
            self.sleep(0, end);
        }
    }

    /// Whether the node has hung up: nobody new comes, calls that are open go on.
    pub fn hung_up(&self) -> bool {
        self.core.hung_up()
    }

    /// What wakes this party from another thread of its process: [`Knocker::deliver`].
    pub fn knocker(&self) -> Knocker {
        let knocker = self.core.desk.knocker();
        match &self.core.inbox {
            Some(inbox) => knocker.over(inbox.wire.clone(), 0), // it sleeps in a read of its socket
            None => knocker,
        }
    }

    /// Whether a function can be called at this moment, credits aside.
    pub fn knows(&mut self, function: &nearpath_types::FunctionId) -> bool {
        self.core.book.knows(function) || {
            self.core.turn(clock::now());
            self.core.book.knows(function)
        }
    }

    /// Answers a call. An event has no answer: nothing is sent.
    pub fn answer(&mut self, incoming: Incoming, answer: Answer) {
        let (channel, call, event) = (incoming.channel, incoming.call, incoming.event);
        drop(incoming); // its slot is free for the answer
        if !event {
            self.core.answer(channel, call, answer, clock::now());
            self.core.ring();
        }
    }

    /// Serves until the node hangs up. What the handler returns for an event is not sent. A body that it takes out can be passed on.
    pub fn serve(&mut self, mut handler: impl FnMut(&mut Self, &mut Incoming) -> Answer) -> io::Result<()> {
        self.serve_until(|post, incoming| ControlFlow::Continue(handler(post, incoming)))
    }

    /// Serves until the handler breaks off or the node hangs up.
    pub fn serve_until(
        &mut self,
        mut handler: impl FnMut(&mut Self, &mut Incoming) -> ControlFlow<(), Answer>,
    ) -> io::Result<()> {
        self.ready()?;
        while let Some(mut incoming) = self.next(None) {
            match handler(self, &mut incoming) {
                ControlFlow::Continue(answer) => self.answer(incoming, answer),
                ControlFlow::Break(()) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Sleeps until something comes, then takes it.
    fn sleep(&mut self, peer: u32, end: Option<Nanos>) {
        let now = clock::now();
        let next = [self.core.next_turn(now), end].into_iter().flatten().min();
        let left = next.map_or(HEARTBEAT, |next| Duration::from_nanos(next.saturating_sub(now)).min(HEARTBEAT));
        self.core.wait(peer, Some(left));
        let woken = clock::now();
        if woken.saturating_sub(now) >= HEARTBEAT.as_nanos() as u64 {
            self.core.read_socket();
        }
        self.core.turn(woken);
    }
}
