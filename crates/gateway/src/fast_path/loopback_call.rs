//! Plain requests to the function's own port, without its watchdog (ADR 89). The watchdog's
//! contract holds here: its time limit, its header fields, its reasons.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use nearpath_domain::CalleeKind;
use nearpath_path::{
    self as path, CallFacts, CallNeeds, EdgeFacts, Path, PathChoice, TransportFacts,
};
use nearpath_types::{FunctionPolicy, FunctionServer, PlatformError, Reason, duration, policy};

use super::plain_call::{PlainCall, PlainDraft, forwarded_for, is_eligible};
use super::request::PlainRequest;
use crate::COMPONENT;
use crate::context::WorkerContext;
use crate::deliver::{
    DEFAULT_CONTENT_TYPE, InstanceAnswer, ResponseContent, into_response, is_for_watchdog,
    own_port_error, own_port_headers,
};
use crate::function::FunctionEntry;
use crate::pipeline;
use crate::request::PeerInfo;
use crate::transport::{Exchange, ExchangeError, LoopbackBody, PooledConnection, ResponseHead};

/// Shortest time limit of a call in the event loop, which finds overdue calls only after some 10 ms.
const MIN_INLINE_TIMEOUT: Duration = Duration::from_millis(200);
/// Room for the head of a usual request, and a short body.
const HEAD_RESERVE_BYTES: usize = 1024;
/// Request that has a connection to the function's own server.
pub(crate) struct LoopbackCall {
    pub(crate) exchange: Exchange,
    pub(crate) call: PlainCall,
    pub(crate) limit: CallLimit,
}

/// Shortest time limit of a call until its head arrives, and the reason when it passes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallLimit {
    limit: Duration,
    reason: Reason,
    setting: &'static str,
}

/// Plain request whose head for the function's own server is written. Dropping it leaves no state
/// behind.
pub(crate) struct LoopbackDraft {
    plain: PlainDraft,
    server: Arc<FunctionServer>,
    choice: PathChoice,
    head: Vec<u8>,
}

impl LoopbackDraft {
    /// Admits a plain request and writes its head. `None`: it is for another path.
    pub(crate) fn new(
        worker: &WorkerContext,
        peer: &PeerInfo,
        plain: &PlainRequest,
        function: &Arc<FunctionEntry>,
        path_offset: usize,
    ) -> Option<Self> {
        let route = function.route();
        let has_server = route.ready.iter().any(|one| one.server().is_some());
        let own_path = plain.path().get(path_offset..).unwrap_or_default();
        if !has_server || is_for_watchdog(own_path) || !is_eligible(plain, &route) {
            return None;
        }
        // Every early return from here on drops the slot, and with it the permit.
        let draft = PlainDraft::admit(worker, peer, plain, function, route, path_offset)?;
        let server = draft.endpoint().server()?.clone();
        Some(Self {
            choice: path_choice(worker, &draft)?,
            head: write_head(&server, &draft, plain, peer)?,
            server,
            plain: draft,
        })
    }

    /// Takes a connection or opens one. `None`: nothing was sent.
    pub(crate) async fn connect(
        self,
        worker: &WorkerContext,
        peer: &PeerInfo,
        plain: &PlainRequest,
    ) -> Option<LoopbackCall> {
        let connection = match self.take_idle(worker) {
            Some(idle) => idle,
            None => {
                let (endpoint, poller) = (self.plain.endpoint(), worker.event_loop.poller());
                let pools = &worker.loopback_pools;
                pools.open(endpoint, &self.server, poller).await?
            }
        };
        Some(self.start(worker, peer, plain, connection))
    }

    /// Takes an idle connection for a call that has no short time limit. `None`: nothing was sent.
    pub(crate) fn connect_idle(
        self,
        worker: &WorkerContext,
        peer: &PeerInfo,
        plain: &PlainRequest,
    ) -> Option<LoopbackCall> {
        let limit = CallLimit::shortest(&self.plain.route.policy, &self.server);
        if limit.limit < MIN_INLINE_TIMEOUT {
            return None;
        }
        let connection = self.take_idle(worker)?;
        Some(self.start(worker, peer, plain, connection))
    }

    fn take_idle(&self, worker: &WorkerContext) -> Option<PooledConnection> {
        let (endpoint, poller) = (self.plain.endpoint(), worker.event_loop.poller());
        worker
            .loopback_pools
            .take_idle(endpoint, &self.server, poller, self.plain.arrived_at)
    }

    fn start(
        self,
        worker: &WorkerContext,
        peer: &PeerInfo,
        plain: &PlainRequest,
        connection: PooledConnection,
    ) -> LoopbackCall {
        let limit = CallLimit::shortest(&self.plain.route.policy, &self.server);
        LoopbackCall {
            exchange: Exchange::new(connection, self.head, plain.body()),
            call: self.plain.start_call(worker, peer, plain, self.choice),
            limit,
        }
    }
}

/// Returns the choice of this path with the obstacle to a nearer one; `None`: another path is
/// chosen.
fn path_choice(worker: &WorkerContext, draft: &PlainDraft) -> Option<PathChoice> {
    let (endpoint, domain) = (draft.endpoint(), draft.route.domain.as_deref());
    let shm_endpoint = domain.and_then(|domain| worker.shm_domains.endpoint_in(domain));
    let callee = shm_endpoint
        .as_ref()
        .zip(endpoint.instance())
        .and_then(|(one, id)| one.callee_at(id));
    let facts = CallFacts {
        edge: EdgeFacts {
            same_node: !endpoint.is_remote(),
            callee_in_domain: domain.is_some(),
            same_domain: true, // the gateway joins every domain of its node
            caller_attached: shm_endpoint.is_some(),
            callee_attached: callee.is_some(),
            callee_is_watchdog: callee == Some(CalleeKind::Watchdog),
        },
        transport: TransportFacts {
            wanted: endpoint.transport,
            own_port: true,
            ..TransportFacts::PLAIN
        },
        needs: CallNeeds::PLAIN,
    };
    let choice = path::select_paths(&facts).first_choice();
    (choice.path == Path::Loopback).then_some(choice)
}

/// Writes the request's head (RFC 9112 section 3). `None`: the pipeline forms a new target.
fn write_head(
    server: &FunctionServer,
    draft: &PlainDraft,
    plain: &PlainRequest,
    peer: &PeerInfo,
) -> Option<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_RESERVE_BYTES);
    let mut write = |parts: &[&[u8]]| parts.iter().for_each(|part| head.extend_from_slice(part));
    let (method, target) = (plain.method().as_str(), draft.target(plain)?);
    write(&[method.as_bytes(), b" ", server.base_path.as_bytes()]);
    write(&[target.as_bytes(), b" HTTP/1.1\r\n"]);
    let forwarded_for = forwarded_for(plain, peer);
    draft.for_each_field(plain, (peer, &forwarded_for), |name, value| {
        write(&[name, b": ", value, b"\r\n"]);
    });
    write(&[b"\r\n"]);
    Some(head)
}

impl CallLimit {
    /// Returns the time at which a call that arrived then is overdue.
    pub(crate) fn deadline_after(self, arrival: Instant) -> Instant {
        arrival + self.limit
    }

    fn shortest(policy: &FunctionPolicy, server: &FunctionServer) -> Self {
        let limits = [
            Some((
                policy.total_timeout,
                Reason::TotalTimeout,
                policy::TOTAL_TIMEOUT,
            )),
            Some((
                policy.first_byte_timeout,
                Reason::FirstByteTimeout,
                policy::FIRST_BYTE_TIMEOUT,
            )),
            server
                .exec_timeout
                .map(|limit| (limit, Reason::ExecTimeout, "exec_timeout")),
        ];
        let shortest = limits
            .into_iter()
            .flatten()
            .min_by_key(|(limit, ..)| *limit);
        let (limit, reason, setting) = shortest.expect("two limits always exist");
        Self {
            limit,
            reason,
            setting,
        }
    }
}

impl PlainCall {
    /// Continues in the pipeline: the response streams.
    pub(crate) fn stream_via_pipeline(
        self,
        worker: &Rc<WorkerContext>,
        peer: &Rc<PeerInfo>,
        plain: &PlainRequest,
        head: &ResponseHead,
        body: Box<LoopbackBody>,
    ) -> Response<ResponseContent> {
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        let missing = HeaderValue::from_bytes(missing_content_type(plain)).ok();
        *response.headers_mut() = own_port_headers(head, missing, self.elapsed());
        let server = self.endpoint().server().cloned();
        let (mut call, slot) = self.into_pipeline_call(worker, peer, plain);
        if let Some(limit) = server.and_then(|server| server.exec_timeout) {
            call.deadlines
                .shorten_to_exec_timeout(call.admitted_at + limit);
        }
        into_response(call, InstanceAnswer::from_loopback(response, slot))
    }

    /// Answers a call without a response.
    pub(crate) async fn refuse_lost_call(
        self,
        worker: &Rc<WorkerContext>,
        peer: &Rc<PeerInfo>,
        plain: &PlainRequest,
        limit: CallLimit,
        error: &ExchangeError,
    ) -> Response<ResponseContent> {
        let error = match error {
            ExchangeError::Timeout => self.timeout_error(limit),
            ExchangeError::Head(error) => {
                let function = (self.endpoint(), &*self.function().name);
                own_port_error(worker, function, self.record.started_at(), error).await
            }
        };
        let (call, _slot) = self.into_pipeline_call(worker, peer, plain);
        pipeline::refuse_call(*call, &error).map(ResponseContent::Platform)
    }

    fn timeout_error(&self, limit: CallLimit) -> PlatformError {
        let text = format!(
            "{} did not answer within {}",
            self.instance_text(),
            duration::format_duration(limit.limit)
        );
        PlatformError::new(COMPONENT, limit.reason, text).governed_by(limit.setting)
    }

    fn instance_text(&self) -> String {
        format!("{} of {}", self.endpoint().id, self.function().name)
    }
}

/// Returns the content type of a response without one, as in of-watchdog: the request's, or plain
/// text.
pub(crate) fn missing_content_type(plain: &PlainRequest) -> &[u8] {
    let mut fields = plain.raw_fields();
    let asked = fields.find(|(name, _)| *name == CONTENT_TYPE.as_str().as_bytes());
    asked.map_or(DEFAULT_CONTENT_TYPE.as_bytes(), |(_, value)| value)
}
