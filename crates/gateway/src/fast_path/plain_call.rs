//! A plain request with its instance, on either path.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Request, Response};
use nearpath_path::PathChoice;
use nearpath_types::{PlatformError, Reason, SourceNetwork};

use super::request::PlainRequest;
use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::context::WorkerContext;
use crate::deliver::{self, EndpointSlot, ResponseContent};
use crate::function::{ActiveRoute, DialTarget, EdgeCounters, FunctionEndpoint, FunctionEntry};
use crate::pipeline;
use crate::record::CompletionRecord;
use crate::request::{
    CallId, ListenerZone, PeerInfo, RequestDeadlines, RequestOptions, RequestUpload, StartTime,
};
use crate::route;

const X_FORWARDED_FOR: &[u8] = b"x-forwarded-for";

/// Plain request whose instance is chosen, before anything is recorded or sent. Dropping it leaves
/// no state behind.
pub(super) struct PlainDraft {
    /// Before any wait for a connection.
    pub(super) arrived_at: Instant,
    pub(super) call_id: CallId,
    pub(super) start_time: StartTime,
    /// Calling function; `None`: a caller outside.
    pub(super) caller: Option<Arc<FunctionEntry>>,
    /// Counters of its edge; `None`: this node counts the call for none.
    edge: Option<Arc<EdgeCounters>>,
    pub(super) slot: EndpointSlot,
    pub(super) route: Arc<ActiveRoute>,
    pub(super) function: Arc<FunctionEntry>,
    /// In 16 bits, as all offsets in a plain request: each open connection has room for some drafts.
    path_offset: u16,
}

/// Plain request that holds a slot at its instance.
pub(crate) struct PlainCall {
    draft: PlainDraft,
    pub(crate) record: CompletionRecord,
}

/// Caller of a plain request that may call.
enum PlainCaller {
    /// From outside: no edge is asked for.
    Outside,
    /// An instance of this node, with the counters of its edge.
    Function(Arc<FunctionEntry>, Arc<EdgeCounters>),
    /// An instance of another node, which counts the call.
    RemoteFunction(Arc<FunctionEntry>),
}

/// Returns whether a plain request may take the fast path to the function.
pub(super) fn is_eligible(plain: &PlainRequest, route: &ActiveRoute) -> bool {
    // The pipeline answers 413. Here a request that does not fit is only declined.
    let fits = |most| plain.body_length() <= most;
    let is_own_limit = |limit: &[u8]| limit == route.total_timeout_header.as_bytes();
    !plain.has_gateway_options()
        && plain.node_timeout().is_none_or(is_own_limit)
        && route.policy.max_body.is_none_or(fits)
}

/// Returns the function that calls, if its edge is declared. `None`: the pipeline refuses the call.
fn permitted_caller(
    worker: &WorkerContext,
    peer: &PeerInfo,
    plain: &PlainRequest,
    callee: &FunctionEntry,
) -> Option<PlainCaller> {
    Some(match peer.zone {
        ListenerZone::Public => PlainCaller::Outside,
        ListenerZone::Internal => {
            let caller = worker.table.find_caller(peer.addr)?;
            let (addr, thread) = (peer.addr, worker.thread_number);
            let edge = route::check_edge(Some(&caller), addr, &callee.id, thread).ok()?;
            PlainCaller::Function(caller, edge)
        }
        ListenerZone::Node => {
            let node = peer.node.get()?;
            let Some(name) = plain.calling_function() else {
                return Some(PlainCaller::Outside);
            };
            let name = str::from_utf8(name).ok()?;
            let caller = worker.table.find_by_name(name)?;
            route::check_node_caller(Some(&caller), name, node, callee, None).ok()?;
            PlainCaller::RemoteFunction(caller)
        }
    })
}

/// Returns the network with which a request shares its function's places; see [`PeerInfo::addr`]. Another
/// node puts its client last into `X-Forwarded-For`.
fn source_network(plain: &PlainRequest, peer: &PeerInfo) -> SourceNetwork {
    let forwarded = || {
        let hops = str::from_utf8(forwarded_field(plain)?).ok()?;
        hops.rsplit(',').next()?.trim().parse().ok()
    };
    let client = match peer.zone {
        ListenerZone::Node => forwarded(),
        _ => None,
    };
    SourceNetwork::of(client.unwrap_or(peer.addr))
}

fn forwarded_field(plain: &PlainRequest) -> Option<&[u8]> {
    let mut fields = plain.raw_fields();
    let found = fields.find(|(name, _)| *name == X_FORWARDED_FOR);
    found.map(|(_, value)| value)
}

impl PlainDraft {
    /// Admits the request and takes a slot. `None`: the pipeline queues or refuses it.
    pub(super) fn admit(
        worker: &WorkerContext,
        peer: &PeerInfo,
        plain: &PlainRequest,
        function: &Arc<FunctionEntry>,
        route: Arc<ActiveRoute>,
        path_offset: usize,
    ) -> Option<Self> {
        let path_offset = u16::try_from(path_offset).ok()?;
        let (caller, edge) = match permitted_caller(worker, peer, plain, function)? {
            PlainCaller::Outside => (None, None),
            PlainCaller::Function(caller, edge) => (Some(caller), Some(edge)),
            PlainCaller::RemoteFunction(caller) => (Some(caller), None),
        };
        let permit = function.gate.try_enter(source_network(plain, peer))?;
        let slot = deliver::pick_slot(&route, permit, &[], worker.next_random()).ok()?;
        Some(Self {
            arrived_at: Instant::now(),
            call_id: CallId::from_fields(plain.raw_fields()),
            start_time: StartTime::now(),
            caller,
            edge,
            slot,
            route,
            function: function.clone(),
            path_offset,
        })
    }

    /// Returns the chosen instance.
    pub(super) fn endpoint(&self) -> &Arc<FunctionEndpoint> {
        &self.slot.endpoint
    }

    /// Returns the other node to which the request goes.
    pub(super) fn node(&self) -> Option<&Arc<DialTarget>> {
        let target = &self.endpoint().target;
        target.node().map(|_| target)
    }

    /// Returns path and query for the function. `None`: the pipeline forms a new target.
    pub(super) fn target<'a>(&self, plain: &'a PlainRequest) -> Option<&'a str> {
        match &plain.target()[usize::from(self.path_offset)..] {
            "" => Some("/"),
            target => target.starts_with('/').then_some(target),
        }
    }

    /// Calls `use_field` with each field of the request for the function; see
    /// `deliver::headers::rewrite_request_headers`.
    pub(super) fn for_each_field<'a>(
        &'a self,
        plain: &'a PlainRequest,
        (peer, forwarded_for): (&'a PeerInfo, &'a [u8]),
        mut use_field: impl FnMut(&'a [u8], &'a [u8]),
    ) {
        // Added only where absent, as the pipeline does.
        let (mut has_host, mut has_proto, mut host) = (false, false, &b""[..]);
        for (name, value) in plain.raw_fields() {
            match name {
                b"x-call-id" | b"x-start-time" | b"x-nearpath-path" | X_FORWARDED_FOR => continue,
                b"host" => host = value,
                b"x-forwarded-host" => has_host = true,
                b"x-forwarded-proto" => has_proto = true,
                _ => {}
            }
            use_field(name, value);
        }
        if !has_host {
            use_field(b"x-forwarded-host", host);
        }
        if !has_proto {
            use_field(b"x-forwarded-proto", peer.proto.as_bytes());
        }
        use_field(X_FORWARDED_FOR, forwarded_for);
        if let Some(caller) = &self.caller {
            use_field(b"x-nearpath-caller", caller.host.as_bytes());
        }
        use_field(b"x-call-id", self.call_id.as_bytes());
        use_field(b"x-start-time", self.start_time.as_bytes());
        use_field(b"x-timeout", self.route.total_timeout_header.as_bytes());
    }

    /// Starts the record. From here on, the request ends in exactly one record.
    pub(super) fn start_call(
        mut self,
        worker: &WorkerContext,
        peer: &PeerInfo,
        plain: &PlainRequest,
        choice: PathChoice,
    ) -> PlainCall {
        if self.route.prefetches {
            worker.control.note_call(&self.function.id);
        }
        let mut record = start_record(worker, peer, plain, &self, choice);
        if let Some(edge) = self.edge.take() {
            record.count_for_edge(edge);
        }
        record.endpoint = Some(self.slot.endpoint.id.clone());
        PlainCall {
            draft: self,
            record,
        }
    }
}

fn start_record(
    worker: &WorkerContext,
    peer: &PeerInfo,
    plain: &PlainRequest,
    draft: &PlainDraft,
    choice: PathChoice,
) -> CompletionRecord {
    let header = |name: &str| {
        let mut fields = plain.header_fields();
        let named = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value)
    };
    let mut record = CompletionRecord::start_plain(
        &worker.recorder,
        peer,
        draft.function.clone(),
        (plain.method(), plain.path()),
        plain.body_length(),
        draft.arrived_at,
        header,
    );
    record.identify(draft.call_id.as_bytes(), draft.caller.as_deref());
    record.set_path(choice);
    record
}

/// Returns the value of `X-Forwarded-For`: the clients before this one, and this one.
pub(super) fn forwarded_for<'a>(plain: &'a PlainRequest, peer: &'a PeerInfo) -> Cow<'a, [u8]> {
    let client = peer.forwarded_for.as_bytes();
    match forwarded_field(plain) {
        None => client.into(),
        Some(before) if peer.zone == ListenerZone::Node => before.into(), // that node has added its client
        Some(before) => [before, b", ", client].concat().into(),
    }
}

impl PlainCall {
    /// Returns the instance.
    pub(super) fn endpoint(&self) -> &Arc<FunctionEndpoint> {
        self.draft.endpoint()
    }

    /// Returns whether another node answers the call.
    pub(crate) fn is_remote(&self) -> bool {
        self.endpoint().is_remote()
    }

    /// Notes whether the endpoint ran the call or refused it.
    pub(crate) fn note_answer(&self, has_run: bool) {
        self.endpoint().note_answer(has_run);
    }

    /// Returns the called function.
    pub(super) fn function(&self) -> &FunctionEntry {
        &self.draft.function
    }

    /// Returns the value of `X-Call-Id`.
    pub(crate) fn call_id(&self) -> &CallId {
        &self.draft.call_id
    }

    /// Returns the value of `X-Start-Time`.
    pub(crate) fn start_time(&self) -> &StartTime {
        &self.draft.start_time
    }

    /// Returns the time since the call's arrival.
    pub(crate) fn elapsed(&self) -> Duration {
        self.record.started_at().elapsed()
    }

    /// Records a complete response and releases its slot.
    pub(crate) fn complete_call(mut self, status: u16, bytes: u64, took: Duration) {
        self.record.mark_answered(status);
        self.record.bytes_out = bytes;
        self.record.set_duration(took);
        self.record.mark_finished();
    }

    /// Continues in the pipeline with a request that did not run.
    pub(crate) async fn retry_via_pipeline(
        self,
        worker: &Rc<WorkerContext>,
        peer: &Rc<PeerInfo>,
        plain: &PlainRequest,
        why: String,
    ) -> Response<ResponseContent> {
        let (mut call, slot) = self.into_pipeline_call(worker, peer, plain);
        let Some(request) = plain.to_request() else {
            let error = PlatformError::new(COMPONENT, Reason::ConnectFailed, why);
            return pipeline::refuse_call(*call, &error).map(ResponseContent::Platform);
        };
        let (head, body) = request.into_parts();
        let (upload, progress) = RequestUpload::from_bytes(body);
        // From here the pipeline counts the body, so the number noted at the start must not be
        // added to it.
        call.record.set_upload(progress.clone());
        (call.request, call.upload_progress) = (Some(Request::from_parts(head, upload)), progress);
        match pipeline::deliver_elsewhere(&mut call, slot, why).await {
            Ok(answer) => deliver::into_response(call, answer),
            Err(error) => pipeline::refuse_call(*call, &error).map(ResponseContent::Platform),
        }
    }

    /// Continues in the pipeline.
    pub(super) fn into_pipeline_call(
        self,
        worker: &Rc<WorkerContext>,
        peer: &Rc<PeerInfo>,
        plain: &PlainRequest,
    ) -> (Box<GatewayCall>, EndpointSlot) {
        let Self { draft, record } = self;
        let PlainDraft {
            arrived_at: admitted_at,
            call_id,
            start_time,
            caller,
            edge: _, // the record has it
            slot,
            route,
            function,
            path_offset,
        } = draft;
        let text = |bytes: &[u8]| HeaderValue::from_bytes(bytes).ok();
        let mut options = RequestOptions::from_request(&plain.to_request().unwrap_or_default());
        options.call_id = text(call_id.as_bytes()).unwrap_or(options.call_id);
        options.start_time = text(start_time.as_bytes()).unwrap_or(options.start_time);
        // No caller timeout: a request that sets one never takes the fast path.
        let deadlines =
            RequestDeadlines::new(admitted_at, &route.policy, None, worker.body_idle_timeout);
        let (worker, peer, source) = (worker.clone(), peer.clone(), source_network(plain, peer));
        let call = GatewayCall {
            worker,
            peer,
            source,
            function,
            caller,
            topic: None,
            route,
            options,
            deadlines,
            record,
            admitted_at,
            request: None,
            upload_progress: None,
            upload_guard: None,
            path_offset: path_offset.into(),
        };
        (Box::new(call), slot)
    }
}
