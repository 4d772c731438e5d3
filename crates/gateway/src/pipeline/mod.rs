//! Path of a request: route, admit, deliver, and one completion record.

mod node_upgrade;
mod refusal;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Response};
use nearpath_types::{PlatformError, Reason, SourceNetwork};
use nearpath_wire::Body;
use nearpath_wire::hop::headers::{CALLER, TOPIC};
use nearpath_wire::identity::RefusalReason;

use crate::COMPONENT;
use crate::admit;
use crate::call::{self, GatewayCall};
use crate::context::WorkerContext;
use crate::deliver::{
    self, Admission, BodyBeginning, InstanceAnswer, RequestDelivery, ResponseContent, SendFailure,
};
use crate::function::FunctionEntry;
use crate::record::CompletionRecord;
use crate::request::{
    CallerBody, ListenerZone, PeerInfo, RequestDeadlines, RequestOptions, RequestUpload,
    UploadProgress, parse_caller_timeout,
};
use crate::route::{self, RouteDestination, UnroutableRequest};

pub(crate) use refusal::{PlatformRefusal, refuse_call};

/// Path of other nodes' pings (`contract/node.md`).
const PING_PATH: &str = "/node/v1/ping";

/// A request after routing.
pub(crate) enum RoutedRequest {
    /// Answered already.
    Answered(Box<Response<ResponseContent>>),
    /// Answered by the administrative side.
    Admin {
        answer: LocalBoxFuture<'static, Response<Body>>,
        record: CompletionRecord,
        is_head: bool,
    },
    /// Call of a function.
    Call(Box<GatewayCall>),
}

impl RoutedRequest {
    /// Returns whether the answer announces the end of the connection.
    pub(crate) fn closes_connection(&self) -> bool {
        let Self::Answered(response) = self else {
            return false;
        };
        response.headers().get(header::CONNECTION) == Some(&HeaderValue::from_static("close"))
    }
}

/// Routes a request without waiting.
pub(crate) fn route_request(
    worker: &Rc<WorkerContext>,
    peer: &Rc<PeerInfo>,
    request: Request<CallerBody>,
) -> RoutedRequest {
    let name_at = |address| worker.control.function_at(address);
    match route::resolve(&worker.table, peer, &request, name_at) {
        Ok(RouteDestination::Function {
            function,
            path_offset,
        }) => begin_call(
            worker,
            peer,
            request,
            RequestUpload::new,
            function,
            path_offset,
        ),
        Ok(RouteDestination::NodeService) => answer_node(worker, peer, request),
        Ok(RouteDestination::Health) => answer_health(worker, peer, &request),
        Ok(RouteDestination::Admin) => {
            let (record, is_head) = record_unrouted(worker, peer, &request);
            RoutedRequest::Admin {
                answer: worker.control.handle_admin(admin_request(peer, request)),
                record,
                is_head,
            }
        }
        Err(UnroutableRequest {
            reason,
            message,
            closes_connection: false,
        }) => refuse_unrouted(worker, peer, &request, reason, &message),
        Err(UnroutableRequest {
            reason,
            message,
            closes_connection: true,
        }) => with_connection_close(refuse_unrouted(worker, peer, &request, reason, &message)),
    }
}

/// Passes a request of another node that calls no function to the node's service.
fn answer_node(
    worker: &Rc<WorkerContext>,
    peer: &PeerInfo,
    mut request: Request<CallerBody>,
) -> RoutedRequest {
    let Some(node) = peer.node.get() else {
        let why = "the node behind this connection is not known";
        return refuse_unrouted(worker, peer, &request, Reason::NotAllowed, why);
    };
    let (mut record, is_head) = record_unrouted(worker, peer, &request);
    // Taken out here: the service may drop the request before it responds.
    let upgrade = hyper::upgrade::on(&mut request);
    // Each node pings twice a second: the log would hold little else.
    if request.uri().path() == PING_PATH {
        record.omit_from_log();
    }
    let answer = worker.control.handle_node(node, request.map(Body::from));
    let answer = node_upgrade::respond(worker.clone(), answer, upgrade);
    RoutedRequest::Admin {
        answer: Box::pin(answer),
        record,
        is_head,
    }
}

/// Adds the caller's network, by which the API limits logins.
fn admin_request(peer: &PeerInfo, mut request: Request<CallerBody>) -> Request<Body> {
    let source = SourceNetwork::of(peer.addr);
    request.extensions_mut().insert(source);
    request.map(Body::from)
}

/// Routes a complete request for a known function. `path_offset` is the offset of the function's
/// own path in the path of the request.
pub(crate) fn route_buffered(
    worker: &Rc<WorkerContext>,
    peer: &Rc<PeerInfo>,
    request: Request<Bytes>,
    function: Arc<FunctionEntry>,
    path_offset: usize,
) -> RoutedRequest {
    begin_call(
        worker,
        peer,
        request,
        |body, _| RequestUpload::from_bytes(body),
        function,
        path_offset,
    )
}

/// Routes an event of `publisher` to a subscriber. [`check_caller`] and the called node check the topic.
pub(crate) fn route_event(
    worker: &Rc<WorkerContext>,
    peer: &Rc<PeerInfo>,
    (request, function, path_offset): (Request<Bytes>, Arc<FunctionEntry>, usize),
    publisher: Arc<FunctionEntry>,
    topic: HeaderValue,
) -> RoutedRequest {
    let mut routed = route_buffered(worker, peer, request, function, path_offset);
    if let RoutedRequest::Call(call) = &mut routed {
        call.caller = Some(publisher);
        call.topic = Some(topic);
        call.options.limit_to_event();
    }
    routed
}

/// Closes the connection after the response: after an ambiguous request, the next one cannot be
/// trusted.
fn with_connection_close(routed: RoutedRequest) -> RoutedRequest {
    with_header(
        routed,
        header::CONNECTION,
        HeaderValue::from_static("close"),
    )
}

/// Sets a field of a response that exists already.
fn with_header(mut routed: RoutedRequest, name: HeaderName, value: HeaderValue) -> RoutedRequest {
    if let RoutedRequest::Answered(response) = &mut routed {
        response.headers_mut().insert(name, value);
    }
    routed
}

/// Answers a request. Refusals are responses too, so there always is one.
pub(crate) async fn answer_request(routed: RoutedRequest) -> Response<ResponseContent> {
    match routed {
        RoutedRequest::Answered(response) => *response,
        RoutedRequest::Admin {
            answer,
            record,
            is_head,
        } => admin_response(answer.await, record, is_head),
        RoutedRequest::Call(mut call) => match admit_and_deliver(&mut call).await {
            Ok(answer) => deliver::into_response(call, answer),
            Err(error) => refusal::refuse_call(*call, &error).map(ResponseContent::Platform),
        },
    }
}

/// Starts the record of a request for no function, and returns whether it is a `HEAD`.
fn record_unrouted<B>(
    worker: &WorkerContext,
    peer: &PeerInfo,
    request: &Request<B>,
) -> (CompletionRecord, bool) {
    let mut record = CompletionRecord::start_request(&worker.recorder, peer, request, None, "");
    let options = RequestOptions::from_request(request);
    record.identify(options.call_id.as_bytes(), None);
    (record, options.is_head)
}

fn admin_response(
    answer: Response<Body>,
    mut record: CompletionRecord,
    is_head: bool,
) -> Response<ResponseContent> {
    record.mark_answered(answer.status().as_u16());
    answer.map(|body| ResponseContent::from_admin(body, record, is_head))
}

async fn admit_and_deliver(call: &mut GatewayCall) -> Result<InstanceAnswer, PlatformError> {
    check_caller(call)?;
    admit::announce_call(call);
    let delivery = RequestDelivery::prepare(call)?;
    let admission = match deliver::is_read_ahead_due(call) {
        // On the heap: most requests have no body to wait for, and every request's future would be
        // as large otherwise.
        true => Box::pin(read_ahead_and_admit(call)).await?,
        false => admit::admit_call(call).await?,
    };
    deliver_admitted(call, delivery, admission).await
}

/// Admits a request when the beginning of its body has come. A caller that waits for the response
/// before it sends anything gets a place only if no other request waits for one.
async fn read_ahead_and_admit(call: &mut GatewayCall) -> Result<Admission, PlatformError> {
    let waiting_since = Instant::now();
    admit::wake_if_cold(call);
    while deliver::read_ahead_of_admission(call).await? == BodyBeginning::Awaited {
        if call.function.route().is_cold() {
            break;
        }
        if let Some(permit) = admit::try_admit_waiting(call, waiting_since)? {
            return Ok(Admission::Here(permit));
        }
    }
    match deliver::admit_or_read_body(call).await? {
        Some(permit) => Ok(Admission::Here(permit)),
        None => admit::admit_call(call).await,
    }
}

/// Delivers a request. Admits it again, before all others, when no instance is left.
async fn deliver_admitted(
    call: &mut GatewayCall,
    mut delivery: RequestDelivery,
    mut admission: Admission,
) -> Result<InstanceAnswer, PlatformError> {
    call.upload_guard = deliver::hold_place_while_uploading(call);
    loop {
        admission = match delivery.send_until_answered(call, admission).await {
            Ok(answer) => {
                call.upload_guard = None;
                return Ok(answer);
            }
            Err(SendFailure::Failed(error)) => return Err(error),
            // On the heap: few requests come here, and every request's future would be as large
            // otherwise.
            Err(SendFailure::Readmit(permit)) => {
                Box::pin(admit::readmit_call(call, permit)).await?
            }
        };
    }
}

/// Delivers a request that the instance at `refused_slot` refused, as if it had been sent from
/// here.
///
/// # Errors
/// Returns the cause for which there is no response.
pub(crate) async fn deliver_elsewhere(
    call: &mut GatewayCall,
    refused_slot: deliver::EndpointSlot,
    why: String,
) -> Result<InstanceAnswer, PlatformError> {
    let (delivery, permit) = RequestDelivery::prepare_after_refusal(call, refused_slot, why)?;
    // A withdrawn instance keeps no permit, so the request has to queue again.
    let admission = match permit {
        Some(permit) => Admission::Here(permit),
        None => admit::readmit_call(call, None).await?,
    };
    deliver_admitted(call, delivery, admission).await
}

/// Starts a call: from here on, the request ends in exactly one completion record.
fn begin_call<B>(
    worker: &Rc<WorkerContext>,
    peer: &Rc<PeerInfo>,
    request: Request<B>,
    upload: impl FnOnce(B, Option<u64>) -> (RequestUpload, Option<Rc<UploadProgress>>),
    function: Arc<FunctionEntry>,
    path_offset: usize,
) -> RoutedRequest {
    let mut options = RequestOptions::from_request(&request);
    let topic = request.headers().get(TOPIC).cloned();
    let topic = topic.filter(|_| peer.zone == ListenerZone::Node);
    if topic.is_some() {
        options.limit_to_event();
    }
    let route = function.route();
    // Before anything can fail, so that a refused request is recorded too.
    let mut record = CompletionRecord::start_request(
        &worker.recorder,
        peer,
        &request,
        Some(function.clone()),
        &function.name,
    );
    if peer.is_on_reserve {
        let why = "all connections of this address are in use, and this one is of the reserve \
                   for /system and /healthz; raise --max-connections";
        let error = PlatformError::new(COMPONENT, Reason::ConnectionLimit, why);
        let answer = refusal::record_refusal(worker, &options, record, &error);
        return with_connection_close(platform_response(answer));
    }
    let caller_timeout = match parse_caller_timeout(&request) {
        Ok(caller_timeout) => caller_timeout,
        Err(error) => {
            return platform_response(refusal::record_refusal(worker, &options, record, &error));
        }
    };
    let admitted_at = record.started_at();
    let deadlines = RequestDeadlines::new(
        admitted_at,
        &route.policy,
        caller_timeout,
        worker.body_idle_timeout,
    );
    // The body gets its limit and its counter here, before any step can read it.
    let (head, body) = request.into_parts();
    let max_body = call::max_body(&route.policy, topic.is_some());
    let (upload, upload_progress) = upload(body, max_body);
    record.set_upload(upload_progress.clone());
    // Without a limit, a gRPC caller that sends nothing takes no place from others.
    let is_exempt = options.is_grpc && route.policy.max_inflight.is_none();
    if let Some(progress) = upload_progress.as_ref().filter(|_| !is_exempt) {
        progress.require_rate(worker.min_body_rate, options.is_grpc);
    }
    let request = Request::from_parts(head, upload);
    let source = call_source(peer, &request);
    let (request, worker, peer) = (Some(request), worker.clone(), peer.clone());
    let call = GatewayCall {
        worker,
        peer,
        source,
        function,
        caller: None,
        topic,
        route,
        options,
        deadlines,
        record,
        admitted_at,
        request,
        upload_progress,
        upload_guard: None,
        path_offset,
    };
    RoutedRequest::Call(Box::new(call))
}

/// Checks that the caller may call the function, or send it the event. Callers on public ports need no edge.
fn check_caller(call: &mut GatewayCall) -> Result<(), PlatformError> {
    let peer = call.peer.clone();
    let is_node = peer.zone == ListenerZone::Node;
    let named = is_node.then(|| named_caller(call)).flatten();
    let table = &call.worker.table;
    let caller = match (call.caller.take(), peer.zone, &named) {
        (Some(publisher), ..) => Some(publisher), // known from the channel of its event
        // Instances are identified by their address; one that is unknown may call nothing.
        (_, ListenerZone::Internal, _) => table.find_caller(peer.addr),
        // Another node names the caller; a client outside has no name.
        (.., name) => name.as_ref().and_then(|name| table.find_by_name(name)),
    };
    let topic = call.topic.as_ref().map(topic_text);
    call.record
        .identify(call.options.call_id.as_bytes(), caller.as_deref());
    match peer.zone {
        ListenerZone::Public => {}
        ListenerZone::Internal => match caller.as_deref().zip(topic) {
            Some((publisher, topic)) => route::check_event(publisher, topic, &call.function)?,
            None => {
                let (callee, thread) = (&call.function.id, call.worker.thread_number);
                let edge = route::check_edge(caller.as_deref(), peer.addr, callee, thread)?;
                call.record.count_for_edge(edge);
            }
        },
        ListenerZone::Node => {
            let node = peer.node.get().ok_or_else(unknown_node_error)?;
            if let Some(name) = &named {
                route::check_node_caller(caller.as_deref(), name, node, &call.function, topic)
                    .inspect_err(|error| count_node_refusal(call, error))?;
            } else if topic.is_some() {
                return Err(unnamed_publisher_error());
            } // else a client outside has called that node
            check_runs_here(call)?;
        }
    }
    call.caller = caller;
    Ok(())
}

/// Counts a call that another node may not make.
fn count_node_refusal(call: &GatewayCall, error: &PlatformError) {
    let refusals = &call.worker.totals.node_refusals;
    refusals.send_modify(|refused| {
        refused.record(&call.peer.addr, RefusalReason::NotAllowed, &error.message);
    });
}

/// Returns the calling function that the request names.
fn named_caller(call: &GatewayCall) -> Option<String> {
    let headers = call.request.as_ref()?.headers();
    let name = headers.get(CALLER)?;
    Some(String::from_utf8_lossy(name.as_bytes()).into_owned())
}

/// Returns the topic of an event. One that is no UTF-8 is empty, which is no topic.
pub(crate) fn topic_text(topic: &HeaderValue) -> &str {
    str::from_utf8(topic.as_bytes()).unwrap_or_default()
}

fn unnamed_publisher_error() -> PlatformError {
    let message = "an event needs the name of the function that publishes it";
    PlatformError::new(COMPONENT, Reason::NotAllowed, message)
}

fn unknown_node_error() -> PlatformError {
    let message = "the node behind this connection has no valid name";
    PlatformError::new(COMPONENT, Reason::NotAllowed, message)
}

/// Checks that a call from another node can end here: it goes no further.
fn check_runs_here(call: &GatewayCall) -> Result<(), PlatformError> {
    if call.route.runs_here {
        return Ok(());
    }
    let message = format!("{} does not run on this node", call.function.name);
    Err(PlatformError::new(COMPONENT, Reason::NotHere, message))
}

/// Returns the network with which a call shares its function's places: that of the client, which another
/// node puts last into `X-Forwarded-For`.
fn call_source<B>(peer: &PeerInfo, request: &Request<B>) -> SourceNetwork {
    let forwarded = || {
        let hops = request.headers().get("x-forwarded-for")?.to_str().ok()?;
        hops.rsplit(',').next()?.trim().parse().ok()
    };
    let client = match peer.zone {
        ListenerZone::Node => forwarded(),
        _ => None,
    };
    SourceNetwork::of(client.unwrap_or(peer.addr))
}

fn platform_response(answer: Response<Body>) -> RoutedRequest {
    RoutedRequest::Answered(answer.map(ResponseContent::Platform).into())
}

/// Refuses a request without a destination.
pub(crate) fn refuse_unrouted<B>(
    worker: &Rc<WorkerContext>,
    peer: &PeerInfo,
    request: &Request<B>,
    reason: Reason,
    why: &str,
) -> RoutedRequest {
    platform_response(refusal::record_unrouted_refusal(
        worker, peer, request, reason, why,
    ))
}

fn answer_health<B>(
    worker: &Rc<WorkerContext>,
    peer: &PeerInfo,
    request: &Request<B>,
) -> RoutedRequest {
    match *request.method() {
        Method::GET | Method::HEAD => {
            let (record, is_head) = record_unrouted(worker, peer, request);
            RoutedRequest::Answered(
                admin_response(Response::new(Body::from("OK\n")), record, is_head).into(),
            )
        }
        _ => {
            let refusal = Reason::MethodNotAllowed;
            let why = "/healthz: only GET and HEAD";
            let routed = refuse_unrouted(worker, peer, request, refusal, why);
            with_header(routed, header::ALLOW, HeaderValue::from_static("GET, HEAD"))
        }
    }
}

#[cfg(test)]
mod size_tests {
    use super::*;

    /// Bytes of the future that an `async fn` with this parameter returns.
    fn future_bytes<A, F: Future>(_: fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// Every request in progress holds one, and each step copies it into a larger one.
    #[test]
    fn the_future_of_a_request_keeps_its_bound() {
        let bytes = future_bytes(answer_request);
        assert!(bytes <= 3_000, "{bytes} bytes");
    }
}
