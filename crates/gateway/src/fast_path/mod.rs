//! The shortest way of a request: one that came whole, for an instance that is reached through memory.
//!
//! The same steps as on the long way, route, admit, deliver, record, without what only other requests need: its head goes from
//! where it was read into the slot, and the answer's head from its slot to the caller, without a map of headers in between.
//! Where anything is in the way, nothing has happened yet, and the request takes the long way.

mod request;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderValue, Request, Response};
use nearpath_domain::endpoint::polled;
use nearpath_domain::trace::{TRACEPARENT, TraceContext};
use nearpath_domain::{CallDestination, CallError, CallReply, clock};
use nearpath_path::{Path, PathChoice};
use nearpath_types::Reason;

use crate::call::Call;
use crate::context::WorkerContext;
use crate::deliver::{self, Answer, Content, Place, reply, shm};
use crate::function::{Entry, Function, Route};
use crate::pipeline;
use crate::record::Completion;
use crate::request::{Asked, CallId, Clock, Peer, StartTime, Upload, Zone};

pub use request::{Seen, Whole, read};

/// A request that was sent.
pub(crate) struct Sent {
    /// Its answer, when it comes. Dropping it cancels the call.
    pub(crate) answer: polled::CallFuture,
    /// `X-Call-Id`.
    pub(crate) call_id: CallId,
    /// `X-Start-Time`.
    pub(crate) start_time: StartTime,
    pub(crate) record: Completion,
    place: Place,
    route: Arc<Route>,
    function: Arc<Function>,
    rest: usize,
}

/// Sends a plain request. `None`: it was not sent, and leaves no trace.
pub(crate) fn send(
    lane: &Rc<WorkerContext>,
    peer: &Peer,
    whole: &Whole,
    function: &Arc<Function>,
    rest: usize,
) -> Option<Sent> {
    if peer.zone != Zone::Public || whole.asks() {
        return None;
    }
    let route = function.route();
    let body = whole.body();
    let fits = route.policy.max_body.is_none_or(|most| body.len() as u64 <= most);
    let post = lane.domains.of(route.domain.as_deref()?).filter(|_| fits)?;
    let Entry::In(permit) = function.gate.enter() else { return None };
    let place = deliver::pick(&route, permit, &[], lane.random()).ok()?;
    let (call_id, start_time) = (CallId::of(whole.fields()), StartTime::now());
    let received = body.len() as u64;
    let answer = {
        let fields = fields(whole, peer, own_target(whole, rest), &call_id, &start_time, &route)?;
        let (trace, span) = traced(&fields);
        let deadline = clock::deadline_after(route.policy.total_timeout.min(route.policy.first_byte_timeout));
        let request = nearpath_domain::CallRequest { fields: &fields, body, deadline, trace, span };
        post.call(CallDestination::Instance(place.endpoint.id), &request).ok()?
    };
    if route.foresees {
        lane.control.called(&function.id);
    }
    let mut record = Completion::of_plain(&lane.recorder, function.clone(), whole.method(), whole.path(), received);
    record.identify(call_id.as_bytes(), None);
    record.went(PathChoice { path: Path::Shm, obstacle: None });
    record.instance = Some(place.endpoint.id);
    Some(Sent { answer, call_id, start_time, record, place, route, function: function.clone(), rest })
}

/// The target that the function sees. One that has to be made is not here: the long way makes it.
fn own_target(whole: &Whole, rest: usize) -> &str {
    match &whole.target()[rest..] {
        "" => "/",
        target => target,
    }
}

/// The head as the function gets it; see `deliver::headers::to_function`. `None`: the target has to be made first.
fn fields<'a>(
    whole: &'a Whole,
    peer: &'a Peer,
    target: &'a str,
    call_id: &'a CallId,
    start_time: &'a StartTime,
    route: &'a Route,
) -> Option<Vec<(&'a str, &'a [u8])>> {
    const OWN: [&str; 3] = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
    if !target.starts_with('/') {
        return None;
    }
    let mut fields: Vec<(&str, &[u8])> = Vec::with_capacity(24);
    fields.push((":method", whole.method().as_str().as_bytes()));
    fields.push((":path", target.as_bytes()));
    let (mut host, mut told) = (&b""[..], [false; OWN.len()]);
    for (name, value) in whole.fields() {
        match name {
            "x-call-id" | "x-start-time" => continue,
            "host" => host = value,
            _ => OWN.iter().zip(&mut told).for_each(|(own, told)| *told |= *own == name),
        }
        fields.push((name, value));
    }
    let own = [peer.forwarded_for.as_bytes(), host, peer.proto.as_bytes()];
    fields.extend(OWN.into_iter().zip(own).zip(told).filter(|(_, told)| !told).map(|(field, _)| field));
    fields.push(("x-call-id", call_id.as_bytes()));
    fields.push(("x-start-time", start_time.as_bytes()));
    fields.push(("x-timeout", route.total.as_bytes()));
    Some(fields)
}

fn traced(fields: &[(&str, &[u8])]) -> ([u8; 16], [u8; 8]) {
    let told = fields.iter().find(|(name, _)| *name == TRACEPARENT);
    let trace = told.and_then(|(_, value)| TraceContext::parse_traceparent(value));
    trace.map_or_else(Default::default, |trace| (trace.id, trace.span))
}

impl Sent {
    /// The answer is complete: its place is free, and so it stands in the record.
    pub(crate) fn complete(mut self, status: u16, bytes: u64) {
        self.record.answered(status);
        self.record.bytes_out = bytes;
        self.record.finished();
    }

    /// The answer goes the long way from here: it comes in parts, or its head asks for a closer look.
    pub(crate) fn answer_long(
        self,
        lane: &Rc<WorkerContext>,
        peer: &Rc<Peer>,
        whole: &Whole,
        answer: CallReply,
    ) -> Response<Content> {
        let (call, place) = self.into_call(lane, peer, whole);
        reply(call, Answer::from_memory(answer, place))
    }

    /// The instance would not run it, because it is full or stops: the request goes the long way from there.
    pub(crate) async fn go_on(
        self,
        lane: Rc<WorkerContext>,
        peer: Rc<Peer>,
        whole: &Whole,
        refused: CallReply,
    ) -> Response<Content> {
        let (mut call, place) = self.into_call(&lane, &peer, whole);
        let Some(request) = whole.request() else { return reply(call, Answer::from_memory(refused, place)) };
        let (head, body) = request.into_parts();
        let (upload, flow) = Upload::whole(body);
        call.record.count_in(flow.clone());
        (call.request, call.flow) = (Some(Request::from_parts(head, upload)), flow);
        match pipeline::deliver_elsewhere(&mut call, place, shm::words(&refused)).await {
            Ok(answer) => reply(call, answer),
            Err(error) => pipeline::refuse_call(*call, &error).map(Content::Own),
        }
    }

    /// There is no answer.
    pub(crate) fn fail(
        self,
        lane: &Rc<WorkerContext>,
        peer: &Rc<Peer>,
        whole: &Whole,
        error: CallError,
    ) -> Response<Content> {
        let (call, place) = self.into_call(lane, peer, whole);
        let first_byte = call.route.policy.first_byte_timeout < call.route.policy.total_timeout;
        let limit = if first_byte { Reason::FirstByteTimeout } else { Reason::TotalTimeout };
        let error = match error {
            CallError::Timeout => deliver::too_late(&call, &place.endpoint, limit),
            error => deliver::lost_reply(&call, &place.endpoint, error),
        };
        pipeline::refuse_call(*call, &error).map(Content::Own)
    }

    fn into_call(self, lane: &Rc<WorkerContext>, peer: &Rc<Peer>, whole: &Whole) -> (Box<Call>, Place) {
        let Self { call_id, start_time, record, place, route, function, rest, .. } = self;
        let text = |bytes: &[u8]| HeaderValue::from_bytes(bytes).ok();
        let mut asked = Asked::of(&whole.request().unwrap_or_default());
        asked.call_id = text(call_id.as_bytes()).unwrap_or(asked.call_id);
        asked.start_time = text(start_time.as_bytes()).unwrap_or(asked.start_time);
        let admitted: Instant = record.started();
        let clock = Clock::new(admitted, &route.policy, None, lane.body_idle);
        let (lane, peer) = (lane.clone(), peer.clone());
        let call =
            Call { lane, peer, function, route, asked, clock, record, admitted, request: None, flow: None, rest };
        (Box::new(call), place)
    }
}
