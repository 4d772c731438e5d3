//! Plain requests over HTTP/1.1: to the function's own port, without its watchdog (ADR 89), and to other
//! nodes (ADR 106). At the own port the watchdog's contract holds: its time limit, its header fields, its
//! reasons.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use nearpath_domain::CalleeKind;
use nearpath_path::{
    self as path, CallFacts, CallNeeds, EdgeFacts, Path, PathChoice, TransportFacts,
};
use nearpath_types::platform_field::FUNCTION_FIELD;
use nearpath_types::policy::CallTransport;
use nearpath_types::{FunctionPolicy, FunctionServer, PlatformError, Reason, duration, policy};

use super::plain_call::{PlainCall, PlainDraft, forwarded_for, is_eligible};
use super::request::PlainRequest;
use crate::COMPONENT;
use crate::context::WorkerContext;
use crate::deliver::{
    DEFAULT_CONTENT_TYPE, InstanceAnswer, ResponseContent, into_response, is_for_watchdog,
    node_headers, own_port_error, own_port_headers,
};
use crate::function::{ActiveRoute, DialTarget, FunctionEntry};
use crate::pipeline;
use crate::request::{ListenerZone, PeerInfo};
use crate::transport::{
    Exchange, ExchangeError, Http1Body, PooledConnection, ResponseHead, ResponseHeadError,
};

/// Shortest time limit of a call in the event loop, which finds overdue calls only after some 10 ms.
const MIN_INLINE_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum size of a request to another node, which a TLS record of 16 KiB then holds with further fields.
const MAX_NODE_REQUEST_BYTES: usize = 12 * 1024;
/// Maximum fields of a request to another node. It gets up to nine more, and a plain one has at most 32.
const MAX_NODE_FIELDS: usize = 22;
/// Room for the head of a usual request, and a short body.
const HEAD_RESERVE_BYTES: usize = 1024;

/// Plain request with a connection to the server that answers it.
pub(crate) struct Http1Call {
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

/// Plain request whose head for its server is written. Dropping it leaves no state behind.
pub(crate) struct Http1Draft {
    plain: PlainDraft,
    server: DraftServer,
    choice: PathChoice,
    head: Vec<u8>,
}

/// Server that answers a plain request.
enum DraftServer {
    /// The function's own.
    Own(Arc<FunctionServer>),
    /// Another node.
    Node(Arc<DialTarget>),
}

impl DraftServer {
    fn of(draft: &PlainDraft) -> Option<Self> {
        Some(match draft.node() {
            Some(node) => Self::Node(node.clone()),
            None => Self::Own(draft.endpoint().server()?.clone()),
        })
    }

    fn path(&self) -> Path {
        match self {
            Self::Own(_) => Path::Loopback,
            Self::Node(_) => Path::Tls,
        }
    }

    fn base_path(&self) -> &str {
        match self {
            Self::Own(server) => &server.base_path,
            Self::Node(_) => "",
        }
    }

    fn call_limit(&self, policy: &FunctionPolicy) -> CallLimit {
        match self {
            Self::Own(server) => CallLimit::shortest(policy, server.exec_timeout),
            Self::Node(_) => CallLimit::shortest(policy, None), // the node knows its instances' limits
        }
    }
}

impl Http1Draft {
    /// Admits a plain request and writes its head. `None`: it is for another path.
    pub(crate) fn new(
        worker: &WorkerContext,
        peer: &PeerInfo,
        plain: &PlainRequest,
        function: &Arc<FunctionEntry>,
        path_offset: usize,
    ) -> Option<Self> {
        let route = function.route();
        if !has_server(&route, peer, plain, path_offset) || !is_eligible(plain, &route) {
            return None;
        }
        // Every early return from here on drops the slot, and with it the permit.
        let draft = PlainDraft::admit(worker, peer, plain, function, route, path_offset)?;
        let server = DraftServer::of(&draft)?;
        Some(Self {
            choice: path_choice(worker, &draft, &server)?,
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
    ) -> Option<Http1Call> {
        let connection = match self.take_idle(worker) {
            Some(idle) => idle,
            None => self.open(worker).await?,
        };
        Some(self.start(worker, peer, plain, connection))
    }

    /// Opens a connection. To another node, it is for later requests: this one need not wait, and takes a
    /// QUIC stream.
    async fn open(&self, worker: &WorkerContext) -> Option<PooledConnection> {
        let poller = worker.event_loop.poller();
        match &self.server {
            DraftServer::Own(server) => {
                let (pools, endpoint) = (&worker.loopback_pools, self.plain.endpoint());
                pools.open(endpoint, server, poller).await
            }
            DraftServer::Node(node) => {
                let connections = worker.connections_to(node);
                let caller = connections.quic.current_caller();
                let kept = connections.kept_tls.as_ref()?;
                kept.open_later(node, caller, poller);
                None
            }
        }
    }

    /// Takes an idle connection for a call that has no short time limit. `None`: nothing was sent.
    pub(crate) fn connect_idle(
        self,
        worker: &WorkerContext,
        peer: &PeerInfo,
        plain: &PlainRequest,
    ) -> Option<Http1Call> {
        let limit = self.server.call_limit(&self.plain.route.policy);
        if limit.limit < MIN_INLINE_TIMEOUT {
            return None;
        }
        let connection = self.take_idle(worker)?;
        Some(self.start(worker, peer, plain, connection))
    }

    fn take_idle(&self, worker: &WorkerContext) -> Option<PooledConnection> {
        let now = self.plain.arrived_at;
        match &self.server {
            DraftServer::Own(server) => {
                let (endpoint, poller) = (self.plain.endpoint(), worker.event_loop.poller());
                let pools = &worker.loopback_pools;
                pools.take_idle(endpoint, server, poller, now)
            }
            DraftServer::Node(node) => {
                let kept = worker.connections_to(node).kept_tls.as_ref()?;
                kept.take_idle(node, now)
            }
        }
    }

    fn start(
        self,
        worker: &WorkerContext,
        peer: &PeerInfo,
        plain: &PlainRequest,
        connection: PooledConnection,
    ) -> Http1Call {
        let limit = self.server.call_limit(&self.plain.route.policy);
        Http1Call {
            exchange: Exchange::new(connection, self.head, plain.body()),
            call: self.plain.start_call(worker, peer, plain, self.choice),
            limit,
        }
    }
}

/// Returns whether the server of an instance here, or another node, can take a plain request. What comes
/// from another node goes no further.
fn has_server(
    route: &ActiveRoute,
    peer: &PeerInfo,
    plain: &PlainRequest,
    path_offset: usize,
) -> bool {
    if !route.runs_here {
        return peer.zone != ListenerZone::Node && fits_plain_request_of_node(plain);
    }
    let own_path = plain.path().get(path_offset..).unwrap_or_default();
    route.ready.iter().any(|one| one.server().is_some()) && !is_for_watchdog(own_path)
}

/// Returns whether the other node finds a plain request, too, with the fields that this one adds. After any
/// other request its connection would stay with hyper.
fn fits_plain_request_of_node(plain: &PlainRequest) -> bool {
    plain.bytes.len() <= MAX_NODE_REQUEST_BYTES && plain.field_count() <= MAX_NODE_FIELDS
}

/// Returns the choice of the server's path with the obstacle to a nearer one; `None`: another path is
/// chosen.
fn path_choice(
    worker: &WorkerContext,
    draft: &PlainDraft,
    server: &DraftServer,
) -> Option<PathChoice> {
    let choice = match server {
        DraftServer::Own(_) => own_port_choice(worker, draft),
        DraftServer::Node(node) => kept_tls_choice(worker, node),
    };
    (choice.path == server.path()).then_some(choice)
}

fn kept_tls_choice(worker: &WorkerContext, node: &DialTarget) -> PathChoice {
    let facts = CallFacts {
        edge: EdgeFacts::OTHER_NODE,
        transport: TransportFacts {
            wanted: CallTransport::Auto,
            caller_has_certificate: worker.connections_to(node).quic.has_caller(),
            callee_has_certificate: node.server_name().is_some(),
            udp_blocked: node.udp.is_blocked_now(),
            tls: true,
            kept_tls: true,
            ..TransportFacts::PLAIN
        },
        needs: CallNeeds::PLAIN,
    };
    path::select_paths(&facts).first_choice()
}

fn own_port_choice(worker: &WorkerContext, draft: &PlainDraft) -> PathChoice {
    let (endpoint, domain) = (draft.endpoint(), draft.route.domain.as_deref());
    let shm_endpoint = domain.and_then(|domain| worker.shm_domains.endpoint_in(domain));
    let callee = shm_endpoint
        .as_ref()
        .zip(endpoint.instance())
        .and_then(|(one, id)| one.callee_at(id));
    let facts = CallFacts {
        edge: EdgeFacts {
            same_node: true,
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
    path::select_paths(&facts).first_choice()
}

/// Writes the request's head (RFC 9112 section 3). `None`: the pipeline forms a new target.
fn write_head(
    server: &DraftServer,
    draft: &PlainDraft,
    plain: &PlainRequest,
    peer: &PeerInfo,
) -> Option<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_RESERVE_BYTES);
    let mut write = |parts: &[&[u8]]| parts.iter().for_each(|part| head.extend_from_slice(part));
    let (method, target) = (plain.method().as_str(), draft.target(plain)?);
    write(&[method.as_bytes(), b" ", server.base_path().as_bytes()]);
    write(&[target.as_bytes(), b" HTTP/1.1\r\n"]);
    if let DraftServer::Node(_) = server {
        let function = draft.function.host.as_bytes();
        write(&[FUNCTION_FIELD.as_bytes(), b": ", function, b"\r\n"]);
        if plain.wants_path() {
            write(&[b"x-nearpath-path: ?\r\n"]);
        }
    }
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

    fn shortest(policy: &FunctionPolicy, exec_timeout: Option<Duration>) -> Self {
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
            exec_timeout.map(|limit| (limit, Reason::ExecTimeout, "exec_timeout")),
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
        body: Box<Http1Body>,
    ) -> Response<ResponseContent> {
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        *response.headers_mut() = match self.is_remote() {
            true => node_headers(head),
            false => {
                let missing = HeaderValue::from_bytes(missing_content_type(plain)).ok();
                own_port_headers(head, missing, self.elapsed())
            }
        };
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
            ExchangeError::Head(error) if self.is_remote() => self.lost_node_error(error),
            ExchangeError::Head(error) => {
                let function = (self.endpoint(), &*self.function().name);
                own_port_error(worker, function, self.record.started_at(), error).await
            }
        };
        let (call, _slot) = self.into_pipeline_call(worker, peer, plain);
        pipeline::refuse_call(*call, &error).map(ResponseContent::Platform)
    }

    fn lost_node_error(&self, error: &ResponseHeadError) -> PlatformError {
        let text = format!(
            "{} closed the connection before it answered: {error}; it may have run",
            self.instance_text()
        );
        PlatformError::new(COMPONENT, Reason::InstanceDied, text)
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
