//! A gateway with fixed instances behind it, and the simplest clients and servers that can show a
//! behaviour.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use nearpath_daemon::drain::{self, DrainTrigger};
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_domain::DomainHandle;
use nearpath_gateway::{
    Gateway, GatewayControl, GatewayListener, GatewaySettings, Http3Listener, ListenerTls,
    ListenerZone, NodeQuicListener, NodeResponse, ServingThreads, UpgradeTask, UpgradedStream,
};
use nearpath_types::policy::{CallTransport, LoopbackDelivery};
use nearpath_types::{
    FunctionId, FunctionPolicy, FunctionRoute, InnerListener, InstanceAddr, InstanceId,
    InstanceLocality, InstanceNetwork, InstanceRoute, InstanceState, NodeName, RoutingSnapshot,
    SourceNetwork,
};
use nearpath_wire::Body;
use nearpath_wire::h3::{CidRouting, Http3ServerConfig};
use nearpath_wire::node_tls::NodeTls;
use nearpath_wire::quic::CallerConfig;
use nearpath_wire::server::HttpLimits;
use nearpath_wire::tls::CertifiedKeyPair;
use rustls::server::StoresServerSessions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

pub(crate) type TestBody = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) fn full_body(text: impl Into<Bytes>) -> TestBody {
    Full::new(text.into()).boxed_unsync()
}

/// Control that reports wake-ups, and answers administrative requests with their path and, in
/// `x-source`, the network of their caller.
pub(crate) struct TestControl {
    wakes: mpsc::UnboundedSender<FunctionId>,
    domain: Option<DomainHandle>,
    inner_listeners: InnerListenerSenders,
}

/// Senders of listeners inside instances, one for each thread of a gateway.
type InnerListenerSenders = Arc<Mutex<Vec<mpsc::UnboundedSender<InnerListener>>>>;

impl GatewayControl for TestControl {
    fn wake_function(&self, function: &FunctionId) {
        let _ = self.wakes.send(function.clone());
    }

    fn inner_listeners(&self) -> Option<mpsc::UnboundedReceiver<InnerListener>> {
        let (sender, listeners) = mpsc::unbounded_channel();
        self.inner_listeners.lock().unwrap().push(sender);
        Some(listeners)
    }

    fn domain_sockets(&self) -> Option<mpsc::UnboundedReceiver<OwnedFd>> {
        let (sender, sockets) = mpsc::unbounded_channel();
        sender
            .send(self.domain.as_ref()?.gateway_socket().unwrap())
            .unwrap();
        Some(sockets)
    }

    fn handle_node(
        &self,
        _: &NodeName,
        request: Request<Body>,
    ) -> BoxFuture<'static, NodeResponse> {
        let response = Response::builder();
        let is_upgrade = request.uri().path() == UPGRADE_PATH;
        let response = match is_upgrade {
            true => response
                .status(101)
                .header("connection", "upgrade")
                .header("upgrade", "echo"),
            false => response.status(404),
        };
        let echo: UpgradeTask = Box::new(|stream| Box::pin(answer_with_echo(stream)));
        let response = NodeResponse {
            response: response.body(Body::empty()).unwrap(),
            upgrade: is_upgrade.then_some(echo),
        };
        Box::pin(std::future::ready(response))
    }

    fn handle_admin(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        let body = Body::from(format!("admin {}", request.uri().path()));
        let source: SourceNetwork = *request.extensions().get().unwrap();
        let response = Response::builder().header("x-source", source.to_string());
        Box::pin(std::future::ready(response.body(body).unwrap()))
    }
}

/// Path of other nodes' requests that upgrade to an echo.
pub(crate) const UPGRADE_PATH: &str = "/node/v1/echo";

async fn answer_with_echo(stream: UpgradedStream) {
    let (mut from, mut to) = tokio::io::split(stream);
    if tokio::io::copy(&mut from, &mut to).await.is_ok() {
        let _ = to.shutdown().await; // the caller may have left
    }
}

pub(crate) struct TestGateway {
    pub gateway: Gateway,
    pub public: SocketAddr,
    pub internal: SocketAddr,
    pub(crate) secure: SocketAddr,
    /// Port for other nodes, if there is one.
    pub(crate) node_port: Option<SocketAddr>,
    /// Renews the certificate for calls to other nodes, if there is one.
    pub(crate) node_caller: Option<watch::Sender<CallerConfig>>,
    /// PEM, self-signed for `localhost`.
    pub(crate) certificate: String,
    pub wakes: mpsc::UnboundedReceiver<FunctionId>,
    pub registry: MetricsRegistry,
    pub log: CapturedLog,
    pub(crate) inner_listeners: InnerListenerSenders,
    trigger: Option<DrainTrigger>,
    serving: Option<ServingThreads>,
}

/// QUIC options on either side of the gateway.
#[derive(Default)]
struct QuicOptions {
    caller: Option<watch::Receiver<CallerConfig>>,
    sessions: Option<Arc<dyn StoresServerSessions>>,
    is_unsteered: bool,
    has_no_sockets: bool,
    node_tls: Option<watch::Receiver<Arc<NodeTls>>>,
}

impl QuicOptions {
    fn into_listener(self, sockets: Vec<UdpSocket>, pair: &CertifiedKeyPair) -> Http3Listener {
        let site = match self.sessions {
            None => Http3ServerConfig::new(pair, &HttpLimits::default(), 2).unwrap(),
            Some(sessions) => {
                Http3ServerConfig::with_session_store(pair, &HttpLimits::default(), 2, sessions)
                    .unwrap()
            }
        };
        if !self.is_unsteered {
            nearpath_kernel::reuseport::attach_steering_program(
                &sockets[0],
                &site.routing().bpf_program(),
            )
            .unwrap();
        }
        let no_socket = || UdpSocket::from(OwnedFd::from(io::pipe().unwrap().0));
        let sockets = match self.has_no_sockets {
            true => sockets.iter().map(|_| no_socket()).collect(),
            false => sockets,
        };
        Http3Listener::new(site, sockets)
    }
}

/// Binds a port number for TCP and UDP. Retries, because other programs use UDP ports too.
fn bind_tcp_and_udp() -> (Vec<std::net::TcpListener>, Vec<UdpSocket>) {
    let tries = std::iter::repeat_with(|| {
        let sockets = nearpath_wire::bind_tcp((Ipv4Addr::LOCALHOST, 0).into(), 2).unwrap();
        let datagrams = nearpath_wire::sockets::bind_udp(sockets[0].local_addr().unwrap(), 2);
        datagrams.map(|datagrams| (sockets, datagrams))
    });
    tries
        .take(20)
        .find_map(Result::ok)
        .expect("a port that is free twice")
}

/// Buffer for the access log.
#[derive(Clone, Default)]
pub(crate) struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl CapturedLog {
    pub(crate) fn parse_lines(&self) -> Vec<serde_json::Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

impl TestGateway {
    pub(crate) fn start() -> Self {
        Self::with_settings(GatewaySettings::default())
    }

    pub(crate) fn with_settings(settings: GatewaySettings) -> Self {
        Self::start_with(settings, None, QuicOptions::default())
    }

    /// Starts a gateway that keeps bodies in a folder, which ends with the returned guard.
    pub(crate) fn with_spool() -> (Self, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let settings = GatewaySettings {
            spool_dir: Some(folder.path().join("spool")),
            ..GatewaySettings::default()
        };
        (Self::with_settings(settings), folder)
    }

    /// Starts a gateway with functions in a security domain.
    pub(crate) fn with_domain(domain: DomainHandle) -> Self {
        Self::start_with(
            GatewaySettings::default(),
            Some(domain),
            QuicOptions::default(),
        )
    }

    /// Starts a gateway with a certificate for calls to instances.
    pub(crate) fn with_caller(caller: watch::Receiver<CallerConfig>) -> Self {
        Self::start_with(
            GatewaySettings::default(),
            None,
            QuicOptions {
                caller: Some(caller),
                ..QuicOptions::default()
            },
        )
    }

    /// Starts the gateway of a node, which calls other nodes and takes their calls. It keeps up to
    /// `max_kept` TLS connections to each.
    pub(crate) fn with_node_tls(node_tls: watch::Receiver<Arc<NodeTls>>, max_kept: usize) -> Self {
        let settings = GatewaySettings {
            max_node_connections: max_kept,
            node: Some(node_tls.borrow().credentials().node().clone()),
            ..GatewaySettings::default()
        };
        let options = QuicOptions {
            node_tls: Some(node_tls),
            ..QuicOptions::default()
        };
        Self::start_with(settings, None, options)
    }

    /// Starts a gateway with a given session store for HTTP/3.
    pub(crate) fn with_sessions(
        settings: GatewaySettings,
        sessions: Option<Arc<dyn StoresServerSessions>>,
    ) -> Self {
        Self::start_with(
            settings,
            None,
            QuicOptions {
                sessions,
                ..QuicOptions::default()
            },
        )
    }

    /// Starts a gateway whose HTTP/3 sockets are none.
    pub(crate) fn without_http3_sockets() -> Self {
        Self::start_with(
            GatewaySettings::default(),
            None,
            QuicOptions {
                is_unsteered: true,
                has_no_sockets: true,
                ..QuicOptions::default()
            },
        )
    }

    /// Starts a gateway whose HTTP/3 packets are not steered to threads.
    pub(crate) fn without_steering() -> Self {
        Self::start_with(
            GatewaySettings::default(),
            None,
            QuicOptions {
                is_unsteered: true,
                ..QuicOptions::default()
            },
        )
    }

    fn start_with(
        settings: GatewaySettings,
        domain: Option<DomainHandle>,
        mut options: QuicOptions,
    ) -> Self {
        let (sender, wakes) = mpsc::unbounded_channel();
        let (registry, log) = (MetricsRegistry::default(), CapturedLog::default());
        let inner_listeners = InnerListenerSenders::default();
        let control = TestControl {
            wakes: sender,
            domain,
            inner_listeners: inner_listeners.clone(),
        };
        let gateway = Gateway::new(settings, Arc::new(control), &registry);
        let gateway = gateway.with_access_log(Box::new(log.clone())).unwrap();
        let gateway = match options.caller.take() {
            Some(caller) => gateway.with_caller(caller),
            None => gateway,
        };
        let (gateway, node_listener, node_caller) = match options.node_tls.take() {
            Some(tls) => attach_nodes(gateway, tls),
            None => (gateway, None, None),
        };
        let bind = || nearpath_wire::bind_tcp((Ipv4Addr::LOCALHOST, 0).into(), 2).unwrap();
        let (public, inner, (secure, datagrams)) = (bind(), bind(), bind_tcp_and_udp());
        let (certificate, tls, pair) = self_signed();
        let at_secure = secure[0].local_addr().unwrap();
        let http3 = Some(options.into_listener(datagrams, &pair));
        let (addr, at_inner) = (
            public[0].local_addr().unwrap(),
            inner[0].local_addr().unwrap(),
        );
        let listeners = vec![
            plain_listener(ListenerZone::Public, public),
            plain_listener(ListenerZone::Internal, inner),
            GatewayListener {
                zone: ListenerZone::Public,
                tls: Some(ListenerTls::Server(tls)),
                sockets: secure,
                http3,
                node_quic: None,
                handed_over: None,
            },
        ];
        let node_port = node_listener
            .as_ref()
            .map(|listener| listener.sockets[0].local_addr().unwrap());
        let listeners = listeners.into_iter().chain(node_listener).collect();
        let (trigger, watch) = drain::channel();
        let serving = gateway
            .serve(listeners, 2, Arc::new(|| Ok(())), watch)
            .unwrap();
        let (trigger, serving) = (Some(trigger), Some(serving));
        let (public, internal, secure) = (addr, at_inner, at_secure);
        Self {
            gateway,
            public,
            internal,
            secure,
            node_port,
            node_caller,
            certificate,
            wakes,
            registry,
            log,
            inner_listeners,
            trigger,
            serving,
        }
    }

    /// Drains and returns the error of a thread.
    pub(crate) async fn drain_to_failure(&mut self) -> std::io::Error {
        let (trigger, serving) = (self.trigger.take().unwrap(), self.serving.take().unwrap());
        nearpath_testkit::within(trigger.drain()).await;
        let joined = tokio::task::spawn_blocking(|| serving.join_all());
        nearpath_testkit::within(joined).await.unwrap().unwrap_err()
    }

    /// Begins the drain; the future ends with it.
    pub(crate) fn drain_gateway(&mut self) -> impl Future<Output = ()> + use<> {
        let (trigger, serving) = (self.trigger.take().unwrap(), self.serving.take().unwrap());
        let draining = tokio::spawn(trigger.drain());
        async move {
            draining.await.unwrap();
            tokio::task::spawn_blocking(|| serving.join_all())
                .await
                .unwrap()
                .unwrap();
        }
    }

    /// Publishes functions whose instances are all ready.
    pub(crate) fn publish_functions(&self, functions: &[(&str, FunctionPolicy, &[SocketAddr])]) {
        let routes = functions
            .iter()
            .map(|(name, policy, addr)| function_route(name, policy.clone(), addr));
        self.gateway.publish(&RoutingSnapshot {
            version: 1,
            nodes: Default::default(),
            functions: routes.collect(),
        });
    }

    pub(crate) fn publish_echo(&self, addr: SocketAddr) {
        self.publish_functions(&[("echo", FunctionPolicy::default(), &[addr])]);
    }

    /// Returns the bytes of bodies that wait in files.
    pub(crate) fn spooled_bytes(&self) -> u64 {
        let metrics = self.encode_metrics();
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix("nearpath_spooled_bytes "));
        value.unwrap().parse().unwrap()
    }

    pub(crate) fn encode_metrics(&self) -> String {
        self.registry.encode()
    }

    /// Sends a GET request on a new connection.
    pub(crate) async fn send_get(&self, path: &str) -> CollectedResponse {
        send_and_collect(self.public, Request::get(path).body(full_body("")).unwrap()).await
    }
}

fn plain_listener(zone: ListenerZone, sockets: Vec<std::net::TcpListener>) -> GatewayListener {
    GatewayListener {
        zone,
        tls: None,
        sockets,
        http3: None,
        node_quic: None,
        handed_over: None,
    }
}

/// Gives the gateway the certificate of a node, and a port for others. The sender renews it for calls.
fn attach_nodes(
    gateway: Gateway,
    tls: watch::Receiver<Arc<NodeTls>>,
) -> (
    Gateway,
    Option<GatewayListener>,
    Option<watch::Sender<CallerConfig>>,
) {
    let (sender, caller) = watch::channel(tls.borrow().caller_config().clone());
    let gateway = gateway.with_node_caller(caller);
    (gateway, Some(node_listener(tls)), Some(sender))
}

/// Opens a port for other nodes on both protocols.
fn node_listener(tls: watch::Receiver<Arc<NodeTls>>) -> GatewayListener {
    let (sockets, datagrams) = bind_tcp_and_udp();
    let routing = CidRouting::new(2).unwrap();
    let program = routing.bpf_program();
    nearpath_kernel::reuseport::attach_steering_program(&datagrams[0], &program).unwrap();
    GatewayListener {
        zone: ListenerZone::Node,
        tls: Some(ListenerTls::Nodes(tls)),
        sockets,
        http3: None,
        node_quic: Some(NodeQuicListener {
            sockets: datagrams,
            routing,
        }),
        handed_over: None,
    }
}

fn self_signed() -> (String, Arc<rustls::ServerConfig>, CertifiedKeyPair) {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (
        folder.path().join("cert.pem"),
        folder.path().join("key.pem"),
    );
    let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(&cert, pair.cert.pem()).unwrap();
    std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let read = nearpath_wire::tls::read_key_pair(&cert, &key).unwrap();
    (
        pair.cert.pem(),
        nearpath_wire::tls::load_config(&cert, &key).unwrap(),
        read,
    )
}

/// Builds a route. Instance ids follow from addresses, so that publishing twice means the same
/// instances.
pub(crate) fn function_route(
    name: &str,
    policy: FunctionPolicy,
    ready: &[SocketAddr],
) -> FunctionRoute {
    FunctionRoute {
        address: None,
        id: name.parse().unwrap(),
        policy: Arc::new(policy),
        replicas: ready.len() as u32,
        instances: ready
            .iter()
            .map(|addr| instance_entry(*addr, InstanceState::Ready))
            .collect(),
        runs_here: true,
        remotes: Vec::new(),
        start_failure: None,
    }
}

pub(crate) fn instance_entry(addr: SocketAddr, state: InstanceState) -> InstanceRoute {
    InstanceRoute {
        id: InstanceId(u64::from(addr.port())),
        addr: InstanceAddr(addr),
        locality: InstanceLocality::SameNode,
        state,
        quic: None,
        transport: CallTransport::Auto,
        server: None,
    }
}

#[derive(Debug)]
pub(crate) struct CollectedResponse {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: String,
    pub trailers: Option<http::HeaderMap>,
}

impl CollectedResponse {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn reason(&self) -> &str {
        self.header("x-nearpath-reason")
    }
}

pub(crate) async fn send_and_collect(
    addr: SocketAddr,
    request: Request<TestBody>,
) -> CollectedResponse {
    let response = nearpath_testkit::within(send_request(addr, request))
        .await
        .unwrap();
    collect_response(response).await
}

pub(crate) async fn collect_response(response: Response<Incoming>) -> CollectedResponse {
    let (head, body) = response.into_parts();
    let body = nearpath_testkit::within(body.collect()).await.unwrap();
    let trailers = body.trailers().cloned();
    let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
    CollectedResponse {
        status: head.status.as_u16(),
        headers: head.headers,
        body,
        trailers,
    }
}

/// Sends a request on a new HTTP/1.1 connection and returns the head of the response.
pub(crate) async fn send_request(
    addr: SocketAddr,
    mut request: Request<TestBody>,
) -> hyper::Result<Response<Incoming>> {
    if !request.headers().contains_key("host") {
        request
            .headers_mut()
            .insert("host", "shop.example".parse().unwrap());
    }
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(
        TcpStream::connect(addr).await.unwrap(),
    ))
    .await?;
    tokio::spawn(connection.with_upgrades());
    let response = sender.send_request(request).await?;
    tokio::spawn(async move {
        let _open_until_the_body_ends = sender.ready().await;
    });
    Ok(response)
}

/// Opens an HTTP/2 connection without TLS.
pub(crate) async fn connect_http2(
    addr: SocketAddr,
) -> hyper::client::conn::http2::SendRequest<TestBody> {
    connect_http2_with_window(addr, 65_535).await
}

/// Opens an HTTP/2 connection without TLS with a stream window of `window` bytes.
pub(crate) async fn connect_http2_with_window(
    addr: SocketAddr,
    window: u32,
) -> hyper::client::conn::http2::SendRequest<TestBody> {
    let io = TokioIo::new(TcpStream::connect(addr).await.unwrap());
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = builder
        .initial_stream_window_size(window)
        .handshake(io)
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

/// Starts an instance that answers each request with `handler`, over HTTP/1.1 or h2c.
pub(crate) async fn start_instance_at<F, R>(ip: Ipv4Addr, handler: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Response<TestBody>> + Send + 'static,
{
    let socket = TcpListener::bind((ip, 0)).await.unwrap();
    let addr = socket.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let handler = handler.clone();
            let service = service_fn(move |request| {
                let response = handler(request);
                async { Ok::<_, Infallible>(response.await) }
            });
            tokio::spawn(async move {
                let _ = auto::Builder::new(TokioExecutor::new())
                    .serve_connection_with_upgrades(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    addr
}

pub(crate) async fn start_instance<F, R>(handler: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Response<TestBody>> + Send + 'static,
{
    start_instance_at(Ipv4Addr::LOCALHOST, handler).await
}

/// Instance that answers one request per permit.
pub(crate) struct BlockedInstance {
    pub(crate) addr: SocketAddr,
    pub(crate) permits: Arc<Semaphore>,
    received: watch::Receiver<usize>,
}

impl BlockedInstance {
    /// Waits until the instance has received this many requests. A request is open before it has its place;
    /// here it has one.
    pub(crate) async fn wait_for_requests(&self, count: usize) {
        let mut received = self.received.clone();
        let wait = received.wait_for(|received| *received >= count);
        nearpath_testkit::within(wait).await.unwrap();
    }
}

pub(crate) async fn start_blocked_instance() -> BlockedInstance {
    let permits = Arc::new(Semaphore::new(0));
    let (counter, received) = watch::channel(0);
    let (gate, counter) = (permits.clone(), Arc::new(counter));
    let addr = start_instance(move |_| {
        let gate = gate.clone();
        counter.send_modify(|received| *received += 1);
        async move {
            gate.acquire().await.unwrap().forget();
            Response::new(full_body("ok"))
        }
    })
    .await;
    BlockedInstance {
        addr,
        permits,
        received,
    }
}

/// Starts an instance that answers with the request: method, target, headers, body.
pub(crate) async fn start_mirror() -> SocketAddr {
    start_instance(async |request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        let mut text = format!("{} {}\n", head.method, head.uri);
        for (name, value) in &head.headers {
            text += &format!("{name}: {}\n", value.to_str().unwrap());
        }
        let body = body.collect().await.unwrap().to_bytes();
        text += &format!("\n{}", String::from_utf8_lossy(&body));
        Response::new(full_body(text))
    })
    .await
}

/// Starts a server that runs `script` on each connection and reports each one.
pub(crate) async fn start_scripted<F, R>(script: F) -> (SocketAddr, mpsc::UnboundedReceiver<()>)
where
    F: Fn(TcpStream) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = socket.local_addr().unwrap();
    let (seen, connections) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let _ = seen.send(());
            tokio::spawn(script.clone()(stream));
        }
    });
    (addr, connections)
}

/// Reads a request's head.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// Sends bytes as they are and reads until the gateway closes.
pub(crate) async fn send_raw(addr: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let _ = nearpath_testkit::within(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Connects from another loopback address.
pub(crate) async fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((IpAddr::from(from), 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

pub(crate) fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Network of an instance that shares the machine's.
#[derive(Debug)]
pub(crate) struct SharedNetwork;

impl InstanceNetwork for SharedNetwork {
    fn open_tcp_socket(&self, _: bool) -> io::Result<OwnedFd> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
        Ok(socket?)
    }

    fn delivery(&self) -> LoopbackDelivery {
        LoopbackDelivery::Tcp
    }

    fn oom_kills(&self) -> Option<u64> {
        None
    }
}
