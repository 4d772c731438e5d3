//! Fast path: plain requests for an instance that is reached through shared memory (ADR 19).
//!
//! The steps are those of the pipeline (route, admit, deliver, record), without what only other
//! requests need. The request head goes from the read buffer into the slot, the response head
//! from its slot to the caller, without a header map in between. If anything prevents the fast
//! path, nothing has happened yet, and the request takes the pipeline.

mod request;

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderValue, Request, Response};
use nearpath_domain::endpoint::polled;
use nearpath_domain::trace::{TRACEPARENT, TraceContext};
use nearpath_domain::{CallDestination, CallError, CallReply, clock};
use nearpath_path::{Path, PathChoice};
use nearpath_types::Reason;

use crate::call::GatewayCall;
use crate::context::WorkerContext;
use crate::deliver::{self, EndpointSlot, InstanceAnswer, ResponseContent, into_response, shm};
use crate::function::{ActiveRoute, FunctionEntry};
use crate::pipeline;
use crate::record::CompletionRecord;
use crate::request::{
    CallId, ListenerZone, PeerInfo, RequestDeadlines, RequestOptions, RequestUpload, StartTime,
};

pub use request::{ParseOutcome, PlainRequest, take_plain_request};

const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// Request that was sent through shared memory.
pub(crate) struct SentCall {
    /// Reply, when it arrives. Dropping it cancels the call.
    pub(crate) answer: polled::CallFuture,
    /// `X-Call-Id`.
    pub(crate) call_id: CallId,
    /// `X-Start-Time`.
    pub(crate) start_time: StartTime,
    pub(crate) record: CompletionRecord,
    slot: EndpointSlot,
    route: Arc<ActiveRoute>,
    function: Arc<FunctionEntry>,
    path_offset: usize,
}

/// Sends a plain request. `None`: it was not sent and left no state behind.
pub(crate) fn send_plain(
    worker: &Rc<WorkerContext>,
    peer: &PeerInfo,
    plain: &PlainRequest,
    function: &Arc<FunctionEntry>,
    path_offset: usize,
) -> Option<SentCall> {
    // Calls from instances need a check of their edge, and gateway options need the pipeline.
    if peer.zone != ListenerZone::Public || plain.has_gateway_options() {
        return None;
    }
    let route = function.route();
    let body = plain.body();
    // The pipeline answers 413. Here a request that does not fit is only declined.
    let fits = route
        .policy
        .max_body
        .is_none_or(|most| body.len() as u64 <= most);
    let shm_endpoint = worker
        .shm_domains
        .endpoint_in(route.domain.as_deref()?)
        .filter(|_| fits)?;
    // A waiter that is dropped here leaves the queue again; the pipeline queues the request anew.
    let permit = function.gate.try_enter()?;
    // Every early return from here on drops the slot, and with it the permit.
    let slot = deliver::pick_slot(&route, permit, &[], worker.next_random()).ok()?;
    let (call_id, start_time) = (CallId::from_fields(plain.header_fields()), StartTime::now());
    let received = body.len() as u64;
    let answer = {
        let forwarded_for = forwarded_for(plain, peer);
        let fields = call_fields(
            plain,
            (peer, &forwarded_for),
            function_target(plain, path_offset),
            &call_id,
            &start_time,
            &route,
        )?;
        let (trace, span) = trace_ids(&fields);
        // One timer instead of two: until the head arrives, the shorter of both limits is the one
        // that counts.
        let policy = &route.policy;
        let deadline = clock::deadline_after(policy.total_timeout.min(policy.first_byte_timeout));
        let request = nearpath_domain::CallRequest {
            fields: &fields,
            body,
            deadline,
            trace,
            span,
        };
        shm_endpoint
            .call(CallDestination::Instance(slot.endpoint.id), &request)
            .ok()?
    };
    if route.prefetches {
        worker.control.note_call(&function.id);
    }
    // Created after the send. A request that was declined is recorded by the pipeline, and only
    // there.
    let mut record = start_record(worker, peer, plain, function, &call_id, received);
    record.instance = Some(slot.endpoint.id);
    Some(SentCall {
        answer,
        call_id,
        start_time,
        record,
        slot,
        route,
        function: function.clone(),
        path_offset,
    })
}

fn start_record(
    worker: &WorkerContext,
    peer: &PeerInfo,
    plain: &PlainRequest,
    function: &Arc<FunctionEntry>,
    call_id: &CallId,
    bytes_in: u64,
) -> CompletionRecord {
    let header = |name: &str| {
        let mut fields = plain.header_fields();
        let named = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value)
    };
    let mut record = CompletionRecord::start_plain(
        &worker.recorder,
        peer,
        function.clone(),
        plain.method(),
        plain.path(),
        bytes_in,
        header,
    );
    record.identify(call_id.as_bytes(), None);
    record.set_path(PathChoice {
        path: Path::Shm,
        obstacle: None,
    });
    record
}

/// Returns the target for the function. The pipeline handles targets that need a new string.
fn function_target(plain: &PlainRequest, path_offset: usize) -> &str {
    match &plain.target()[path_offset..] {
        "" => "/",
        target => target,
    }
}

/// Returns the value of `X-Forwarded-For`: the clients before this one, and this one.
fn forwarded_for<'a>(plain: &PlainRequest, peer: &'a PeerInfo) -> Cow<'a, [u8]> {
    let client = peer.forwarded_for.as_bytes();
    let mut fields = plain.header_fields();
    match fields.find(|(name, _)| *name == X_FORWARDED_FOR) {
        None => client.into(),
        Some((_, before)) => [before, b", ", client].concat().into(),
    }
}

/// Builds the request head for the function; see `deliver::headers::rewrite_request_headers`.
/// `None`: the target needs a new string.
fn call_fields<'a>(
    plain: &'a PlainRequest,
    (peer, forwarded_for): (&'a PeerInfo, &'a [u8]),
    target: &'a str,
    call_id: &'a CallId,
    start_time: &'a StartTime,
    route: &'a ActiveRoute,
) -> Option<Vec<(&'a str, &'a [u8])>> {
    // Added only where absent, as the pipeline does.
    const FORWARDED_FIELDS: [&str; 2] = ["x-forwarded-host", "x-forwarded-proto"];
    if !target.starts_with('/') {
        return None;
    }
    // Room for a usual browser request with the gateway's own fields, so that the vector is
    // allocated once.
    let mut fields: Vec<(&str, &[u8])> = Vec::with_capacity(24);
    fields.push((":method", plain.method().as_str().as_bytes()));
    fields.push((":path", target.as_bytes()));
    let (mut host, mut present) = (&b""[..], [false; FORWARDED_FIELDS.len()]);
    for (name, value) in plain.header_fields() {
        match name {
            "x-call-id" | "x-start-time" | X_FORWARDED_FOR => continue,
            "host" => host = value,
            _ => FORWARDED_FIELDS
                .iter()
                .zip(&mut present)
                .for_each(|(own, is_present)| *is_present |= *own == name),
        }
        fields.push((name, value));
    }
    let own = [host, peer.proto.as_bytes()];
    fields.extend(
        FORWARDED_FIELDS
            .into_iter()
            .zip(own)
            .zip(present)
            .filter(|(_, is_present)| !is_present)
            .map(|(field, _)| field),
    );
    fields.push((X_FORWARDED_FOR, forwarded_for));
    fields.push(("x-call-id", call_id.as_bytes()));
    fields.push(("x-start-time", start_time.as_bytes()));
    fields.push(("x-timeout", route.total_timeout_header.as_bytes()));
    Some(fields)
}

fn trace_ids(fields: &[(&str, &[u8])]) -> ([u8; 16], [u8; 8]) {
    let traceparent = fields.iter().find(|(name, _)| *name == TRACEPARENT);
    let trace = traceparent.and_then(|(_, value)| TraceContext::parse_traceparent(value));
    trace.map_or_else(Default::default, |trace| (trace.id, trace.span))
}

impl SentCall {
    /// Records a complete response and releases its slot.
    pub(crate) fn complete_call(mut self, status: u16, bytes: u64) {
        self.record.mark_answered(status);
        self.record.bytes_out = bytes;
        self.record.mark_finished();
    }

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
    pub(crate) async fn retry_via_pipeline(
        self,
        worker: Rc<WorkerContext>,
        peer: Rc<PeerInfo>,
        plain: &PlainRequest,
        refused: CallReply,
    ) -> Response<ResponseContent> {
        let (mut call, slot) = self.into_pipeline_call(&worker, &peer, plain);
        let Some(request) = plain.to_request() else {
            return into_response(call, InstanceAnswer::from_shm(refused, slot));
        };
        let (head, body) = request.into_parts();
        let (upload, progress) = RequestUpload::from_bytes(body);
        // From here the pipeline counts the body, so the number noted at the start must not be
        // added to it.
        call.record.set_upload(progress.clone());
        (call.request, call.upload_progress) = (Some(Request::from_parts(head, upload)), progress);
        match pipeline::deliver_elsewhere(&mut call, slot, shm::refusal_text(&refused)).await {
            Ok(answer) => into_response(call, answer),
            Err(error) => pipeline::refuse_call(*call, &error).map(ResponseContent::Platform),
        }
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

    fn into_pipeline_call(
        self,
        worker: &Rc<WorkerContext>,
        peer: &Rc<PeerInfo>,
        plain: &PlainRequest,
    ) -> (Box<GatewayCall>, EndpointSlot) {
        let Self {
            call_id,
            start_time,
            record,
            slot,
            route,
            function,
            path_offset,
            ..
        } = self;
        let text = |bytes: &[u8]| HeaderValue::from_bytes(bytes).ok();
        let mut options = RequestOptions::from_request(&plain.to_request().unwrap_or_default());
        options.call_id = text(call_id.as_bytes()).unwrap_or(options.call_id);
        options.start_time = text(start_time.as_bytes()).unwrap_or(options.start_time);
        let admitted: Instant = record.started_at();
        // No caller timeout: a request that sets one never takes the fast path.
        let deadlines =
            RequestDeadlines::new(admitted, &route.policy, None, worker.body_idle_timeout);
        let (worker, peer) = (worker.clone(), peer.clone());
        let call = GatewayCall {
            worker,
            peer,
            function,
            // Only callers outside take the fast path.
            caller: None,
            route,
            options,
            deadlines,
            record,
            admitted_at: admitted,
            request: None,
            upload_progress: None,
            upload_guard: None,
            path_offset,
        };
        (Box::new(call), slot)
    }
}
