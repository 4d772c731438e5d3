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

use crate::call::GatewayCall;
use crate::context::WorkerContext;
use crate::deliver::{self, EndpointSlot, InstanceAnswer, ResponseContent, into_response, shm};
use crate::function::{ActiveRoute, FunctionEntry, GateEntry};
use crate::pipeline;
use crate::record::CompletionRecord;
use crate::request::{
    CallId, ListenerZone, PeerInfo, RequestDeadlines, RequestOptions, RequestUpload, StartTime,
};

pub use request::{ParseOutcome, PlainRequest, take_plain_request};

/// A request that was sent.
pub(crate) struct SentCall {
    /// Its answer, when it comes. Dropping it cancels the call.
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

/// Sends a plain request. `NoConnection`: it was not sent, and leaves no trace.
pub(crate) fn send_plain(
    worker: &Rc<WorkerContext>,
    peer: &PeerInfo,
    plain: &PlainRequest,
    function: &Arc<FunctionEntry>,
    path_offset: usize,
) -> Option<SentCall> {
    if peer.zone != ListenerZone::Public || plain.has_gateway_options() {
        return None;
    }
    let route = function.route();
    let body = plain.body();
    let fits = route
        .policy
        .max_body
        .is_none_or(|most| body.len() as u64 <= most);
    let shm_endpoint = worker
        .shm_domains
        .endpoint_in(route.domain.as_deref()?)
        .filter(|_| fits)?;
    let GateEntry::Admitted(permit) = function.gate.enter_gate() else {
        return None;
    };
    let slot = deliver::pick_slot(&route, permit, &[], worker.next_random()).ok()?;
    let (call_id, start_time) = (CallId::from_fields(plain.header_fields()), StartTime::now());
    let received = body.len() as u64;
    let answer = {
        let fields = call_fields(
            plain,
            peer,
            function_target(plain, path_offset),
            &call_id,
            &start_time,
            &route,
        )?;
        let (trace, span) = trace_ids(&fields);
        let deadline = clock::deadline_after(
            route
                .policy
                .total_timeout
                .min(route.policy.first_byte_timeout),
        );
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
    let mut record = CompletionRecord::start_plain(
        &worker.recorder,
        function.clone(),
        plain.method(),
        plain.path(),
        received,
    );
    record.identify(call_id.as_bytes(), None);
    record.set_path(PathChoice {
        path: Path::Shm,
        obstacle: None,
    });
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

/// The target that the function sees. One that has to be made is not here: the long way makes it.
fn function_target(plain: &PlainRequest, path_offset: usize) -> &str {
    match &plain.target()[path_offset..] {
        "" => "/",
        target => target,
    }
}

/// The head as the function gets it; see `deliver::headers::rewrite_request_headers`. `NoConnection`: the target has to be made first.
fn call_fields<'a>(
    plain: &'a PlainRequest,
    peer: &'a PeerInfo,
    target: &'a str,
    call_id: &'a CallId,
    start_time: &'a StartTime,
    route: &'a ActiveRoute,
) -> Option<Vec<(&'a str, &'a [u8])>> {
    const FORWARDED_FIELDS: [&str; 3] =
        ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
    if !target.starts_with('/') {
        return None;
    }
    let mut fields: Vec<(&str, &[u8])> = Vec::with_capacity(24);
    fields.push((":method", plain.method().as_str().as_bytes()));
    fields.push((":path", target.as_bytes()));
    let (mut host, mut present) = (&b""[..], [false; FORWARDED_FIELDS.len()]);
    for (name, value) in plain.header_fields() {
        match name {
            "x-call-id" | "x-start-time" => continue,
            "host" => host = value,
            _ => FORWARDED_FIELDS
                .iter()
                .zip(&mut present)
                .for_each(|(own, told)| *told |= *own == name),
        }
        fields.push((name, value));
    }
    let own = [peer.forwarded_for.as_bytes(), host, peer.proto.as_bytes()];
    fields.extend(
        FORWARDED_FIELDS
            .into_iter()
            .zip(own)
            .zip(present)
            .filter(|(_, told)| !told)
            .map(|(field, _)| field),
    );
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
    /// The answer is complete: its place is free, and so it stands in the record.
    pub(crate) fn complete_call(mut self, status: u16, bytes: u64) {
        self.record.mark_answered(status);
        self.record.bytes_out = bytes;
        self.record.mark_finished();
    }

    /// The answer goes the long way from here: it comes in parts, or its head asks for a closer look.
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

    /// The instance would not run it, because it is full or stops: the request goes the long way from there.
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
        call.record.set_upload(progress.clone());
        (call.request, call.upload_progress) = (Some(Request::from_parts(head, upload)), progress);
        match pipeline::deliver_elsewhere(&mut call, slot, shm::refusal_text(&refused)).await {
            Ok(answer) => into_response(call, answer),
            Err(error) => pipeline::refuse_call(*call, &error).map(ResponseContent::Platform),
        }
    }

    /// There is no answer.
    pub(crate) fn respond_with_error(
        self,
        worker: &Rc<WorkerContext>,
        peer: &Rc<PeerInfo>,
        plain: &PlainRequest,
        error: CallError,
    ) -> Response<ResponseContent> {
        let (call, slot) = self.into_pipeline_call(worker, peer, plain);
        let first_byte_is_shorter =
            call.route.policy.first_byte_timeout < call.route.policy.total_timeout;
        let limit = if first_byte_is_shorter {
            Reason::FirstByteTimeout
        } else {
            Reason::TotalTimeout
        };
        let error = match error {
            CallError::Timeout => deliver::timeout_error(&call, &slot.endpoint, limit),
            error => deliver::lost_reply_error(&call, &slot.endpoint, error),
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
        let deadlines =
            RequestDeadlines::new(admitted, &route.policy, None, worker.body_idle_timeout);
        let (worker, peer) = (worker.clone(), peer.clone());
        let call = GatewayCall {
            worker,
            peer,
            function,
            route,
            options,
            deadlines,
            record,
            admitted_at: admitted,
            request: None,
            upload_progress: None,
            path_offset,
        };
        (Box::new(call), slot)
    }
}
