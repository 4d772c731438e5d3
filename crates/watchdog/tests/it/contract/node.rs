//! The node's side of an instance's identity, and a gateway that calls it.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_testkit::within;
use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::early::{Provision, Register, Sessions, TokenKey, mint};
use nearpath_wire::identity::{Credentials, Request as KeyRequest, Trust};
use nearpath_wire::mutual::Connector;
use nearpath_wire::quic::{DialError, Dialer, Line, config};
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use tempfile::TempDir;
use tokio::task::LocalSet;

use crate::contract::support::{Watchdog, program};

pub(crate) const DOMAIN: &str = "test.nearpath";
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// What the instance is called.
pub(crate) const NAME: &str = "i1.test.nearpath";

/// The node's side: who the instance is, and a gateway that may call it.
pub(crate) struct Node {
    pub(crate) provision: Provision,
    authority: Authority,
    gateway: Credentials,
    quic: quinn::ClientConfig,
    pub(crate) trust: Trust,
}

pub(crate) fn credentials(authority: &Authority, id: SpiffeId, name: &str) -> Credentials {
    credentials_for(authority, id, name, HOUR)
}

pub(crate) fn credentials_for(authority: &Authority, id: SpiffeId, name: &str, lifetime: Duration) -> Credentials {
    let (request, now) = (KeyRequest::new().unwrap(), SystemTime::now());
    let issued = authority.issue(request.csr(), &id, name, now, lifetime).unwrap();
    request.complete(id, name.to_owned(), issued)
}

impl Node {
    pub(crate) fn new() -> Self {
        let authority = Authority::new(DOMAIN, SystemTime::now(), HOUR).unwrap();
        let trust = Trust::new(DOMAIN, &[authority.certificate().clone()]).unwrap();
        let id = SpiffeId::instance(DOMAIN, "callee".parse().unwrap(), InstanceId(1));
        let gateway = credentials(&authority, SpiffeId::gateway(DOMAIN, "node-a"), "gateway");
        let quic = config::caller(&gateway, &trust, &Arc::new(Sessions::default())).unwrap();
        let mut provision = Provision {
            credentials: credentials(&authority, id, NAME),
            authorities: vec![authority.certificate().clone()],
            callers: Vec::new(),
            revoked: Vec::new(),
            key: TokenKey([7; 32]),
            entries: Vec::new(),
        };
        let register = Arc::new(Register::new(None));
        let worker = config::worker(&provision.credentials, &trust, register.clone(), &provision.key).unwrap();
        let nowhere = (Ipv4Addr::LOCALHOST, 9).into();
        mint::mint(quic.clone(), Arc::new(worker), NAME, (nowhere, nowhere)).unwrap();
        provision.entries = register.drain();
        Self { provision, authority, gateway, quic, trust }
    }

    pub(crate) async fn dial(&self, watchdog: &Watchdog) -> Line {
        self.dial_with(&self.quic, watchdog).await.unwrap()
    }

    /// As a gateway that another authority vouches for.
    pub(crate) async fn dial_as_unknown(&self, watchdog: &Watchdog) -> Result<Line, DialError> {
        let other = Authority::new(DOMAIN, SystemTime::now(), HOUR).unwrap();
        let unknown = credentials(&other, SpiffeId::gateway(DOMAIN, "node-a"), "gateway");
        let config = config::caller(&unknown, &self.trust, &Arc::new(Sessions::default())).unwrap();
        self.dial_with(&config, watchdog).await
    }

    async fn dial_with(&self, config: &quinn::ClientConfig, watchdog: &Watchdog) -> Result<Line, DialError> {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime)).unwrap();
        let dialer = Dialer::new(endpoint, config.clone(), self.trust.clone());
        dialer.dial(watchdog.addr, NAME, HOUR).await
    }

    /// The gateway, with no sessions yet.
    pub(crate) fn connector(&self) -> Connector {
        Connector::new(&self.gateway, &self.trust, &Arc::default()).unwrap()
    }

    /// The gateway, for so long.
    pub(crate) fn connector_for(&self, lifetime: Duration) -> Connector {
        let gateway = credentials_for(&self.authority, SpiffeId::gateway(DOMAIN, "node-a"), "gateway", lifetime);
        Connector::new(&gateway, &self.trust, &Arc::default()).unwrap()
    }

    /// An instance of another function, which this authority knows.
    pub(crate) fn stranger(&self) -> Connector {
        let id = SpiffeId::instance(DOMAIN, "stranger".parse().unwrap(), InstanceId(8));
        Connector::new(&credentials(&self.authority, id, "i8"), &self.trust, &Arc::default()).unwrap()
    }
}

/// A watchdog in front of `tenant`, with a socket to its node.
pub(crate) fn watchdog(tenant: SocketAddr, first: &[u8], more: &[(&str, &str)]) -> (Watchdog, UnixStream) {
    let url = format!("http://{tenant}");
    let base = [("mode", "http"), ("fprocess", "sleep 1000"), ("upstream_url", url.as_str())];
    start(&[&base, more].concat(), first)
}

/// A watchdog with these variables, and its node's end of the socket.
pub(crate) fn start(variables: &[(&str, &str)], first: &[u8]) -> (Watchdog, UnixStream) {
    let (mut node, socket) = UnixStream::pair().unwrap();
    node.write_all(first).unwrap();
    let watchdog = Watchdog::run(|temp| command(temp, variables, socket));
    (watchdog, node)
}

/// The same, once it serves QUIC: a port that is free over TCP may be somebody else's over UDP, who then keeps it.
pub(crate) fn listening(variables: &[(&str, &str)], first: &[u8]) -> (Watchdog, UnixStream) {
    let tries = std::iter::repeat_with(|| start(variables, first)).take(5);
    let mut good = tries.filter(|(watchdog, _)| watchdog.stderr.find(" as spiffe://").contains("QUIC on"));
    good.next().expect("a port that is free twice")
}

/// The socket comes as standard input, and goes where a node would have put it.
fn command(temp: &TempDir, variables: &[(&str, &str)], socket: UnixStream) -> Command {
    let plain = crate::contract::support::command(temp, variables);
    let script = "exec \"$0\" 3>\"$TMPDIR/notes\" 4<&0 </dev/null";
    let mut command = Command::new("sh");
    command.args(["-c", script, program()]).env_clear().env("NEARPATH_IDENTITY_FD", "4");
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(OwnedFd::from(socket)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a test on one thread.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, within(test));
}
