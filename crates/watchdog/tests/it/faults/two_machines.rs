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
use nearpath_testkit::lab::{
    LabLink, LabNode, LinkConditions, LinkCounts, LinkDirection, NetworkLab,
};
use nearpath_testkit::within;
use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::identity::{CertificateRequest, Credentials, Trust};
use nearpath_wire::quic::config;
use nearpath_wire::zero_rtt::{CallerSessions, Provision, TokenKey, mint};
use tokio::task::LocalSet;

use crate::faults::caller::{FaultCaller, new_endpoint};
use crate::faults::handler::CountingHandler;

const TRUST_DOMAIN: &str = "test.nearpath";
const INSTANCE_NAME: &str = "i1.test.nearpath";
const HOUR: Duration = Duration::from_secs(3600);
const PORT: u16 = 8080;

/// Two machines with a link between them: a caller on one, a watchdog on the other.
pub(crate) struct TwoMachines {
    pub(crate) caller: FaultCaller,
    pub(crate) handler: CountingHandler,
    pub(crate) caller_node: LabNode,
    pub(crate) worker_node: LabNode,
    pub(crate) link: LabLink,
    _node: UnixStream,
    _watchdog: KilledOnDrop,
    _lab: NetworkLab,
}

/// Killed when it is dropped.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test on one thread, in time.
pub(crate) fn run_on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, within(test));
}

/// Half a millisecond each way, and nothing else.
pub(crate) fn calm_link() -> LinkConditions {
    LinkConditions {
        delay: Duration::from_micros(500),
        seed: 11,
        ..LinkConditions::default()
    }
}

impl TwoMachines {
    /// The caller has sessions for the worker: two for each of `mints`.
    pub(crate) async fn new(link: &LinkConditions, mints: usize) -> Self {
        let mut lab = NetworkLab::new().unwrap();
        let (caller_node, worker_node) =
            (lab.add_node("near").unwrap(), lab.add_node("far").unwrap());
        let lab_link = lab
            .connect_nodes(&caller_node, &worker_node, &calm_link())
            .unwrap();
        let authority = Authority::new(TRUST_DOMAIN, SystemTime::now(), HOUR).unwrap();
        let trust = Trust::new(TRUST_DOMAIN, &[authority.certificate().clone()]).unwrap();
        let credentials_of_gateway = issue_credentials(
            &authority,
            SpiffeId::for_gateway(TRUST_DOMAIN, "near"),
            "gateway",
        );
        let sessions = Arc::new(CallerSessions::default());
        let config = config::caller_config(&credentials_of_gateway, &trust, &sessions).unwrap();
        let mut provision = new_provision(&authority);
        for _ in 0..mints {
            mint::mint_for_worker(
                &mut provision,
                config.clone(),
                lab_link.first_end().v4.into(),
            )
            .unwrap();
        }
        let handler = CountingHandler::default();
        let inner = worker_node
            .enter(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .unwrap();
        let (watchdog, node) =
            start_watchdog(&worker_node, inner.local_addr().unwrap(), &provision);
        handler.serve(inner);
        lab_link.set_conditions(link).unwrap();
        let (endpoint, worker) = (
            new_endpoint(&caller_node),
            (lab_link.second_end().v4, PORT).into(),
        );
        let (name, next) = (INSTANCE_NAME.to_owned(), Cell::new(0));
        let caller = FaultCaller {
            endpoint,
            config,
            sessions,
            trust,
            worker,
            name,
            next_number: next,
        };
        Self {
            caller,
            handler,
            caller_node,
            worker_node,
            link: lab_link,
            _node: node,
            _watchdog: watchdog,
            _lab: lab,
        }
    }

    /// Returns one of the packet counts, for both directions.
    pub(crate) fn link_counts(&self, what: impl Fn(&LinkCounts) -> u64) -> [u64; 2] {
        [LinkDirection::Forward, LinkDirection::Backward]
            .map(|direction| what(&self.link.packet_counts(direction)))
    }
}

fn issue_credentials(authority: &Authority, id: SpiffeId, name: &str) -> Credentials {
    let request = CertificateRequest::new().unwrap();
    let issued = authority
        .issue(request.csr(), &id, name, SystemTime::now(), HOUR)
        .unwrap();
    request.into_credentials(id, name.to_owned(), issued)
}

fn new_provision(authority: &Authority) -> Provision {
    let id = SpiffeId::for_instance(TRUST_DOMAIN, "callee".parse().unwrap(), InstanceId(1));
    Provision {
        credentials: issue_credentials(authority, id, INSTANCE_NAME),
        authorities: vec![authority.certificate().clone()],
        callers: Vec::new(),
        revoked: Vec::new(),
        foreign: Vec::new(),
        token_key: TokenKey([7; 32]),
        sessions: Vec::new(),
    }
}

/// On all addresses of that machine; it listens when this returns.
fn start_watchdog(
    node: &LabNode,
    tenant: SocketAddr,
    provision: &Provision,
) -> (KilledOnDrop, UnixStream) {
    let (own, mut writer) = UnixStream::pair().unwrap();
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "exec 4<&0 </dev/null >/dev/null; exec \"$0\"",
        env!("CARGO_BIN_EXE_nearpath-watchdog"),
    ]);
    command
        .stdin(OwnedFd::from(own))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.envs([
        ("NEARPATH_IDENTITY_FD", "4"),
        ("mode", "http"),
        ("fprocess", "sleep 100000"),
    ]);
    command.envs([
        ("metrics_port", "0"),
        ("suppress_lock", "true"),
        ("healthcheck_interval", "0"),
    ]);
    command
        .env("upstream_url", format!("http://{tenant}"))
        .env("port", PORT.to_string());
    let mut watchdog = KilledOnDrop(node.spawn(&mut command).unwrap());
    drop(command); // it holds the socket's other end
    writer.write_all(&provision.encode()).unwrap();
    let mut lines = BufReader::new(watchdog.0.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let log: Vec<_> = lines
        .by_ref()
        .take_while(|line| !line.contains("QUIC on"))
        .collect();
    std::thread::spawn(move || lines.for_each(|line| eprintln!("watchdog: {line}")));
    assert!(
        watchdog.0.try_wait().unwrap().is_none(),
        "the watchdog has ended: {log:?}"
    );
    (watchdog, writer)
}
