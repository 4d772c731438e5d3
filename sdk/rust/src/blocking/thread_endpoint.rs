//! One thread in its domain, and its connections to the gateway.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_domain::endpoint::blocking::{self, BlockingEndpoint};
use nearpath_domain::endpoint::{BodyDraft, CallBody, EndpointSettings, PublishReport};
use nearpath_domain::{CallDestination, CallError, CallReply, UnsentReason};
use nearpath_path::Obstacle;
use nearpath_types::FunctionId;

use super::active_response::ActiveResponse;
use super::http_calls::{HttpCalls, HttpPending, InterruptCheck, ThreadWakeup};
use super::streaming_call::AbandonedCalls;
use crate::body_stream::MAX_BODY_BYTES;
use crate::call_options::CallOptions;
use crate::context::CallContext;
use crate::environment::Environment;
use crate::error::{Error, ErrorKind};
use crate::http_client::GatewayMode;
use crate::message::Response;
use crate::path_header;
use crate::shm_client::with_request;
use crate::thread_context::{
    JOIN_GRACE, check_topic, parse_function, queued_call_id, unreachable_error,
};

/// After a join that failed, calls do not try again for so long.
const JOIN_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a wait checks for interrupts, because a signal can arrive just before the sleep.
pub(super) const INTERRUPT_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Number of the last join in the process: state of one membership is never used in another.
static LAST_JOIN: AtomicU64 = AtomicU64::new(1);

/// A thread that calls, and optionally serves. It joins its domain on first use.
#[derive(Debug)]
pub struct ThreadEndpoint {
    pub(super) environment: Environment,
    pub(super) endpoint: Option<BlockingEndpoint>,
    pub(super) serves: bool,
    /// Requests are handed over when they begin.
    pub(super) streams: bool,
    pub(super) response: ActiveResponse,
    pub(super) abandoned: AbandonedCalls,
    pub(super) interrupt: InterruptCheck,
    wakeup: Arc<ThreadWakeup>,
    pub(super) http: Arc<HttpCalls>,
    joined_at: Option<Instant>,
    retry_join_at: Option<Instant>,
    /// The number of its membership, 0 before the first: calls end with the one that they were made in.
    pub(super) join_number: u64,
    /// Context that the running handler passes on to its calls.
    pub(super) context: CallContext,
}

/// A call whose answer is not waited for yet: [`ThreadEndpoint::wait_response`] or [`ThreadEndpoint::cancel_call`].
#[derive(Debug)]
#[must_use = "an answer that nobody waits for is kept for ever"]
pub struct BegunCall {
    name: String,
    /// None once its outcome is there.
    call: Option<PendingPath>,
    body: CallBody,
    /// How long it was: one that was handed over is gone.
    bytes: usize,
    ask: CallOptions,
    context: CallContext,
}

#[derive(Debug)]
enum PendingPath {
    /// And in which membership.
    Shm(blocking::PendingCall, u64),
    Http(HttpPending),
}

impl Default for ThreadEndpoint {
    fn default() -> Self {
        Self::new(Environment::from_process())
    }
}

impl ThreadEndpoint {
    /// Creates an endpoint with a given environment.
    pub fn new(environment: Environment) -> Self {
        let far = HttpCalls::for_gateway(&environment.gateway);
        Self {
            environment,
            endpoint: None,
            serves: false,
            streams: false,
            response: ActiveResponse::default(),
            abandoned: AbandonedCalls::default(),
            interrupt: None,
            wakeup: Arc::default(),
            http: far,
            joined_at: None,
            retry_join_at: None,
            join_number: 0,
            context: CallContext::default(),
        }
    }

    /// Creates another endpoint of the same environment, for another thread. All share their gateway connections.
    pub fn clone_for_thread(&self) -> Self {
        Self {
            streams: self.streams,
            interrupt: self.interrupt,
            ..Self::new(self.environment.clone())
        }
    }

    /// Hands requests over when they begin; read their bodies with [`ThreadEndpoint::next_part`].
    pub fn streaming(mut self) -> Self {
        self.set_streaming(true);
        self
    }

    /// As [`ThreadEndpoint::streaming`], before it serves.
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
    /// it waits for. It is left as it is, not even closed, and this endpoint begins anew, in the surroundings of now.
    pub fn reset_after_fork(&mut self) {
        let own = Self {
            streams: self.streams,
            interrupt: self.interrupt,
            ..Self::default()
        };
        std::mem::forget(std::mem::replace(self, own));
    }

    /// Memory to write a payload in that goes out where it lies: so many zeros. It is accepted wherever a payload is. Where there
    /// is no domain, or no slot, it is private memory.
    pub fn draft_body(&mut self, bytes: usize) -> BodyDraft {
        self.draft_body_in_slot(bytes)
            .unwrap_or_else(|| BodyDraft::in_private_memory(bytes))
    }

    /// As [`ThreadEndpoint::draft_body`], and nothing where it would be in private memory.
    pub fn draft_body_in_slot(&mut self, bytes: usize) -> Option<BodyDraft> {
        if !self.serves {
            self.ensure_joined();
        }
        self.endpoint.as_mut()?.draft_body_in_slot(bytes)
    }

    /// Calls a function and waits for its answer, whatever status that has.
    ///
    /// # Errors
    /// When there is no answer of the function.
    pub fn call(
        &mut self,
        name: &str,
        payload: impl Into<CallBody>,
        ask: &CallOptions,
    ) -> Result<Response, Error> {
        let pending = self.begin_call(name, payload, ask)?;
        self.wait_response(pending)
    }

    /// Sends a call without waiting for its answer: for several at once.
    ///
    /// # Errors
    /// When it was not sent.
    pub fn begin_call(
        &mut self,
        name: &str,
        payload: impl Into<CallBody>,
        ask: &CallOptions,
    ) -> Result<BegunCall, Error> {
        let (mut body, context) = (payload.into(), self.context.with_options(ask));
        let bytes = body.len();
        let call = self.send_call(name, &mut body, ask, context)?;
        Ok(BegunCall {
            name: name.to_owned(),
            call: Some(call),
            body,
            bytes,
            ask: ask.clone(),
            context,
        })
    }

    fn send_call(
        &mut self,
        name: &str,
        body: &mut CallBody,
        ask: &CallOptions,
        context: CallContext,
    ) -> Result<PendingPath, Error> {
        let to = parse_function(name)?;
        let _twice = ask.idempotent.then(|| body.bytes().clone()); // what may be needed again is not handed over
        if self.has_function(&to) {
            let (to, none) = (CallDestination::Function(&to), Bytes::new());
            let send = |post: &mut BlockingEndpoint| {
                with_request(ask, &none, context, |request| {
                    post.begin_call_with(to, request, body)
                })
            };
            match self.send_with_credit(context, send) {
                Ok(pending) => return Ok(PendingPath::Shm(pending, self.join_number)),
                Err(why) if ask.shm_only || why == UnsentReason::BodyLost => {
                    return Err(Error::from_unsent(name, why));
                }
                Err(_) => {}
            }
        } else if ask.shm_only {
            return Err(unreachable_error(name));
        }
        let way = GatewayMode::Sync(self.shm_obstacle(&to));
        self.http
            .begin_call(name, way, body.bytes().clone(), ask, context, &self.wakeup)
            .map(PendingPath::Http)
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// As [`ThreadEndpoint::call`].
    pub fn wait_response(&mut self, mut pending: BegunCall) -> Result<Response, Error> {
        let outcome = self.wait_outcome(&pending.name, pending.call.take());
        self.finish_or_retry(pending, outcome)
    }

    /// Waits for the first of several answers: where its call stood, and its outcome. The call is taken out, the others stay.
    /// Nothing when there is no call.
    pub fn wait_any(
        &mut self,
        calls: &mut [Option<BegunCall>],
    ) -> Option<(usize, Result<Response, Error>)> {
        self.wakeup.set_current();
        while calls.iter().any(Option::is_some) {
            for (at, call) in calls.iter_mut().enumerate() {
                let outcome = call.as_mut().and_then(|pending| self.poll_pending(pending));
                if let (Some(outcome), Some(pending)) =
                    (outcome, call.take_if(|pending| pending.call.is_none()))
                {
                    return Some((at, self.finish_or_retry(pending, outcome)));
                }
            }
            match &mut self.endpoint {
                Some(post) => post.sleep_for(None, INTERRUPT_CHECK_INTERVAL),
                None => std::thread::park_timeout(INTERRUPT_CHECK_INTERVAL),
            }
            if let Err(error) = self.check_interrupt("", crate::Path::Shm) {
                let at = calls.iter().position(Option::is_some)?;
                calls[at]
                    .take()
                    .into_iter()
                    .for_each(|pending| self.cancel_call(pending));
                return Some((at, Err(error)));
            }
        }
        None
    }

    /// The outcome of a call, if it has come.
    fn poll_pending(&mut self, pending: &mut BegunCall) -> Option<Result<Response, Error>> {
        match pending.call.as_ref()? {
            PendingPath::Http(distant) if !distant.has_ended() => return None,
            PendingPath::Shm(call, joins)
                if *joins == self.join_number && self.endpoint.is_some() =>
            {
                let Poll::Ready(outcome) = self.endpoint.as_mut()?.poll_response(call) else {
                    return None;
                };
                pending.call = None;
                return Some(response_from(&pending.name, outcome));
            }
            _ => {}
        }
        let call = pending.call.take();
        Some(self.wait_outcome(&pending.name, call))
    }

    /// Finishes a call; some failures retry on another path.
    fn finish_or_retry(
        &mut self,
        pending: BegunCall,
        outcome: Result<Response, Error>,
    ) -> Result<Response, Error> {
        let BegunCall {
            name,
            mut body,
            bytes,
            ask,
            context,
            ..
        } = pending;
        let near = |error: &Error| error.path() == Some(crate::Path::Shm);
        match outcome {
            Err(error)
                if !ask.shm_only
                    && near(&error)
                    && error.retry_is_safe()
                    && body.len() == bytes =>
            {
                self.http.call(
                    GatewayMode::Sync(Obstacle::NoRoom),
                    &name,
                    body.bytes(),
                    &ask,
                    context,
                )
            }
            Err(error) if ask.idempotent && matches!(error.kind(), ErrorKind::Died(_)) => {
                let again = self.send_call(&name, &mut body, &ask, context)?;
                self.wait_outcome(&name, Some(again))
            }
            outcome => outcome,
        }
    }

    fn wait_outcome(&mut self, name: &str, call: Option<PendingPath>) -> Result<Response, Error> {
        let died = || Error::from_call_error(name, CallError::PeerDied);
        let (pending, joins) = match call.ok_or_else(died)? {
            PendingPath::Http(distant) => {
                return self.http.wait_response(name, distant, self.interrupt);
            }
            PendingPath::Shm(pending, joins) => (pending, joins),
        };
        let post = self
            .endpoint
            .as_mut()
            .filter(|_| joins == self.join_number)
            .ok_or_else(died)?;
        let Some(stop) = self.interrupt else {
            return response_from(name, post.wait_response(pending));
        };
        loop {
            if let Poll::Ready(outcome) = post.poll_response(&pending) {
                return response_from(name, outcome);
            }
            post.sleep_for(Some(&pending), INTERRUPT_CHECK_INTERVAL);
            if let Poll::Ready(outcome) = post.poll_response(&pending) {
                return response_from(name, outcome);
            }
            if stop() {
                post.cancel_call(pending);
                return Err(Error::new(
                    name,
                    Some(crate::Path::Shm),
                    ErrorKind::Died("it was given up here".into()),
                ));
            }
        }
    }

    /// Cancels a call; the callee is told.
    pub fn cancel_call(&mut self, pending: BegunCall) {
        if let (Some(PendingPath::Shm(call, joins)), Some(post)) =
            (pending.call, self.endpoint.as_mut())
            && joins == self.join_number
        {
            post.cancel_call(call);
        }
    }

    /// Sends an event. It was handed over when this returns, and may still be lost with its receiver.
    ///
    /// # Errors
    /// When it was not handed over.
    pub fn send_event(
        &mut self,
        name: &str,
        payload: impl Into<CallBody>,
        ask: &CallOptions,
    ) -> Result<(), Error> {
        let (to, mut body, context) = (
            parse_function(name)?,
            payload.into(),
            self.context.with_options(ask),
        );
        if self.has_function(&to) {
            let (to, none) = (CallDestination::Function(&to), Bytes::new());
            let send = |post: &mut BlockingEndpoint| {
                with_request(ask, &none, context, |request| {
                    post.send_event_with(to, request, &mut body)
                })
            };
            match self.send_with_credit(context, send) {
                Ok(()) => return Ok(()),
                Err(why) if ask.shm_only || why == UnsentReason::BodyLost => {
                    return Err(Error::from_unsent(name, why));
                }
                Err(_) => {}
            }
        } else if ask.shm_only {
            return Err(unreachable_error(name));
        }
        queued_call_id(
            name,
            self.http
                .call(GatewayMode::Async, name, body.bytes(), ask, context)?,
        )
        .map(drop)
    }

    /// Has a function called later: see [`crate::call_later`].
    ///
    /// # Errors
    /// When the gateway did not accept it.
    pub fn call_later(
        &mut self,
        name: &str,
        payload: impl Into<CallBody>,
        ask: &CallOptions,
    ) -> Result<Option<String>, Error> {
        parse_function(name)?;
        let (body, context) = (payload.into(), self.context.with_options(ask));
        queued_call_id(
            name,
            self.http
                .call(GatewayMode::Async, name, body.bytes(), ask, context)?,
        )
    }

    /// Returns the fields that propagate the handler's context: see [`CallOptions::propagated_fields`].
    pub fn propagated_fields(&self) -> Vec<(&'static str, String)> {
        self.context.fields().collect()
    }

    /// Sends an event to one instance of each function of the domain that subscribes to the topic, and says to how many. Outside
    /// a domain it has no subscribers. It may be lost with its receiver.
    ///
    /// # Errors
    /// [`ErrorKind::Name`] when that is no topic.
    pub fn publish_event(
        &mut self,
        topic: &str,
        payload: impl Into<Bytes>,
        ask: &CallOptions,
    ) -> Result<PublishReport, Error> {
        check_topic(topic)?;
        let (body, context) = (payload.into(), self.context.with_options(ask));
        self.join_if_calling();
        loop {
            let Some(post) = self.endpoint.as_mut() else {
                return Ok(PublishReport::default());
            };
            let published = with_request(ask, &body, context, |request| {
                post.publish_event(topic, request)
            });
            if published != PublishReport::default() || !self.in_join_grace() {
                return Ok(published);
            }
            std::thread::sleep(Duration::from_millis(1)); // no event reports that the last peer was notified
        }
    }

    /// Returns true if the function can be called in the domain.
    pub(super) fn has_function(&mut self, function: &FunctionId) -> bool {
        self.join_if_calling();
        while self
            .endpoint
            .as_mut()
            .is_some_and(|post| !post.has_function(function))
            && self.in_join_grace()
        {
            std::thread::sleep(Duration::from_millis(1)); // no event reports that the last peer was notified
        }
        self.endpoint
            .as_mut()
            .is_some_and(|post| post.has_function(function))
    }

    /// Returns the reason why shared memory was not used.
    pub(super) fn shm_obstacle(&mut self, function: &FunctionId) -> Obstacle {
        path_header::obstacle(
            self.endpoint
                .as_mut()
                .map(|post| post.has_function(function)),
        )
    }

    fn join_if_calling(&mut self) {
        if !self.serves {
            self.ensure_joined(); // who serves joins between calls: answers go where the call came from
        }
        self.cancel_abandoned();
    }

    /// Returns true if peers may still be unknown shortly after joining.
    fn in_join_grace(&self) -> bool {
        self.joined_at
            .is_some_and(|joined| joined.elapsed() < JOIN_GRACE)
    }

    /// Becomes an endpoint of the domain where there is a door; again after the node has restarted, when that failed only a
    /// second later.
    pub(super) fn ensure_joined(&mut self) -> bool {
        if self.endpoint.as_ref().is_some_and(|post| !post.hung_up()) {
            return true;
        }
        let Some(door) = self.environment.dispatch_socket.as_deref() else {
            return false;
        };
        if self
            .retry_join_at
            .is_some_and(|again| Instant::now() < again)
        {
            return self.endpoint.is_some(); // calls that are open go on
        }
        let Self {
            serves, streams, ..
        } = *self;
        let settings = EndpointSettings {
            serves,
            stream_calls: streams,
            max_body_bytes: MAX_BODY_BYTES,
            ..EndpointSettings::default()
        };
        match BlockingEndpoint::dial(door, settings) {
            Ok(post) => {
                *self
                    .wakeup
                    .signal
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = Some(post.wakeup_signal());
                (self.endpoint, self.joined_at, self.retry_join_at) =
                    (Some(post), Some(Instant::now()), None);
                self.join_number = LAST_JOIN.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                eprintln!("nearpath: no shared memory for now, calls go over HTTP: {error}");
                self.retry_join_at = Some(Instant::now() + JOIN_RETRY_INTERVAL);
            }
        }
        self.endpoint.is_some()
    }
}

fn response_from(name: &str, outcome: Result<CallReply, CallError>) -> Result<Response, Error> {
    outcome
        .map_err(|error| Error::from_call_error(name, error))
        .and_then(|mut reply| Response::from_reply(name, &mut reply))
}
