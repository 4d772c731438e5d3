//! Calls over QUIC: the watchdog is told who it is by a node inside the test.

use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_testkit::within;
use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::early::{Provision, Register, Sessions, TokenKey, mint};
use nearpath_wire::identity::authority::Authority;
use nearpath_wire::identity::{Credentials, Request as KeyRequest, Trust};
use nearpath_wire::quic::{Dialer, Early, Line, config};
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::task::LocalSet;

use crate::support::{Watchdog, full, program, tenant};

pub(crate) const DOMAIN: &str = "test.nearpath";
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// The node's side: who the instance is, and a gateway that may call it.
struct Node {
    provision: Provision,
    gateway: quinn::ClientConfig,
    trust: Trust,
}

pub(crate) fn credentials(authority: &Authority, id: SpiffeId, name: &str) -> Credentials {
    let (request, now) = (KeyRequest::new().unwrap(), SystemTime::now());
    let issued = authority.issue(request.csr(), &id, name, now, HOUR).unwrap();
    request.complete(id, name.to_owned(), issued)
}

impl Node {
    fn new() -> Self {
        let authority = Authority::new(DOMAIN, SystemTime::now(), HOUR).unwrap();
        let trust = Trust::new(DOMAIN, &[authority.certificate().clone()]).unwrap();
        let id = SpiffeId::instance(DOMAIN, "callee".parse().unwrap(), InstanceId(1));
        let credentials_of_gateway = credentials(&authority, SpiffeId::gateway(DOMAIN, "node-a"), "gateway");
        let gateway = config::caller(&credentials_of_gateway, &trust, &Arc::new(Sessions::default())).unwrap();
        let mut provision = Provision {
            credentials: credentials(&authority, id, "i1.test.nearpath"),
            authorities: vec![authority.certificate().clone()],
            callers: Vec::new(),
            revoked: Vec::new(),
            key: TokenKey([7; 32]),
            entries: Vec::new(),
        };
        let register = Arc::new(Register::new(None));
        let worker = config::worker(&provision.credentials, &trust, register.clone(), &provision.key).unwrap();
        let nowhere = (Ipv4Addr::LOCALHOST, 9).into();
        mint::mint(gateway.clone(), Arc::new(worker), "i1.test.nearpath", (nowhere, nowhere)).unwrap();
        provision.entries = register.drain();
        Self { provision, gateway, trust }
    }

    async fn dial(&self, watchdog: &Watchdog) -> Line {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime)).unwrap();
        let dialer = Dialer::new(endpoint, self.gateway.clone(), self.trust.clone());
        dialer.dial(watchdog.addr, "i1.test.nearpath", HOUR).await.unwrap()
    }
}

/// A watchdog in front of `tenant`, with a socket to its node.
fn watchdog(tenant: std::net::SocketAddr, first: &[u8]) -> (Watchdog, UnixStream) {
    let url = format!("http://{tenant}");
    start(&[("mode", "http"), ("fprocess", "sleep 1000"), ("upstream_url", &url)], first)
}

/// A watchdog with these variables, and its node's end of the socket.
pub(crate) fn start(variables: &[(&str, &str)], first: &[u8]) -> (Watchdog, UnixStream) {
    let (mut node, socket) = UnixStream::pair().unwrap();
    node.write_all(first).unwrap();
    let watchdog = Watchdog::run(|temp| command(temp, variables, socket));
    (watchdog, node)
}

/// The socket comes as standard input, and goes where a node would have put it.
fn command(temp: &TempDir, variables: &[(&str, &str)], socket: UnixStream) -> Command {
    let command = crate::support::command(temp, variables);
    let script = "exec \"$0\" 3>\"$TMPDIR/notes\" 4<&0 </dev/null";
    let mut with_socket = Command::new("sh");
    with_socket.args(["-c", script, program()]).env_clear().env("NEARPATH_IDENTITY_FD", "4");
    with_socket.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    with_socket.stdin(std::process::Stdio::from(OwnedFd::from(socket)));
    with_socket.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    with_socket
}

async fn echo(request: Request<Incoming>) -> Response<http_body_util::Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Response::builder().header("x-path", path).body(http_body_util::Full::new(body)).unwrap()
}

fn post(body: &'static str) -> Request<Bytes> {
    Request::post("/path").body(Bytes::from_static(body.as_bytes())).unwrap()
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, within(test));
}

#[test]
fn the_first_flight_reaches_code_that_knows_only_http() {
    run(async {
        let node = Node::new();
        let (watchdog, _pipe) = watchdog(tenant(echo).await, &node.provision.write());
        watchdog.stderr.find("QUIC");
        let line = node.dial(&watchdog).await;
        assert!(line.is_early());
        let answer = line.call_whole(post("over QUIC"), Early::Allowed).await.unwrap();
        assert_eq!((answer.status().as_u16(), &answer.headers()["x-path"]), (200, &"/path".parse().unwrap()));
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "over QUIC");
    });
}

#[test]
fn a_call_that_is_under_way_ends_before_the_instance() {
    run(async {
        let node = Node::new();
        let (reached, mut reaching) = tokio::sync::mpsc::unbounded_channel();
        let go = Arc::new(tokio::sync::Notify::new());
        let wait = Arc::clone(&go);
        let slow = move |_| {
            let (reached, wait) = (reached.clone(), Arc::clone(&wait));
            async move {
                reached.send(()).unwrap();
                wait.notified().await;
                Response::new(full("at last"))
            }
        };
        let (mut watchdog, _pipe) = watchdog(tenant(slow).await, &node.provision.write());
        watchdog.stderr.find("QUIC");
        let line = node.dial(&watchdog).await;
        let calling = line.clone();
        let call = tokio::task::spawn_local(async move { calling.call_whole(post(""), Early::Allowed).await });
        reaching.recv().await.unwrap();
        watchdog.signal(Signal::TERM);
        go.notify_one();
        let answer = call.await.unwrap().unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "at last");
        assert!(watchdog.ended().await.success());
    });
}

#[test]
fn what_is_no_provision_leaves_http_as_it_was() {
    run(async {
        let (watchdog, _pipe) = watchdog(tenant(echo).await, &[3, 0, 0, 0, 9, 9, 9]);
        let told = watchdog.stderr.find("QUIC");
        assert!(told.contains("kind 9"), "{told}");
        assert_eq!(watchdog.post("/", "still").await, (200, "still".to_owned()));
    });
}
