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
use nearpath_wire::identity::{CertificateRequest as KeyRequest, Credentials, Trust};
use nearpath_wire::mtls::MtlsConnector;
use nearpath_wire::quic::{CallerConnection, Dialer, QuicDialError, config};
use nearpath_wire::zero_rtt::{CallerSessions, Provision, TokenKey, WorkerSessions, mint};
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use tempfile::TempDir;
use tokio::task::LocalSet;

use crate::contract::support::{WatchdogProcess, program_path};

pub(crate) const TRUST_DOMAIN: &str = "test.nearpath";
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Name of the incarnation.
pub(crate) const INSTANCE_NAME: &str = "i1.test.nearpath";

/// The node's side: who the instance is, and a gateway that may call it.
pub(crate) struct IdentityFixture {
    pub(crate) provision: Provision,
    authority: Authority,
    gateway: Credentials,
    quic: quinn::ClientConfig,
    pub(crate) trust: Trust,
}

pub(crate) fn issue_credentials(authority: &Authority, id: SpiffeId, name: &str) -> Credentials {
    issue_credentials_for(authority, id, name, HOUR)
}

pub(crate) fn issue_credentials_for(
    authority: &Authority,
    id: SpiffeId,
    name: &str,
    lifetime: Duration,
) -> Credentials {
    let (request, now) = (KeyRequest::new().unwrap(), SystemTime::now());
    let issued = authority
        .issue(request.csr(), &id, name, now, lifetime)
        .unwrap();
    request.into_credentials(id, name.to_owned(), issued)
}

impl IdentityFixture {
    pub(crate) fn new() -> Self {
        let authority = Authority::new(TRUST_DOMAIN, SystemTime::now(), HOUR).unwrap();
        let trust = Trust::new(TRUST_DOMAIN, &[authority.certificate().clone()]).unwrap();
        let id = SpiffeId::for_instance(TRUST_DOMAIN, "callee".parse().unwrap(), InstanceId(1));
        let gateway = issue_credentials(
            &authority,
            SpiffeId::for_gateway(TRUST_DOMAIN, "node-a"),
            "gateway",
        );
        let quic =
            config::caller_config(&gateway, &trust, &Arc::new(CallerSessions::default())).unwrap();
        let mut provision = Provision {
            credentials: issue_credentials(&authority, id, INSTANCE_NAME),
            authorities: vec![authority.certificate().clone()],
            callers: Vec::new(),
            revoked: Vec::new(),
            foreign: Vec::new(),
            token_key: TokenKey([7; 32]),
            sessions: Vec::new(),
        };
        let register = Arc::new(WorkerSessions::new(None));
        let worker = config::worker_config(
            &provision.credentials,
            &trust,
            register.clone(),
            &provision.token_key,
        )
        .unwrap();
        let nowhere = (Ipv4Addr::LOCALHOST, 9).into();
        mint::mint_session(
            quic.clone(),
            Arc::new(worker),
            INSTANCE_NAME,
            (nowhere, nowhere),
        )
        .unwrap();
        provision.sessions = register.drain_entries();
        Self {
            provision,
            authority,
            gateway,
            quic,
            trust,
        }
    }

    pub(crate) async fn dial(&self, watchdog: &WatchdogProcess) -> CallerConnection {
        self.dial_with(&self.quic, watchdog).await.unwrap()
    }

    /// As a gateway that another authority vouches for.
    pub(crate) async fn dial_as_unknown(
        &self,
        watchdog: &WatchdogProcess,
    ) -> Result<CallerConnection, QuicDialError> {
        let other = Authority::new(TRUST_DOMAIN, SystemTime::now(), HOUR).unwrap();
        let unknown = issue_credentials(
            &other,
            SpiffeId::for_gateway(TRUST_DOMAIN, "node-a"),
            "gateway",
        );
        let config =
            config::caller_config(&unknown, &self.trust, &Arc::new(CallerSessions::default()))
                .unwrap();
        self.dial_with(&config, watchdog).await
    }

    async fn dial_with(
        &self,
        config: &quinn::ClientConfig,
        watchdog: &WatchdogProcess,
    ) -> Result<CallerConnection, QuicDialError> {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = Endpoint::new(
            EndpointConfig::default(),
            None,
            socket,
            Arc::new(TokioRuntime),
        )
        .unwrap();
        let dialer = Dialer::new(endpoint, config.clone(), self.trust.clone());
        dialer.dial_worker(watchdog.addr, INSTANCE_NAME, HOUR).await
    }

    /// The gateway, with no sessions yet.
    pub(crate) fn connector(&self) -> MtlsConnector {
        MtlsConnector::new(&self.gateway, &self.trust, &Arc::default()).unwrap()
    }

    /// The gateway, for so long.
    pub(crate) fn connector_for(&self, lifetime: Duration) -> MtlsConnector {
        let gateway = issue_credentials_for(
            &self.authority,
            SpiffeId::for_gateway(TRUST_DOMAIN, "node-a"),
            "gateway",
            lifetime,
        );
        MtlsConnector::new(&gateway, &self.trust, &Arc::default()).unwrap()
    }

    /// An instance of another function, which this authority knows.
    pub(crate) fn unauthorized_connector(&self) -> MtlsConnector {
        let id = SpiffeId::for_instance(TRUST_DOMAIN, "stranger".parse().unwrap(), InstanceId(8));
        MtlsConnector::new(
            &issue_credentials(&self.authority, id, "i8"),
            &self.trust,
            &Arc::default(),
        )
        .unwrap()
    }
}

/// A watchdog in front of `tenant`, with a socket to its node.
pub(crate) fn start_with_identity(
    tenant: SocketAddr,
    first: &[u8],
    more: &[(&str, &str)],
) -> (WatchdogProcess, UnixStream) {
    let url = format!("http://{tenant}");
    let base = [
        ("mode", "http"),
        ("fprocess", "sleep 1000"),
        ("upstream_url", url.as_str()),
    ];
    start_with_node(&[&base, more].concat(), first)
}

/// A watchdog with these variables, and its node's end of the socket.
pub(crate) fn start_with_node(
    variables: &[(&str, &str)],
    first: &[u8],
) -> (WatchdogProcess, UnixStream) {
    let (mut node, socket) = UnixStream::pair().unwrap();
    node.write_all(first).unwrap();
    let watchdog = WatchdogProcess::spawn(|temp| command_with_socket(temp, variables, socket));
    (watchdog, node)
}

/// Starts a watchdog that serves QUIC: a port that is free over TCP may be taken over UDP, so
/// several are tried.
pub(crate) fn start_serving_quic(
    variables: &[(&str, &str)],
    first: &[u8],
) -> (WatchdogProcess, UnixStream) {
    let tries = std::iter::repeat_with(|| start_with_node(variables, first)).take(5);
    let mut good = tries.filter(|(watchdog, _)| {
        watchdog
            .stderr
            .wait_for(" as spiffe://")
            .contains("QUIC on")
    });
    good.next().expect("a port that is free twice")
}

/// The socket comes as standard input, and goes where a node would have put it.
fn command_with_socket(temp: &TempDir, variables: &[(&str, &str)], socket: UnixStream) -> Command {
    let plain = crate::contract::support::watchdog_command(temp, variables);
    let script = "exec \"$0\" 3>\"$TMPDIR/notes\" 4<&0 </dev/null";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, program_path()])
        .env_clear()
        .env("NEARPATH_IDENTITY_FD", "4");
    command.envs(
        plain
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    command
        .stdin(OwnedFd::from(socket))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a test on one thread.
pub(crate) fn run_on_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, within(test));
}
