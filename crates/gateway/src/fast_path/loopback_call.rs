//! Plain requests to the function's own port, without its watchdog (ADR 89). The watchdog's
//! contract holds here: its time limit, its header fields, its reasons.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response};
use nearpath_domain::CalleeKind;
use nearpath_path::{
    self as path, CallFacts, CallNeeds, EdgeFacts, Path, PathChoice, TransportFacts,
};
use nearpath_types::{FunctionPolicy, FunctionServer, PlatformError, Reason, duration, policy};
use nearpath_wire::hop::headers::{strip_hop_headers, strip_platform_headers};
use tokio::net::TcpStream;

use super::plain_call::{PlainCall, PlainDraft, forwarded_for, is_eligible};
use super::request::PlainRequest;
use crate::COMPONENT;
use crate::context::WorkerContext;
use crate::deliver::{InstanceAnswer, ResponseContent, into_response};
use crate::function::FunctionEntry;
use crate::pipeline;
use crate::request::{PeerInfo, seconds_value};
use crate::transport::{
    Exchange, ExchangeError, InvalidResponse, LoopbackBody, PooledConnection, ResponseHead,
    ResponseHeadError,
};

/// Paths that the watchdog answers itself.
const WATCHDOG_PATHS: [&str; 2] = ["/_/health", "/_/ready"];
/// Time in which a watchdog that is alive accepts a connection.
const WATCHDOG_TIMEOUT: Duration = Duration::from_millis(250);
/// Content type of a response where neither it nor its request has one, as in of-watchdog.
const DEFAULT_CONTENT_TYPE: &[u8] = b"text/plain";
/// Shortest time limit of a call in the event loop, which finds overdue calls only after some 10 ms.
const MIN_INLINE_TIMEOUT: Duration = Duration::from_millis(200);
/// Room for the head of a usual request, and a short body.
const HEAD_RESERVE_BYTES: usize = 1024;
/// Cause of a lost connection, for callers.
const MEMORY_CAUSE: &str =
    "the kernel killed a process of the instance, because it needed more memory than it may use";

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
        let is_for_watchdog = WATCHDOG_PATHS.contains(&own_path);
        if !has_server || is_for_watchdog || !is_eligible(plain, &route) {
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
        *response.headers_mut() = response_headers(plain, head, self.elapsed());
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
            ExchangeError::Head(ResponseHeadError::Invalid(error)) => self.invalid_error(*error),
            ExchangeError::Head(error) => self.lost_error(worker, error).await,
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

    fn invalid_error(&self, error: InvalidResponse) -> PlatformError {
        let reason = match error {
            InvalidResponse::SwitchingProtocols => Reason::InstanceDied,
            _ => Reason::FunctionFailed,
        };
        let text = format!(
            "{} answered with invalid HTTP: {error}",
            self.instance_text()
        );
        PlatformError::new(COMPONENT, reason, text)
    }

    async fn lost_error(&self, worker: &WorkerContext, error: &ResponseHeadError) -> PlatformError {
        let endpoint = self.endpoint();
        let text = format!(
            "{} closed the connection before it answered: {error}",
            self.instance_text()
        );
        let pools = &worker.loopback_pools;
        let is_out_of_memory = endpoint.server().is_some_and(|server| {
            pools.was_killed_for_memory(endpoint, server, self.record.started_at())
        });
        if is_out_of_memory {
            let text = format!("{text}: {MEMORY_CAUSE}");
            return PlatformError::new(COMPONENT, Reason::FunctionFailed, text)
                .governed_by("limits.memory");
        }
        let reason = match has_watchdog(endpoint.target.addr).await {
            true => Reason::FunctionFailed,
            false => Reason::InstanceDied,
        };
        PlatformError::new(COMPONENT, reason, text)
    }

    fn instance_text(&self) -> String {
        format!(
            "instance {} of {}",
            self.endpoint().id,
            self.function().name
        )
    }
}

/// Returns whether the watchdog still listens. A dying instance closes its port first: the kernel
/// ends the other processes of a PID namespace after it has closed the files of the first
/// (`exit_files` before `zap_pid_ns_processes`).
async fn has_watchdog(addr: SocketAddr) -> bool {
    let connecting = tokio::time::timeout(WATCHDOG_TIMEOUT, TcpStream::connect(addr));
    connecting.await.is_ok_and(|connected| connected.is_ok())
}

/// Returns the content type of a response without one, as in of-watchdog: the request's, or plain
/// text.
pub(crate) fn missing_content_type(plain: &PlainRequest) -> &[u8] {
    let mut fields = plain.raw_fields();
    let asked = fields.find(|(name, _)| *name == CONTENT_TYPE.as_str().as_bytes());
    asked.map_or(DEFAULT_CONTENT_TYPE, |(_, value)| value)
}

/// Converts the head of a response, as the watchdog completes it.
fn response_headers(plain: &PlainRequest, head: &ResponseHead, took: Duration) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in head.fields() {
        let (name, value) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_bytes(value),
        );
        // httparse accepts no other names; a value with a control character is dropped.
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    strip_hop_headers(&mut headers, false);
    strip_platform_headers(&mut headers);
    if !headers.contains_key(CONTENT_TYPE) {
        let missing = HeaderValue::from_bytes(missing_content_type(plain));
        headers.extend(missing.ok().map(|value| (CONTENT_TYPE, value)));
    }
    headers.insert("x-duration-seconds", seconds_value(took));
    headers
}
