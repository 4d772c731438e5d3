//! A gateway with fixed instances behind it, and the simplest clients and servers that can show a behaviour.

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
use nearpath_daemon::drain::{self, Trigger};
use nearpath_daemon::metrics::Registry;
use nearpath_domain::DomainHandle;
use nearpath_gateway::{Control, Gateway, Http3, Listener, Serving, Settings, Zone};
use nearpath_types::policy::Transport;
use nearpath_types::{
    FunctionId, FunctionRoute, Instance, InstanceAddr, InstanceId, InstanceState, Locality, Policy, Snapshot,
};
use nearpath_wire::Body;
use nearpath_wire::h3::Site;
use nearpath_wire::quic::Caller;
use nearpath_wire::server::Limits;
use nearpath_wire::tls::Pair;
use rustls::server::StoresServerSessions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

pub(crate) type TestBody = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) fn full(text: impl Into<Bytes>) -> TestBody {
    Full::new(text.into()).boxed_unsync()
}

/// Rings arrive here; the administrator's side says which path it saw.
pub(crate) struct Rings(mpsc::UnboundedSender<FunctionId>, Option<DomainHandle>);

impl Control for Rings {
    fn wake(&self, function: &FunctionId) {
        let _ = self.0.send(function.clone());
    }

    fn domains(&self) -> Option<mpsc::UnboundedReceiver<OwnedFd>> {
        let (send, sockets) = mpsc::unbounded_channel();
        send.send(self.1.as_ref()?.gateway_socket().unwrap()).unwrap();
        Some(sockets)
    }

    fn admin(&self, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        let body = Body::from(format!("admin {}", request.uri().path()));
        Box::pin(std::future::ready(Response::new(body)))
    }
}

pub(crate) struct House {
    pub gateway: Gateway,
    pub public: SocketAddr,
    pub inner: SocketAddr,
    pub(crate) secure: SocketAddr,
    /// PEM, self-signed for `localhost`.
    pub(crate) certificate: String,
    pub rings: mpsc::UnboundedReceiver<FunctionId>,
    pub registry: Registry,
    pub log: Lines,
    trigger: Option<Trigger>,
    serving: Option<Serving>,
}

/// What is unusual about QUIC, on either side of the gateway.
#[derive(Default)]
struct Front {
    caller: Option<watch::Receiver<Caller>>,
    sessions: Option<Arc<dyn StoresServerSessions>>,
    unsteered: bool,
}

impl Front {
    fn open(self, sockets: Vec<UdpSocket>, pair: &Pair) -> Http3 {
        let site = match self.sessions {
            None => Site::new(pair, &Limits::default(), 2).unwrap(),
            Some(sessions) => Site::with_sessions(pair, &Limits::default(), 2, sessions).unwrap(),
        };
        if !self.unsteered {
            nearpath_kernel::reuseport::attach_steering_program(&sockets[0], &site.steering().program()).unwrap();
        }
        Http3::new(site, sockets)
    }
}

/// A port of TCP whose number is free with UDP, too: others use that one for their own.
fn both() -> (Vec<std::net::TcpListener>, Vec<UdpSocket>) {
    let tries = std::iter::repeat_with(|| {
        let sockets = nearpath_wire::bind((Ipv4Addr::LOCALHOST, 0).into(), 2).unwrap();
        let datagrams = nearpath_wire::bind::datagrams(sockets[0].local_addr().unwrap(), 2);
        datagrams.map(|datagrams| (sockets, datagrams))
    });
    tries.take(20).find_map(Result::ok).expect("a port that is free twice")
}

/// What the access log wrote.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    pub(crate) fn all(&self) -> Vec<serde_json::Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl House {
    pub(crate) fn open() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        Self::build(settings, None, Front::default())
    }

    /// With functions that are parties of a security domain.
    pub(crate) fn of_chain(hub: DomainHandle) -> Self {
        Self::build(Settings::default(), Some(hub), Front::default())
    }

    /// With certificates, by which it calls instances that have some.
    pub(crate) fn named(caller: watch::Receiver<Caller>) -> Self {
        Self::build(Settings::default(), None, Front { caller: Some(caller), ..Front::default() })
    }

    /// Whose sessions over HTTP/3 are kept elsewhere.
    pub(crate) fn remembering(settings: Settings, sessions: Option<Arc<dyn StoresServerSessions>>) -> Self {
        Self::build(settings, None, Front { sessions, ..Front::default() })
    }

    /// Whose packets of HTTP/3 go to threads as the kernel likes.
    pub(crate) fn unsteered() -> Self {
        Self::build(Settings::default(), None, Front { unsteered: true, ..Front::default() })
    }

    fn build(settings: Settings, hub: Option<DomainHandle>, mut front: Front) -> Self {
        let (send, rings) = mpsc::unbounded_channel();
        let (registry, log) = (Registry::default(), Lines::default());
        let gateway = Gateway::new(settings, Arc::new(Rings(send, hub)), &registry);
        let gateway = gateway.with_access_log(Box::new(log.clone())).unwrap();
        let gateway = match front.caller.take() {
            Some(caller) => gateway.with_caller(caller),
            None => gateway,
        };
        let bind = || nearpath_wire::bind((Ipv4Addr::LOCALHOST, 0).into(), 2).unwrap();
        let (public, inner, (secure, datagrams)) = (bind(), bind(), both());
        let (certificate, tls, pair) = self_signed();
        let at_secure = secure[0].local_addr().unwrap();
        let http3 = Some(front.open(datagrams, &pair));
        let (at, at_inner) = (public[0].local_addr().unwrap(), inner[0].local_addr().unwrap());
        let listeners = vec![
            Listener { zone: Zone::Public, tls: None, sockets: public, http3: None },
            Listener { zone: Zone::Inner, tls: None, sockets: inner, http3: None },
            Listener { zone: Zone::Public, tls: Some(tls), sockets: secure, http3 },
        ];
        let (trigger, watch) = drain::channel();
        let serving = gateway.serve(listeners, 2, Arc::new(|| Ok(())), watch).unwrap();
        let (trigger, serving) = (Some(trigger), Some(serving));
        let (public, inner, secure) = (at, at_inner, at_secure);
        Self { gateway, public, inner, secure, certificate, rings, registry, log, trigger, serving }
    }

    /// Begins the drain; the value is ready when it is over.
    pub(crate) fn drain(&mut self) -> impl Future<Output = ()> + use<> {
        let (trigger, serving) = (self.trigger.take().unwrap(), self.serving.take().unwrap());
        let begun = tokio::spawn(trigger.drain());
        async move {
            begun.await.unwrap();
            tokio::task::spawn_blocking(|| serving.join()).await.unwrap().unwrap();
        }
    }

    /// Publishes functions whose instances are all ready.
    pub(crate) fn publish(&self, functions: &[(&str, Policy, &[SocketAddr])]) {
        let routes = functions.iter().map(|(name, policy, at)| route(name, policy.clone(), at));
        self.gateway.publish(&Snapshot { version: 1, functions: routes.collect() });
    }

    pub(crate) fn echo(&self, at: SocketAddr) {
        self.publish(&[("echo", Policy::default(), &[at])]);
    }

    pub(crate) fn metrics(&self) -> String {
        self.registry.encode()
    }

    /// One request with a connection of its own.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        ask(self.public, Request::get(path).body(full("")).unwrap()).await
    }
}

fn self_signed() -> (String, Arc<rustls::ServerConfig>, Pair) {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(&cert, pair.cert.pem()).unwrap();
    std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let read = nearpath_wire::tls::read(&cert, &key).unwrap();
    (pair.cert.pem(), nearpath_wire::tls::load(&cert, &key).unwrap(), read)
}

/// A function's entry; an instance's id follows from its address, so that publishing twice means the same instances.
pub(crate) fn route(name: &str, policy: Policy, ready: &[SocketAddr]) -> FunctionRoute {
    FunctionRoute {
        id: name.parse().unwrap(),
        policy: Arc::new(policy),
        replicas: ready.len() as u32,
        instances: ready.iter().map(|at| instance(*at, InstanceState::Ready)).collect(),
        trouble: None,
    }
}

pub(crate) fn instance(at: SocketAddr, state: InstanceState) -> Instance {
    Instance {
        id: InstanceId(u64::from(at.port())),
        addr: InstanceAddr(at),
        locality: Locality::SameNode,
        state,
        quic: None,
        transport: Transport::Auto,
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: String,
    pub trailers: Option<http::HeaderMap>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn reason(&self) -> &str {
        self.header("x-nearpath-reason")
    }
}

pub(crate) async fn ask(at: SocketAddr, request: Request<TestBody>) -> Answer {
    let response = nearpath_testkit::within(send(at, request)).await.unwrap();
    finish(response).await
}

pub(crate) async fn finish(response: Response<Incoming>) -> Answer {
    let (head, body) = response.into_parts();
    let body = nearpath_testkit::within(body.collect()).await.unwrap();
    let trailers = body.trailers().cloned();
    let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
    Answer { status: head.status.as_u16(), headers: head.headers, body, trailers }
}

/// Sends over HTTP/1.1 on a connection of its own and gives the head.
pub(crate) async fn send(at: SocketAddr, mut request: Request<TestBody>) -> hyper::Result<Response<Incoming>> {
    if !request.headers().contains_key("host") {
        request.headers_mut().insert("host", "shop.example".parse().unwrap());
    }
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(TcpStream::connect(at).await.unwrap())).await?;
    tokio::spawn(connection.with_upgrades());
    let response = sender.send_request(request).await?;
    tokio::spawn(async move {
        let _open_until_the_body_ends = sender.ready().await;
    });
    Ok(response)
}

/// An HTTP/2 connection without TLS.
pub(crate) async fn h2(at: SocketAddr) -> hyper::client::conn::http2::SendRequest<TestBody> {
    h2_with_window(at, 65_535).await
}

/// One whose owner takes that many bytes of each answer before it has read them.
pub(crate) async fn h2_with_window(at: SocketAddr, window: u32) -> hyper::client::conn::http2::SendRequest<TestBody> {
    let io = TokioIo::new(TcpStream::connect(at).await.unwrap());
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = builder.initial_stream_window_size(window).handshake(io).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A function's instance: answers each request with `answer`, over HTTP/1.1 or h2c.
pub(crate) async fn instance_at<F, R>(ip: Ipv4Addr, answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Response<TestBody>> + Send + 'static,
{
    let socket = TcpListener::bind((ip, 0)).await.unwrap();
    let at = socket.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let answered = answer(request);
                async { Ok::<_, Infallible>(answered.await) }
            });
            tokio::spawn(async move {
                let _ = auto::Builder::new(TokioExecutor::new())
                    .serve_connection_with_upgrades(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    at
}

pub(crate) async fn serving<F, R>(answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Response<TestBody>> + Send + 'static,
{
    instance_at(Ipv4Addr::LOCALHOST, answer).await
}

/// Answers when it is let go.
pub(crate) async fn held() -> (SocketAddr, Arc<Semaphore>) {
    let go = Arc::new(Semaphore::new(0));
    let gate = go.clone();
    let at = serving(move |_| {
        let gate = gate.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Response::new(full("ok"))
        }
    })
    .await;
    (at, go)
}

/// Answers with what it got: method, target, headers, body.
pub(crate) async fn mirror() -> SocketAddr {
    serving(async |request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        let mut text = format!("{} {}\n", head.method, head.uri);
        for (name, value) in &head.headers {
            text += &format!("{name}: {}\n", value.to_str().unwrap());
        }
        let body = body.collect().await.unwrap().to_bytes();
        text += &format!("\n{}", String::from_utf8_lossy(&body));
        Response::new(full(text))
    })
    .await
}

/// A server that does to each connection what `script` says, and counts them.
pub(crate) async fn scripted<F, R>(script: F) -> (SocketAddr, mpsc::UnboundedReceiver<()>)
where
    F: Fn(TcpStream) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = socket.local_addr().unwrap();
    let (seen, connections) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = socket.accept().await {
            let _ = seen.send(());
            tokio::spawn(script.clone()(stream));
        }
    });
    (at, connections)
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
pub(crate) async fn raw(at: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
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

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
