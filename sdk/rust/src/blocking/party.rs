//! One thread in its domain, and its way to the gateway.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_domain::post::blocking::{self, Post};
use nearpath_domain::post::{Draft, Payload, Published, Settings};
use nearpath_domain::{CallError, Reply, To, Unsent};
use nearpath_types::FunctionId;

use super::answering::Answering;
use super::exchange::Leftover;
use super::far::{Bell, Distant, Far, Interrupt};
use crate::ask::Ask;
use crate::context::Context;
use crate::environment::Environment;
use crate::error::{Error, Kind};
use crate::far::{LARGEST_BODY, Way};
use crate::home::{YOUTH, accepted, check_topic, function, nobody};
use crate::message::Response;
use crate::near::asking;
use crate::way::{self, NO_ROOM};

/// After a join that failed, calls do not try again for so long.
const PAUSE: Duration = Duration::from_secs(1);
/// Who waits looks after so long whether it should: for a signal that came just before it slept.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// Numbers of memberships, of all parties of the process: what was begun with one party is not mistaken for another's.
static JOINS: AtomicU64 = AtomicU64::new(1);

/// A thread that calls, and perhaps serves. It is no party of the domain before it needs to be.
#[derive(Debug)]
pub struct Party {
    pub(super) environment: Environment,
    pub(super) post: Option<Post>,
    pub(super) serves: bool,
    /// Requests are handed over when they begin.
    pub(super) streams: bool,
    pub(super) answering: Answering,
    pub(super) leftover: Leftover,
    pub(super) interrupt: Interrupt,
    bell: Arc<Bell>,
    pub(super) far: Arc<Far>,
    joined: Option<Instant>,
    again: Option<Instant>,
    /// The number of its membership, 0 before the first: calls end with the one that they were made in.
    pub(super) joins: u64,
    /// What the handler that runs hands on to its calls.
    pub(super) context: Context,
}

/// A call whose answer is not waited for yet: [`Party::wait`] or [`Party::cancel`].
#[derive(Debug)]
#[must_use = "an answer that nobody waits for is kept for ever"]
pub struct Pending {
    name: String,
    /// None once its outcome is there.
    call: Option<Underway>,
    body: Payload,
    /// How long it was: one that was handed over is gone.
    bytes: usize,
    ask: Ask,
    context: Context,
}

#[derive(Debug)]
enum Underway {
    /// And in which membership.
    Near(blocking::Pending, u64),
    Far(Distant),
}

impl Default for Party {
    fn default() -> Self {
        Self::new(Environment::own())
    }
}

impl Party {
    /// In given surroundings.
    pub fn new(environment: Environment) -> Self {
        let far = Far::to(&environment.gateway);
        Self {
            environment,
            post: None,
            serves: false,
            streams: false,
            answering: Answering::default(),
            leftover: Leftover::default(),
            interrupt: None,
            bell: Arc::default(),
            far,
            joined: None,
            again: None,
            joins: 0,
            context: Context::default(),
        }
    }

    /// Another one in the same surroundings, for another thread. All use the same connections to the gateway.
    pub fn another(&self) -> Self {
        Self { streams: self.streams, interrupt: self.interrupt, ..Self::new(self.environment.clone()) }
    }

    /// What it serves is handed over when it begins, and read with [`Party::part`].
    pub fn streaming(mut self) -> Self {
        self.set_streaming(true);
        self
    }

    /// As [`Party::streaming`], before it serves.
    pub fn set_streaming(&mut self, streams: bool) {
        self.streams = streams;
    }

    /// `stop` is asked while an answer is waited for, when something has woken the thread and five times a second: when it says
    /// so, the call is given up. For languages whose signals are handled on the thread itself.
    pub fn interrupted_by(mut self, stop: fn() -> bool) -> Self {
        self.interrupt = Some(stop);
        self
    }

    /// In the child of a process that forked, on the thread that did: what came along is the parent's, as are its bodies and the calls
    /// it waits for. It is left as it is, not even closed, and this party begins anew, in the surroundings of now.
    pub fn forked(&mut self) {
        let own = Self { streams: self.streams, interrupt: self.interrupt, ..Self::default() };
        std::mem::forget(std::mem::replace(self, own));
    }

    /// Memory to write a payload in that goes out where it lies: so many zeros. It is accepted wherever a payload is. Where there
    /// is no domain, or no slot, it is private memory.
    pub fn draft(&mut self, bytes: usize) -> Draft {
        self.draft_in_slot(bytes).unwrap_or_else(|| Draft::private(bytes))
    }

    /// As [`Party::draft`], and nothing where it would be in private memory.
    pub fn draft_in_slot(&mut self, bytes: usize) -> Option<Draft> {
        if !self.serves {
            self.enter();
        }
        self.post.as_mut()?.draft_in_slot(bytes)
    }

    /// Calls a function and waits for its answer, whatever status that has.
    ///
    /// # Errors
    /// When there is no answer of the function.
    pub fn call(&mut self, name: &str, payload: impl Into<Payload>, ask: &Ask) -> Result<Response, Error> {
        let pending = self.begin(name, payload, ask)?;
        self.wait(pending)
    }

    /// Sends a call without waiting for its answer: for several at once.
    ///
    /// # Errors
    /// When it was not sent.
    pub fn begin(&mut self, name: &str, payload: impl Into<Payload>, ask: &Ask) -> Result<Pending, Error> {
        let (mut body, context) = (payload.into(), self.context.narrowed(ask));
        let bytes = body.len();
        let call = self.send(name, &mut body, ask, context)?;
        Ok(Pending { name: name.to_owned(), call: Some(call), body, bytes, ask: ask.clone(), context })
    }

    fn send(&mut self, name: &str, body: &mut Payload, ask: &Ask, context: Context) -> Result<Underway, Error> {
        let to = function(name)?;
        let _twice = ask.idempotent.then(|| body.bytes().clone()); // what may be needed again is not handed over
        if self.reaches(&to) {
            let (to, none) = (To::Function(&to), Bytes::new());
            let send = |post: &mut Post| asking(ask, &none, context, |request| post.begin_with(to, request, body));
            match self.patiently(context, send) {
                Ok(pending) => return Ok(Underway::Near(pending, self.joins)),
                Err(why) if ask.near_only || why == Unsent::Lost => return Err(Error::unsent(name, why)),
                Err(_) => {}
            }
        } else if ask.near_only {
            return Err(nobody(name));
        }
        let way = Way::Sync(self.obstacle(&to));
        self.far.begin(name, way, body.bytes().clone(), ask, context, &self.bell).map(Underway::Far)
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// As [`Party::call`].
    pub fn wait(&mut self, mut pending: Pending) -> Result<Response, Error> {
        let outcome = self.outcome(&pending.name, pending.call.take());
        self.conclude(pending, outcome)
    }

    /// Waits for the first of several answers: where its call stood, and its outcome. The call is taken out, the others stay.
    /// Nothing when there is no call.
    pub fn wait_any(&mut self, calls: &mut [Option<Pending>]) -> Option<(usize, Result<Response, Error>)> {
        self.bell.here();
        while calls.iter().any(Option::is_some) {
            for (at, call) in calls.iter_mut().enumerate() {
                let outcome = call.as_mut().and_then(|pending| self.ready(pending));
                if let (Some(outcome), Some(pending)) = (outcome, call.take_if(|pending| pending.call.is_none())) {
                    return Some((at, self.conclude(pending, outcome)));
                }
            }
            match &mut self.post {
                Some(post) => post.pause(None, LOOK),
                None => std::thread::park_timeout(LOOK),
            }
            if let Err(error) = self.look_up("", crate::Path::Shm) {
                let at = calls.iter().position(Option::is_some)?;
                calls[at].take().into_iter().for_each(|pending| self.cancel(pending));
                return Some((at, Err(error)));
            }
        }
        None
    }

    /// The outcome of a call, if it has come.
    fn ready(&mut self, pending: &mut Pending) -> Option<Result<Response, Error>> {
        match pending.call.as_ref()? {
            Underway::Far(distant) if !distant.has_ended() => return None,
            Underway::Near(call, joins) if *joins == self.joins && self.post.is_some() => {
                let Poll::Ready(outcome) = self.post.as_mut()?.poll(call) else { return None };
                pending.call = None;
                return Some(told(&pending.name, outcome));
            }
            _ => {}
        }
        let call = pending.call.take();
        Some(self.outcome(&pending.name, call))
    }

    /// What is told of an outcome: some calls go another way.
    fn conclude(&mut self, pending: Pending, outcome: Result<Response, Error>) -> Result<Response, Error> {
        let Pending { name, mut body, bytes, ask, context, .. } = pending;
        let near = |error: &Error| error.path() == Some(crate::Path::Shm);
        match outcome {
            Err(error) if !ask.near_only && near(&error) && error.retry_is_safe() && body.len() == bytes => {
                self.far.call(Way::Sync(NO_ROOM), &name, body.bytes(), &ask, context)
            }
            Err(error) if ask.idempotent && matches!(error.kind(), Kind::Died(_)) => {
                let again = self.send(&name, &mut body, &ask, context)?;
                self.outcome(&name, Some(again))
            }
            outcome => outcome,
        }
    }

    fn outcome(&mut self, name: &str, call: Option<Underway>) -> Result<Response, Error> {
        let died = || Error::near(name, CallError::Died);
        let (pending, joins) = match call.ok_or_else(died)? {
            Underway::Far(distant) => return self.far.wait(name, distant, self.interrupt),
            Underway::Near(pending, joins) => (pending, joins),
        };
        let post = self.post.as_mut().filter(|_| joins == self.joins).ok_or_else(died)?;
        let Some(stop) = self.interrupt else { return told(name, post.wait(pending)) };
        loop {
            if let Poll::Ready(outcome) = post.poll(&pending) {
                return told(name, outcome);
            }
            post.pause(Some(&pending), LOOK);
            if let Poll::Ready(outcome) = post.poll(&pending) {
                return told(name, outcome);
            }
            if stop() {
                post.cancel(pending);
                return Err(Error::new(name, Some(crate::Path::Shm), Kind::Died("it was given up here".into())));
            }
        }
    }

    /// Gives a call up; the callee is told.
    pub fn cancel(&mut self, pending: Pending) {
        if let (Some(Underway::Near(call, joins)), Some(post)) = (pending.call, self.post.as_mut())
            && joins == self.joins
        {
            post.cancel(call);
        }
    }

    /// Sends an event: it was handed over when this returns; nobody answers, and it may be lost with its receiver.
    ///
    /// # Errors
    /// When it was not handed over.
    pub fn notify(&mut self, name: &str, payload: impl Into<Payload>, ask: &Ask) -> Result<(), Error> {
        let (to, mut body, context) = (function(name)?, payload.into(), self.context.narrowed(ask));
        if self.reaches(&to) {
            let (to, none) = (To::Function(&to), Bytes::new());
            let send =
                |post: &mut Post| asking(ask, &none, context, |request| post.notify_with(to, request, &mut body));
            match self.patiently(context, send) {
                Ok(()) => return Ok(()),
                Err(why) if ask.near_only || why == Unsent::Lost => return Err(Error::unsent(name, why)),
                Err(_) => {}
            }
        } else if ask.near_only {
            return Err(nobody(name));
        }
        accepted(name, self.far.call(Way::Async, name, body.bytes(), ask, context)?).map(drop)
    }

    /// Has a function called later: see [`crate::call_later`].
    ///
    /// # Errors
    /// When the gateway did not accept it.
    pub fn call_later(&mut self, name: &str, payload: impl Into<Payload>, ask: &Ask) -> Result<Option<String>, Error> {
        function(name)?;
        let (body, context) = (payload.into(), self.context.narrowed(ask));
        accepted(name, self.far.call(Way::Async, name, body.bytes(), ask, context)?)
    }

    /// The fields that hand on what the handler that runs was given: see [`Ask::handed_on`].
    pub fn handed_on(&self) -> Vec<(&'static str, String)> {
        self.context.fields().collect()
    }

    /// Sends an event to one instance of each function of the domain that subscribes to the topic, and says to how many. Outside
    /// a domain nobody subscribes. It may be lost with its receiver.
    ///
    /// # Errors
    /// [`Kind::Name`] when that is no topic.
    pub fn publish(&mut self, topic: &str, payload: impl Into<Bytes>, ask: &Ask) -> Result<Published, Error> {
        check_topic(topic)?;
        let (body, context) = (payload.into(), self.context.narrowed(ask));
        self.settle_in();
        loop {
            let Some(post) = self.post.as_mut() else { return Ok(Published::default()) };
            let published = asking(ask, &body, context, |request| post.publish(topic, request));
            if published != Published::default() || !self.is_young() {
                return Ok(published);
            }
            std::thread::sleep(Duration::from_millis(1)); // nobody tells that the last peer was told
        }
    }

    /// Whether the function can be called in the domain.
    pub(super) fn reaches(&mut self, function: &FunctionId) -> bool {
        self.settle_in();
        while self.post.as_mut().is_some_and(|post| !post.knows(function)) && self.is_young() {
            std::thread::sleep(Duration::from_millis(1)); // nobody tells that the last peer was told
        }
        self.post.as_mut().is_some_and(|post| post.knows(function))
    }

    /// What stood against shared memory.
    pub(super) fn obstacle(&mut self, function: &FunctionId) -> &'static str {
        way::obstacle(self.post.as_mut().map(|post| post.knows(function)))
    }

    fn settle_in(&mut self) {
        if !self.serves {
            self.enter(); // who serves joins between calls: answers go where the call came from
        }
        self.tidy();
    }

    /// Whether it may not have heard of everybody.
    fn is_young(&self) -> bool {
        self.joined.is_some_and(|joined| joined.elapsed() < YOUTH)
    }

    /// Becomes a party of the domain where there is a door; again after the node has restarted, when that failed only a
    /// second later.
    pub(super) fn enter(&mut self) -> bool {
        if self.post.as_ref().is_some_and(|post| !post.hung_up()) {
            return true;
        }
        let Some(door) = self.environment.door.as_deref() else { return false };
        if self.again.is_some_and(|again| Instant::now() < again) {
            return self.post.is_some(); // calls that are open go on
        }
        let Self { serves, streams, .. } = *self;
        let settings = Settings { serves, calls_stream: streams, largest_body: LARGEST_BODY, ..Settings::default() };
        match Post::dial(door, settings) {
            Ok(post) => {
                *self.bell.knocker.lock().unwrap_or_else(PoisonError::into_inner) = Some(post.knocker());
                (self.post, self.joined, self.again) = (Some(post), Some(Instant::now()), None);
                self.joins = JOINS.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                eprintln!("nearpath: no shared memory for now, calls go over HTTP: {error}");
                self.again = Some(Instant::now() + PAUSE);
            }
        }
        self.post.is_some()
    }
}

fn told(name: &str, outcome: Result<Reply, CallError>) -> Result<Response, Error> {
    outcome.map_err(|error| Error::near(name, error)).and_then(|mut reply| Response::of_memory(name, &mut reply))
}
