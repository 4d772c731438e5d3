//! Calls of the tenant's code to other functions, taken inside the instance:
//! `http://gateway:8080/function/NAME`.
//!
//! In an instance with an identity the name `gateway` resolves to a loopback address on which the
//! watchdog listens; in others, the gateway itself does. Calls over a declared edge that shared
//! memory can carry go through it ([`via_shm`]). Calls to functions reached over QUIC go straight to
//! an instance ([`via_quic`]).
//! Everything else goes unchanged to the gateway ([`via_gateway`]), which refuses, wakes and
//! queues, and knows the caller by its eIP. The listener outlives the drain, because calls that are
//! being finished may call others.

mod call_target;
mod request_context;
mod via_gateway;
mod via_quic;
mod via_shm;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use http::header::{CONNECTION, HOST};
use http::{HeaderValue, Request, Response};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::Builder;
use nearpath_path::Path;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::hop::headers::join_cookies;
use nearpath_wire::hop::request_head::{head_fault, take_host};
use nearpath_wire::lingering_close::{LingeringStream, WatchedBody};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::config::instance_env;
use crate::errors::watchdog_error;
use crate::incoming_body::IncomingBody;
use crate::listen::{self, ACCEPT_RETRY_DELAY};
use crate::quic_peers::{QuicCallee, QuicPeers};
use crate::request_body::{RequestBody, UploadState, collect_body};
use crate::response_body::WatchdogBody;
use crate::shm_server::ShmMembership;
use crate::upstream::{UpstreamClient, UpstreamPeer};

use call_target::{CallTarget, MAX_BUFFERED_BODY_BYTES, can_buffer};
use via_gateway::forward_request;

/// Shared state of all outbound calls.
#[derive(Debug)]
pub(crate) struct OutboundProxy {
    membership: ShmMembership,
    quic_peers: QuicPeers,
    gateway: UpstreamClient,
    /// Value of the gateway's `X-Forwarded-For` header.
    forwarded_for: HeaderValue,
    served_by: HeaderValue,
    /// Time limit for silence of the tenant inside a body.
    read_timeout: Option<Duration>,
}

impl OutboundProxy {
    fn new(
        addrs: instance_env::OutboundAddrs,
        membership: ShmMembership,
        quic_peers: QuicPeers,
        read_timeout: Option<Duration>,
    ) -> Self {
        let host = rustix::system::uname().nodename().to_bytes().to_owned();
        Self {
            membership,
            quic_peers,
            gateway: UpstreamClient::new(UpstreamPeer::Gateway, vec![addrs.gateway]),
            forwarded_for: HeaderValue::from_str(&addrs.eip.to_string())
                .expect("an address is ASCII"),
            served_by: HeaderValue::from_bytes(&host)
                .unwrap_or(HeaderValue::from_static("nearpath-watchdog")),
            read_timeout,
        }
    }
}

/// Opens the listener and serves it until the process ends.
///
/// # Errors
/// When the address is taken: the instance could call no other function.
pub(crate) fn start_proxy(
    addrs: instance_env::OutboundAddrs,
    membership: ShmMembership,
    quic_peers: QuicPeers,
    read_timeout: Option<Duration>,
) -> io::Result<()> {
    // The watchdog's own listener has the same port; the kernel prefers the exact address (ADR 14).
    let listener = listen::bind_listener(addrs.listen, true)?;
    spawn_local(accept_calls(
        listener,
        Rc::new(OutboundProxy::new(
            addrs,
            membership,
            quic_peers,
            read_timeout,
        )),
    ));
    Ok(())
}

async fn accept_calls(listener: TcpListener, proxy: Rc<OutboundProxy>) {
    let http = Rc::new(listen::http_builder(LocalExecutor));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(spawn_local(serve_connection(
                stream,
                Rc::clone(&http),
                Rc::clone(&proxy),
            ))),
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
        }
    }
}

/// Executor that runs hyper's tasks on this thread.
#[derive(Debug, Clone, Copy)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, work: F) {
        // An endpoint of shared memory lives on one thread, hence so do tasks that use it.
        spawn_local(async { drop(work.await) });
    }
}

async fn serve_connection(
    stream: TcpStream,
    http: Rc<Builder<LocalExecutor>>,
    proxy: Rc<OutboundProxy>,
) {
    let _ = stream.set_nodelay(true); // a connection that is already gone shows it at the first read
    let stream = LingeringStream::new(stream);
    let unread = stream.unread_input();
    let service = service_fn(|request| {
        let (proxy, request) = (Rc::clone(&proxy), unread.watch_request(request));
        async move { Ok::<_, Infallible>(handle_request(&proxy, request).await) }
    });
    let _ = http
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .await; // its errors concern this connection alone
}

async fn handle_request(
    proxy: &OutboundProxy,
    mut request: Request<WatchedBody>,
) -> Response<WatchdogBody> {
    let context = request_context::OutboundContext::from_request(&request);
    if let Err(fault) = normalize_head(&mut request) {
        let mut response = context.error_response(proxy, &fault);
        // What follows on the connection may be part of the malformed request.
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
        return response;
    }
    match route_call(proxy, &context, request).await {
        Ok(response) => response,
        Err(fault) => context.error_response(proxy, &fault),
    }
}

/// Makes a head mean the same on every path: one host, one framing, one field of cookies. The
/// gateway has the same rules for the calls that it receives.
///
/// # Errors
/// `bad_request` for a head with two meanings.
fn normalize_head<B>(request: &mut Request<B>) -> Result<(), PlatformError> {
    if let Some(fault) = head_fault(request) {
        return Err(watchdog_error(Reason::BadRequest, fault));
    }
    let authority = request.uri().authority().cloned();
    let headers = request.headers_mut();
    join_cookies(headers);
    if let Some(host) = take_host(headers, authority.as_ref()) {
        headers.insert(HOST, host);
    }
    Ok(())
}

/// Outcome of a call that was tried past the gateway.
enum SendOutcome<B> {
    Answered(Response<WatchdogBody>),
    /// Nothing ran: the request for another path.
    NotRun(Request<B>),
}

/// Routes a call: through shared memory if possible, else over QUIC to an instance, else to the
/// gateway.
async fn route_call(
    proxy: &OutboundProxy,
    context: &request_context::OutboundContext,
    request: Request<WatchedBody>,
) -> Result<Response<WatchdogBody>, PlatformError> {
    // A tunnel to any host would go past the declared egress.
    if request.method() == http::Method::CONNECT {
        return Err(watchdog_error(
            Reason::MethodNotAllowed,
            "CONNECT is not supported",
        ));
    }
    // The gateway has the error texts for everything that is not a plain call.
    let Some(target) = CallTarget::read(&request) else {
        return forward_unchanged(proxy, request).await;
    };
    let (endpoint, callee) = (
        proxy.membership.endpoint(),
        proxy.quic_peers.callee_for_call(&target.function),
    );
    let plan = target.plan(&request, endpoint, callee.as_deref());
    let endpoint = endpoint.filter(|_| plan.allows_path(Path::Shm));
    let callee = callee.filter(|_| plan.allows_path(Path::Quic));
    // No path past the gateway, so nothing has to be buffered.
    if endpoint.is_none() && callee.is_none() {
        return forward_unchanged(proxy, request).await;
    }
    // A streamed body can be sent only once: shared memory, where calls may be refused, is out.
    if !can_buffer(&request) {
        let request = request.map(|body| RequestBody::unmonitored(IncomingBody::Http(body)));
        return via_quic_or_gateway(proxy, callee.as_deref(), context, &target, request).await;
    }
    let (head, body) = request.into_parts();
    let body = collect_body(
        IncomingBody::Http(body),
        MAX_BUFFERED_BODY_BYTES,
        proxy.read_timeout,
        &UploadState::default(),
    )
    .await?;
    let mut request = Request::from_parts(head, body);
    if let Some(endpoint) = endpoint {
        match via_shm::call_via_shm(proxy, endpoint, context, &target, request).await? {
            SendOutcome::Answered(response) => return Ok(response),
            SendOutcome::NotRun(unsent) => request = unsent,
        }
    }
    via_quic_or_gateway(proxy, callee.as_deref(), context, &target, request).await
}

/// Sends the call over QUIC if the callee can be reached, else to the gateway.
async fn via_quic_or_gateway<B>(
    proxy: &OutboundProxy,
    callee: Option<&QuicCallee>,
    context: &request_context::OutboundContext,
    target: &CallTarget,
    mut request: Request<B>,
) -> Result<Response<WatchdogBody>, PlatformError>
where
    B: via_quic::QuicRequestBody + Into<RequestBody>,
{
    if let Some(callee) = callee {
        match via_quic::call_via_quic(proxy, callee, context, target, request).await? {
            SendOutcome::Answered(response) => return Ok(response),
            SendOutcome::NotRun(unsent) => request = unsent,
        }
    }
    forward_request(&proxy.gateway, request.map(Into::into)).await
}

async fn forward_unchanged(
    proxy: &OutboundProxy,
    request: Request<WatchedBody>,
) -> Result<Response<WatchdogBody>, PlatformError> {
    forward_request(
        &proxy.gateway,
        request.map(|body| RequestBody::unmonitored(IncomingBody::Http(body))),
    )
    .await
}
