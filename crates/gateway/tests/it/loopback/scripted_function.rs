//! A function whose server answers byte by byte what a test tells it.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nearpath_kernel::bpf::LoopbackRedirect;
use nearpath_testkit::within;
use nearpath_types::policy::LoopbackDelivery;
use nearpath_types::{
    FunctionPolicy, FunctionServer, InstanceNetwork, InstanceState, RoutingSnapshot,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{
    TestGateway, full_body, function_route, instance_entry, millis, read_head, start_instance,
};
use crate::tls::connect_tls_to;

/// Network of an instance that is this process's own.
#[derive(Debug, Default)]
pub(super) struct OwnNetwork {
    pub(super) oom_kills: AtomicU64,
    pub(super) sockets: AtomicUsize,
    /// Redirects the bytes of connections; `None`: they go over TCP.
    redirect: Option<LoopbackRedirect>,
}

impl OwnNetwork {
    pub(super) fn new(delivery: LoopbackDelivery) -> Self {
        let redirect = match delivery {
            LoopbackDelivery::Tcp => None,
            LoopbackDelivery::Sockmap => Some(LoopbackRedirect::attach_to_own_group().unwrap()),
        };
        Self {
            redirect,
            ..Self::default()
        }
    }

    /// Returns the number of messages that went over TCP although sockmap was asked for.
    pub(super) fn tcp_messages(&self) -> u64 {
        let counters = self.redirect.as_ref().map(LoopbackRedirect::read_counters);
        counters.unwrap_or_default().over_tcp
    }

    /// Returns the number of redirected messages.
    pub(super) fn redirected_messages(&self) -> u64 {
        let counters = self.redirect.as_ref().map(LoopbackRedirect::read_counters);
        counters.unwrap_or_default().redirected
    }
}

impl InstanceNetwork for OwnNetwork {
    fn open_tcp_socket(&self, _: bool) -> io::Result<OwnedFd> {
        self.sockets.fetch_add(1, Ordering::Relaxed);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        if let Some(redirect) = &self.redirect {
            redirect.mark_socket(&socket)?;
        }
        Ok(socket)
    }

    fn delivery(&self) -> LoopbackDelivery {
        match self.redirect {
            None => LoopbackDelivery::Tcp,
            Some(_) => LoopbackDelivery::Sockmap,
        }
    }

    fn oom_kills(&self) -> Option<u64> {
        Some(self.oom_kills.load(Ordering::Relaxed))
    }
}

/// How a request comes, and goes on to the function's server.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    connection: CallerConnection,
    delivery: LoopbackDelivery,
    has_tls: bool,
}

impl Caller {
    pub(super) const NEW: Self = Self::with_connection(CallerConnection::New);
    pub(super) const LATER: Self = Self::with_connection(CallerConnection::Later);
    pub(super) const KEPT: Self = Self::with_connection(CallerConnection::Kept);

    const fn with_connection(connection: CallerConnection) -> Self {
        Self {
            connection,
            delivery: LoopbackDelivery::Tcp,
            has_tls: false,
        }
    }

    /// Returns the caller over TLS.
    pub(super) fn with_tls(self) -> Self {
        Self {
            has_tls: true,
            ..self
        }
    }

    /// Returns the caller on a connection that is kept.
    pub(super) fn kept(self) -> Self {
        Self {
            connection: CallerConnection::Kept,
            ..self
        }
    }

    /// Returns the caller with another delivery between gateway and server.
    pub(super) fn with_delivery(self, delivery: LoopbackDelivery) -> Self {
        Self { delivery, ..self }
    }
}

/// Connection on which a request comes.
#[derive(Clone, Copy)]
enum CallerConnection {
    /// A new one: its task answers.
    New,
    /// A new one, when the function's server has an idle connection: the event loop answers, if the
    /// request is there.
    Later,
    /// One that has had a response from the function's own port: the event loop answers.
    Kept,
}

pub(super) const REQUEST: &str = "GET /function/echo/x HTTP/1.1\r\nhost: a\r\n\r\n";
pub(super) const WHOLE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Path of requests that only open connections. The server answers them by itself.
pub(super) const WARM_UP_PATH: &str = "/warm-up";

/// A function whose server is scripted, and whose route names that server.
pub(super) struct ScriptedFunction {
    pub(super) caller: Caller,
    pub(super) fixture: TestGateway,
    pub(super) network: Arc<OwnNetwork>,
    /// Heads and bodies that the server got.
    pub(super) requests: Arc<Mutex<Vec<String>>>,
}

/// Answer of the server: the bytes, and whether it closes then.
pub(super) type Script = (&'static str, bool);

impl ScriptedFunction {
    /// Starts a function whose server answers each request with the next script.
    pub(super) async fn start(caller: Caller, scripts: &[Script]) -> Self {
        Self::start_with(caller, scripts, None, FunctionPolicy::default()).await
    }

    pub(super) async fn start_with(
        caller: Caller,
        scripts: &[Script],
        exec_timeout: Option<Duration>,
        policy: FunctionPolicy,
    ) -> Self {
        Self::start_on(TestGateway::start(), caller, scripts, exec_timeout, policy).await
    }

    pub(super) async fn start_on(
        mut fixture: TestGateway,
        caller: Caller,
        scripts: &[Script],
        exec_timeout: Option<Duration>,
        policy: FunctionPolicy,
    ) -> Self {
        if caller.has_tls {
            fixture.public = start_tls_client(&fixture).await;
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let requests = Arc::default();
        tokio::spawn(serve_scripts(
            listener,
            scripts.to_vec(),
            Arc::clone(&requests),
        ));
        let watchdog = start_instance(async |_| http::Response::new(full_body("watchdog"))).await;
        let network = Arc::new(OwnNetwork::new(caller.delivery));
        let server = Arc::new(FunctionServer {
            addr,
            base_path: String::new(),
            exec_timeout,
            network: network.clone(),
        });
        publish(&fixture, watchdog, &server, policy);
        Self {
            caller,
            fixture,
            network,
            requests,
        }
    }

    /// Returns the server as if it listened at another address.
    pub(super) fn listen_at(&self, addr: SocketAddr) -> Arc<FunctionServer> {
        Arc::new(FunctionServer {
            addr,
            base_path: String::new(),
            exec_timeout: None,
            network: self.network.clone(),
        })
    }

    /// Publishes a server at another address as the function's own. Its watchdog does not answer.
    pub(super) fn publish_server_at(&self, addr: SocketAddr) {
        let watchdog = (Ipv4Addr::LOCALHOST, 1).into();
        let policy = FunctionPolicy::default();
        publish(&self.fixture, watchdog, &self.listen_at(addr), policy);
    }

    /// Opens a connection for a request.
    pub(super) async fn connect(&self) -> TcpStream {
        self.connect_and_write("").await
    }

    /// Opens a connection for a request, of which the first bytes follow at once.
    pub(super) async fn connect_and_write(&self, bytes: &str) -> TcpStream {
        let warmed_up = match self.caller.connection {
            CallerConnection::New => None,
            CallerConnection::Later | CallerConnection::Kept => Some(self.warm_up().await),
        };
        let mut stream = match (self.caller.connection, warmed_up) {
            (CallerConnection::Kept, Some(kept)) => kept,
            _ => std::net::TcpStream::connect(self.fixture.public).unwrap(),
        };
        let _ = stream.write_all(bytes.as_bytes()); // an early answer may close
        stream.set_nonblocking(true).unwrap();
        TcpStream::from_std(stream).unwrap()
    }

    /// Returns a connection that has had a response of the server.
    pub(super) async fn warm_up(&self) -> std::net::TcpStream {
        let mut stream = TcpStream::connect(self.fixture.public).await.unwrap();
        let request = format!("GET /function/echo{WARM_UP_PATH} HTTP/1.1\r\nhost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        within(read_head(&mut stream)).await;
        if self.network.delivery() == LoopbackDelivery::Sockmap {
            assert!(self.network.redirected_messages() > 0);
        }
        let stream = stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    }

    pub(super) async fn send(&self, request: &str) -> String {
        let mut stream = self.connect_and_write(request).await;
        let mut answer = String::new();
        within(stream.read_to_string(&mut answer)).await.unwrap();
        answer
    }

    pub(super) async fn get(&self) -> String {
        let text = "GET /function/echo/x?y HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        self.send(text).await
    }

    pub(super) fn request(&self, number: usize) -> String {
        self.requests.lock().unwrap()[number].clone()
    }

    /// Waits for the first line of the access log, which is written behind the response.
    pub(super) async fn first_record(&self) -> serde_json::Value {
        let first = async || {
            loop {
                let is_asked = |line: &serde_json::Value| {
                    !line["path"].as_str().unwrap().ends_with(WARM_UP_PATH)
                };
                let mut lines = self.fixture.log.parse_lines().into_iter();
                if let Some(line) = lines.find(is_asked) {
                    return line;
                }
                tokio::time::sleep(millis(5)).await;
            }
        };
        within(first()).await
    }

    pub(super) fn socket_count(&self) -> usize {
        self.network.sockets.load(Ordering::Relaxed)
    }
}

/// Starts a client that passes the bytes of each connection on over TLS. Returns its address.
async fn start_tls_client(fixture: &TestGateway) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (secure, certificate) = (fixture.secure, fixture.certificate.clone());
    tokio::spawn(async move {
        while let Ok((mut plain, _)) = listener.accept().await {
            let mut encrypted = connect_tls_to(secure, &certificate, b"http/1.1").await;
            tokio::spawn(async move {
                // Ends with either side; a reset of one is a close of the other.
                let _ = tokio::io::copy_bidirectional(&mut plain, &mut encrypted).await;
            });
        }
    });
    addr
}

pub(super) fn publish(
    fixture: &TestGateway,
    watchdog: SocketAddr,
    server: &Arc<FunctionServer>,
    policy: FunctionPolicy,
) {
    let mut route = function_route("echo", policy, &[]);
    let mut instance = instance_entry(watchdog, InstanceState::Ready);
    instance.server = Some(server.clone());
    (route.instances, route.replicas) = (vec![instance], 1);
    fixture.gateway.publish(&RoutingSnapshot {
        version: 1,
        nodes: Default::default(),
        functions: [route].into_iter().collect(),
    });
}

/// Serves one connection at a time, as a simple server does.
pub(super) async fn serve_scripts(
    listener: TcpListener,
    scripts: Vec<Script>,
    requests: Arc<Mutex<Vec<String>>>,
) {
    let mut scripts = scripts.into_iter();
    while let Ok((mut stream, _)) = listener.accept().await {
        while let Some(request) = read_request(&mut stream).await {
            if request.starts_with(&format!("GET {WARM_UP_PATH} ")) {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
                continue;
            }
            requests.lock().unwrap().push(request);
            let Some((bytes, closes)) = scripts.next() else {
                return std::future::pending().await;
            };
            let _ = stream.write_all(bytes.as_bytes()).await;
            if closes {
                break;
            }
        }
    }
}

/// Reads a response whose body has this length.
pub(super) async fn read_response(stream: &mut TcpStream, length: usize) -> (String, String) {
    let head = within(read_head(stream)).await;
    let mut body = vec![0; length];
    within(stream.read_exact(&mut body)).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}

pub(super) async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(char::from(stream.read_u8().await.ok()?));
    }
    let length = head.split("content-length: ").nth(1);
    let length = length.map_or(0, |rest| {
        rest.split("\r\n").next().unwrap().parse().unwrap()
    });
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(head + std::str::from_utf8(&body).unwrap())
}

/// Returns how many calls event loops have answered.
pub(super) fn inline_calls(function: &ScriptedFunction) -> u64 {
    let metrics = function.fixture.encode_metrics();
    let name = "nearpath_inline_calls_total ";
    let mut counts = metrics.lines().filter_map(|line| line.strip_prefix(name));
    counts.next().unwrap().parse().unwrap()
}

pub(super) fn body_of(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}
