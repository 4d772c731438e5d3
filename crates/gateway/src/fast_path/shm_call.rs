//! Plain requests through shared memory (ADR 19).

use std::rc::Rc;
use std::sync::Arc;

use http::Response;
use nearpath_domain::endpoint::polled;
use nearpath_domain::trace::{TRACEPARENT, TraceContext};
use nearpath_domain::{CallDestination, CallError, CallReply, CalleeKind, clock};
use nearpath_path::{Path, PathChoice};
use nearpath_types::Reason;
use nearpath_types::policy::CallTransport;

use super::plain_call::{PlainCall, PlainDraft, forwarded_for, is_eligible};
use super::request::PlainRequest;
use crate::context::WorkerContext;
use crate::deliver::{self, InstanceAnswer, ResponseContent, into_response, shm};
use crate::function::{ActiveRoute, FunctionEntry};
use crate::pipeline;
use crate::request::PeerInfo;

/// Room for the fields of a usual browser request with the gateway's own.
const FIELD_RESERVE: usize = 24;

/// Request that was sent through shared memory.
pub(crate) struct SentCall {
    /// Reply, when it arrives. Dropping it cancels the call.
    pub(crate) answer: polled::CallFuture,
    pub(crate) call: PlainCall,
}

/// Returns whether the function's instances do not use shared memory themselves, and their own ports are
/// known. One instance stands for all: a request that finds another one takes a path that works too.
fn prefers_own_port(route: &ActiveRoute, shm_endpoint: &polled::AsyncEndpoint) -> bool {
    route.ready.first().is_some_and(|instance| {
        instance.transport == CallTransport::Auto
            && instance.server().is_some()
            && instance
                .instance()
                .and_then(|id| shm_endpoint.callee_at(id))
                == Some(CalleeKind::Watchdog)
    })
}

/// Returns whether a plain request for the function goes through memory as a rule.
pub(crate) fn uses_shared_memory(worker: &WorkerContext, function: &FunctionEntry) -> bool {
    preferred_shm_endpoint(worker, &function.route()).is_some()
}

/// Returns the gateway's endpoint in the domain of the function, if memory is nearer than its own port.
fn preferred_shm_endpoint(
    worker: &WorkerContext,
    route: &ActiveRoute,
) -> Option<polled::AsyncEndpoint> {
    let domain = route.domain.as_deref().filter(|_| route.runs_here)?;
    let shm_endpoint = worker.shm_domains.endpoint_in(domain)?;
    (!prefers_own_port(route, &shm_endpoint)).then_some(shm_endpoint)
}

/// Sends a plain request. `None`: it was not sent and left no state behind.
pub(crate) fn send_plain(
    worker: &Rc<WorkerContext>,
    peer: &PeerInfo,
    plain: &PlainRequest,
    function: &Arc<FunctionEntry>,
    path_offset: usize,
) -> Option<SentCall> {
    let route = function.route();
    // The path report is left to the pipeline.
    if plain.wants_path() || !is_eligible(plain, &route) {
        return None;
    }
    let shm_endpoint = preferred_shm_endpoint(worker, &route)?;
    // Every early return from here on drops the slot, and with it the permit.
    let draft = PlainDraft::admit(worker, peer, plain, function, route, path_offset)?;
    // One timer instead of two: until the head arrives, the shorter of both limits is the one that
    // counts.
    let policy = &draft.route.policy;
    let limit = policy.total_timeout.min(policy.first_byte_timeout);
    let deadline = clock::deadline_after(limit);
    let forwarded_for = forwarded_for(plain, peer);
    let fields = call_fields(&draft, plain, (peer, &forwarded_for))?;
    let (trace, span) = trace_ids(&fields);
    let request = nearpath_domain::CallRequest {
        fields: &fields,
        body: plain.body(),
        deadline,
        trace,
        span,
    };
    let to = CallDestination::Instance(draft.endpoint().instance()?);
    let sent = shm_endpoint.call(to, &request);
    let answer = sent.ok()?;
    // After the send: a request that was declined is recorded by the pipeline, and only there.
    let choice = PathChoice {
        path: Path::Shm,
        obstacle: None,
    };
    let call = draft.start_call(worker, peer, plain, choice);
    Some(SentCall { answer, call })
}

/// Builds the request head for the function. `None`: the pipeline forms a new target.
fn call_fields<'a>(
    draft: &'a PlainDraft,
    plain: &'a PlainRequest,
    (peer, forwarded_for): (&'a PeerInfo, &'a [u8]),
) -> Option<Vec<(&'a str, &'a [u8])>> {
    let mut fields = Vec::with_capacity(FIELD_RESERVE);
    fields.push((":method", plain.method().as_str().as_bytes()));
    fields.push((":path", draft.target(plain)?.as_bytes()));
    draft.for_each_field(plain, (peer, forwarded_for), |name, value| {
        // httparse has checked names as ASCII, so the default is never used.
        fields.push((str::from_utf8(name).unwrap_or_default(), value));
    });
    Some(fields)
}

fn trace_ids(fields: &[(&str, &[u8])]) -> ([u8; 16], [u8; 8]) {
    let traceparent = fields.iter().find(|(name, _)| *name == TRACEPARENT);
    let trace = traceparent.and_then(|(_, value)| TraceContext::parse_traceparent(value));
    trace.map_or_else(Default::default, |trace| (trace.id, trace.span))
}

impl PlainCall {
    /// Continues in the pipeline: the response is streamed, or its head needs processing.
    pub(crate) fn answer_via_pipeline(
        self,
        worker: &Rc<WorkerContext>,
        peer: &Rc<PeerInfo>,
        plain: &PlainRequest,
        answer: CallReply,
    ) -> Response<ResponseContent> {
        let (call, slot) = self.into_pipeline_call(worker, peer, plain);
        into_response(call, InstanceAnswer::from_shm(answer, slot))
    }

    /// Continues in the pipeline after a refusal: the instance is full or stopping.
    pub(crate) async fn retry_refused(
        self,
        worker: Rc<WorkerContext>,
        peer: Rc<PeerInfo>,
        plain: &PlainRequest,
        refused: CallReply,
    ) -> Response<ResponseContent> {
        let why = shm::refusal_text(&refused);
        self.retry_via_pipeline(&worker, &peer, plain, why).await
    }

    /// Answers a call without a response.
    pub(crate) fn respond_with_error(
        self,
        worker: &Rc<WorkerContext>,
        peer: &Rc<PeerInfo>,
        plain: &PlainRequest,
        error: CallError,
    ) -> Response<ResponseContent> {
        let (call, slot) = self.into_pipeline_call(worker, peer, plain);
        // The call had one deadline for two limits; the error names the one that was shorter.
        let first_byte_is_shorter =
            call.route.policy.first_byte_timeout < call.route.policy.total_timeout;
        let limit = if first_byte_is_shorter {
            Reason::FirstByteTimeout
        } else {
            Reason::TotalTimeout
        };
        let error = match error {
            CallError::Timeout => deliver::timeout_error(&call, &slot.endpoint, limit),
            error => deliver::lost_response_error(&call, &slot.endpoint, error),
        };
        pipeline::refuse_call(*call, &error).map(ResponseContent::Platform)
    }
}
