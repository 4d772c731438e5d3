//! Two machines and a link: on the far one a watchdog with its handler, on the near one the caller.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_ca::Authority;
use nearpath_testkit::lab::{Cable, Counts, Direction, Lab, Link, Node};
use nearpath_testkit::within;
use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::early::{Provision, Sessions, TokenKey, mint};
use nearpath_wire::identity::{Credentials, Request, Trust};
use nearpath_wire::quic::config;
use tokio::task::LocalSet;

use crate::faults::caller::{Caller, endpoint};
use crate::faults::handler::Handler;

const DOMAIN: &str = "test.nearpath";
const NAME: &str = "i1.test.nearpath";
const HOUR: Duration = Duration::from_secs(3600);
const PORT: u16 = 8080;

/// See the module's text.
pub(crate) struct Place {
    pub(crate) caller: Caller,
    pub(crate) handler: Handler,
    pub(crate) near: Node,
    pub(crate) far: Node,
    pub(crate) cable: Cable,
    _node: UnixStream,
    _watchdog: Watchdog,
    _lab: Lab,
}

/// Killed when it is dropped.
struct Watchdog(Child);

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test on one thread, in time.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, within(test));
}

/// Half a millisecond each way, and nothing else.
pub(crate) fn calm() -> Link {
    Link { delay: Duration::from_micros(500), seed: 11, ..Link::default() }
}

impl Place {
    /// The caller has sessions for the worker: two for each of `mints`.
    pub(crate) async fn new(link: &Link, mints: usize) -> Self {
        let mut lab = Lab::new().unwrap();
        let (near, far) = (lab.node("near").unwrap(), lab.node("far").unwrap());
        let cable = lab.link(&near, &far, &calm()).unwrap();
        let authority = Authority::new(DOMAIN, SystemTime::now(), HOUR).unwrap();
        let trust = Trust::new(DOMAIN, &[authority.certificate().clone()]).unwrap();
        let credentials_of_gateway = credentials(&authority, SpiffeId::gateway(DOMAIN, "near"), "gateway");
        let sessions = Arc::new(Sessions::default());
        let config = config::caller(&credentials_of_gateway, &trust, &sessions).unwrap();
        let mut provision = provision(&authority);
        for _ in 0..mints {
            mint::for_worker(&mut provision, config.clone(), cable.first().v4.into()).unwrap();
        }
        let handler = Handler::default();
        let inner = far.enter(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let (watchdog, node) = watchdog(&far, inner.local_addr().unwrap(), &provision);
        handler.serve(inner);
        cable.change(link).unwrap();
        let (endpoint, worker) = (endpoint(&near), (cable.second().v4, PORT).into());
        let (name, next) = (NAME.to_owned(), Cell::new(0));
        let caller = Caller { endpoint, config, sessions, trust, worker, name, next };
        Self { caller, handler, near, far, cable, _node: node, _watchdog: watchdog, _lab: lab }
    }

    /// What became of the packets, both ways together, by one of the counts.
    pub(crate) fn count(&self, what: impl Fn(&Counts) -> u64) -> [u64; 2] {
        [Direction::There, Direction::Back].map(|direction| what(&self.cable.counts(direction)))
    }
}

fn credentials(authority: &Authority, id: SpiffeId, name: &str) -> Credentials {
    let request = Request::new().unwrap();
    let issued = authority.issue(request.csr(), &id, name, SystemTime::now(), HOUR).unwrap();
    request.complete(id, name.to_owned(), issued)
}

fn provision(authority: &Authority) -> Provision {
    let id = SpiffeId::instance(DOMAIN, "callee".parse().unwrap(), InstanceId(1));
    Provision {
        credentials: credentials(authority, id, NAME),
        authorities: vec![authority.certificate().clone()],
        callers: Vec::new(),
        revoked: Vec::new(),
        key: TokenKey([7; 32]),
        entries: Vec::new(),
    }
}

/// On all addresses of that machine; it listens when this returns.
fn watchdog(node: &Node, tenant: SocketAddr, provision: &Provision) -> (Watchdog, UnixStream) {
    let (own, mut writer) = UnixStream::pair().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "exec 4<&0 </dev/null >/dev/null; exec \"$0\"", env!("CARGO_BIN_EXE_nearpath-watchdog")]);
    command.stdin(OwnedFd::from(own)).stdout(Stdio::null()).stderr(Stdio::piped());
    command.envs([("NEARPATH_IDENTITY_FD", "4"), ("mode", "http"), ("fprocess", "sleep 100000")]);
    command.envs([("metrics_port", "0"), ("suppress_lock", "true"), ("healthcheck_interval", "0")]);
    command.env("upstream_url", format!("http://{tenant}")).env("port", PORT.to_string());
    let mut watchdog = Watchdog(node.spawn(&mut command).unwrap());
    drop(command); // it holds the socket's other end
    writer.write_all(&provision.write()).unwrap();
    let mut log = BufReader::new(watchdog.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said: Vec<_> = log.by_ref().take_while(|line| !line.contains("QUIC on")).collect();
    std::thread::spawn(move || log.for_each(|line| eprintln!("watchdog: {line}")));
    assert!(watchdog.0.try_wait().unwrap().is_none(), "the watchdog has ended: {said:?}");
    (watchdog, writer)
}
