//! One thread in its domain, and its way to the gateway.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_domain::post::blocking::{self, Post};
use nearpath_domain::post::{Draft, Payload, Settings};
use nearpath_domain::{CallError, To, Unsent};
use nearpath_types::FunctionId;

use super::far::{Distant, Far};
use crate::ask::Ask;
use crate::context::Context;
use crate::environment::Environment;
use crate::error::{Error, Kind};
use crate::far::{LARGEST_BODY, Way};
use crate::home::{YOUTH, function, nobody, refused, unsent};
use crate::message::Response;
use crate::near::asking;

/// After a join that failed, calls do not try again for so long.
const PAUSE: Duration = Duration::from_secs(1);

/// A thread that calls, and perhaps serves. It is no party of the domain before it needs to be.
#[derive(Debug)]
pub struct Party {
    pub(super) environment: Environment,
    pub(super) post: Option<Post>,
    pub(super) serves: bool,
    far: Arc<Far>,
    joined: Option<Instant>,
    again: Option<Instant>,
    /// How often it has joined: calls end with the membership that they were made in.
    joins: u64,
    /// What the handler that runs hands on to its calls.
    pub(super) context: Context,
}

/// A call whose answer is not waited for yet: [`Party::wait`] or [`Party::cancel`].
#[derive(Debug)]
#[must_use = "an answer that nobody waits for is kept for ever"]
pub struct Pending {
    name: String,
    call: Underway,
    body: Payload,
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
        let far = Arc::new(Far::new(environment.gateway.clone()));
        let (post, joined, again, context) = (None, None, None, Context::default());
        Self { environment, post, serves: false, far, joined, again, joins: 0, context }
    }

    /// Another one in the same surroundings, for another thread. Both use the same connections to the gateway.
    pub fn another(&self) -> Self {
        Self { far: Arc::clone(&self.far), ..Self::new(self.environment.clone()) }
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
        let call = self.send(name, &mut body, ask, context)?;
        Ok(Pending { name: name.to_owned(), call, body, ask: ask.clone(), context })
    }

    fn send(&mut self, name: &str, body: &mut Payload, ask: &Ask, context: Context) -> Result<Underway, Error> {
        let to = function(name)?;
        let _twice = ask.idempotent.then(|| body.bytes().clone()); // what may be needed again is not handed over
        if let Some(post) = self.reaching(&to) {
            let to = To::Function(&to);
            let sent = asking(ask, &Bytes::new(), context, |request| post.begin_with(to, request, body));
            match sent {
                Ok(pending) => return Ok(Underway::Near(pending, self.joins)),
                Err(why) if ask.near_only || why == Unsent::Lost => return Err(Error::unsent(name, why)),
                Err(_) => {}
            }
        } else if ask.near_only {
            return Err(nobody(name));
        }
        self.far.begin(name, body.bytes().clone(), ask, context).map(Underway::Far)
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// As [`Party::call`].
    pub fn wait(&mut self, pending: Pending) -> Result<Response, Error> {
        let Pending { name, call, mut body, ask, context } = pending;
        match self.outcome(&name, call) {
            Err(error) if !ask.near_only && unsent(&error) && error.path() == Some(crate::Path::Shm) => {
                self.far.call(Way::Sync, &name, body.bytes(), &ask, context)
            }
            Err(error) if ask.idempotent && matches!(error.kind(), Kind::Died(_)) => {
                let again = self.send(&name, &mut body, &ask, context)?;
                self.outcome(&name, again)
            }
            outcome => outcome,
        }
    }

    fn outcome(&mut self, name: &str, call: Underway) -> Result<Response, Error> {
        let (pending, joins) = match call {
            Underway::Far(distant) => return self.far.wait(name, distant),
            Underway::Near(pending, joins) => (pending, joins),
        };
        let post = self.post.as_mut().filter(|_| joins == self.joins);
        let post = post.ok_or_else(|| Error::near(name, CallError::Died))?;
        let reply = post.wait(pending).map_err(|error| Error::near(name, error))?;
        Response::of_memory(name, reply)
    }

    /// Gives a call up; the callee is told.
    pub fn cancel(&mut self, pending: Pending) {
        if let (Underway::Near(call, joins), Some(post)) = (pending.call, self.post.as_mut())
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
        if let Some(post) = self.reaching(&to) {
            let to = To::Function(&to);
            let sent: Result<(), Unsent> =
                asking(ask, &Bytes::new(), context, |request| post.notify_with(to, request, &mut body));
            match sent {
                Ok(()) => return Ok(()),
                Err(why) if ask.near_only || why == Unsent::Lost => return Err(Error::unsent(name, why)),
                Err(_) => {}
            }
        } else if ask.near_only {
            return Err(nobody(name));
        }
        let accepted = self.far.call(Way::Async, name, body.bytes(), ask, context)?;
        refused(name, &accepted)
    }

    /// The party in the domain, if the function can be called there.
    fn reaching(&mut self, function: &FunctionId) -> Option<&mut Post> {
        if !self.serves {
            self.enter(); // who serves joins between calls: answers go where the call came from
        }
        let young = self.joined.map(|joined| joined + YOUTH);
        let post = self.post.as_mut()?;
        while !post.knows(function) {
            let left = young.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_none_or(|left| left.is_zero()) {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1)); // nobody tells that the last peer was told
        }
        Some(post)
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
        let settings = Settings { serves: self.serves, largest_body: LARGEST_BODY, ..Settings::default() };
        match Post::dial(door, settings) {
            Ok(post) => {
                (self.post, self.joined, self.again) = (Some(post), Some(Instant::now()), None);
                self.joins += 1;
            }
            Err(error) => {
                eprintln!("nearpath: no shared memory for now, calls go over HTTP: {error}");
                self.again = Some(Instant::now() + PAUSE);
            }
        }
        self.post.is_some()
    }
}
