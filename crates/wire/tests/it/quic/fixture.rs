//! A small installation: one authority, workers and callers.

use std::cell::Cell;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use nearpath_ca::Authority;
use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::identity::{CertificateRequest, Credentials, Trust};
use nearpath_wire::quic::{
    CallServer, CallerConnection, Dialer, MAX_CONNECTIONS, RefusalStats, ServedCall, config,
};
use nearpath_wire::zero_rtt::{CallerSessions, SessionEntry, TokenKey, WorkerSessions, mint};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use tokio::sync::watch;
use tokio::task::LocalSet;

pub(crate) const DOMAIN: &str = "test.nearpath";
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3600);
const TEST_TOKEN_KEY: TokenKey = TokenKey([7; 32]);

/// Runs a test on one thread, with a time limit.
pub(crate) fn run(test: impl Future<Output = ()>) {
    run_for(LIMIT, test);
}

/// Runs a test with a longer time limit.
pub(crate) fn run_for(limit: Duration, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let limited = async {
        tokio::time::timeout(limit, test)
            .await
            .expect("the test has not ended in time")
    };
    LocalSet::new().block_on(&runtime, limited);
}

pub(crate) struct QuicFixture {
    pub(crate) authority: Authority,
    pub(crate) trust: Trust,
}

impl QuicFixture {
    pub(crate) fn new() -> Self {
        let authority = Authority::new(DOMAIN, SystemTime::now(), HOUR).unwrap();
        let trust = Trust::new(DOMAIN, &[authority.certificate().clone()]).unwrap();
        Self { authority, trust }
    }

    pub(crate) fn credentials(&self, id: SpiffeId, name: &str) -> Credentials {
        self.credentials_at(id, name, SystemTime::now(), HOUR)
    }

    pub(crate) fn credentials_at(
        &self,
        id: SpiffeId,
        name: &str,
        now: SystemTime,
        lifetime: Duration,
    ) -> Credentials {
        let request = CertificateRequest::new().unwrap();
        let issued = self
            .authority
            .issue(request.csr(), &id, name, now, lifetime)
            .unwrap();
        request.into_credentials(id, name.to_owned(), issued)
    }

    /// A gateway that is admitted.
    pub(crate) fn caller(&self) -> TestCaller {
        self.caller_as(self.credentials(SpiffeId::for_gateway(DOMAIN, "node-a"), "gateway.node-a"))
    }

    pub(crate) fn caller_as(&self, credentials: Credentials) -> TestCaller {
        let sessions = Arc::new(CallerSessions::default());
        let config = config::caller_config(&credentials, &self.trust, &sessions).unwrap();
        TestCaller {
            sessions,
            config,
            trust: self.trust.clone(),
        }
    }

    /// A caller with another configuration than [`config::caller_config`].
    pub(crate) fn caller_with(&self, tls: rustls::ClientConfig) -> TestCaller {
        let config = QuicClientConfig::try_from(tls).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(config));
        TestCaller {
            sessions: Arc::default(),
            config,
            trust: self.trust.clone(),
        }
    }

    /// A worker that has not started.
    pub(crate) fn worker(&self, number: u64) -> TestWorkerSpec {
        let id = SpiffeId::for_instance(DOMAIN, "echo".parse().unwrap(), InstanceId(number));
        let name = format!("i{number}.{DOMAIN}");
        TestWorkerSpec {
            credentials: self.credentials(id, &name),
            trust: self.trust.clone(),
            sessions: Vec::new(),
            idle_timeout: config::IDLE_TIMEOUT,
            max_connections: MAX_CONNECTIONS,
        }
    }
}

pub(crate) struct TestCaller {
    pub(crate) sessions: Arc<CallerSessions>,
    pub(crate) config: quinn::ClientConfig,
    pub(crate) trust: Trust,
}

impl TestCaller {
    pub(crate) fn dialer(&self) -> Dialer {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = Endpoint::new(
            EndpointConfig::default(),
            None,
            socket,
            Arc::new(TokioRuntime),
        )
        .unwrap();
        Dialer::new(endpoint, self.config.clone(), self.trust.clone())
    }

    pub(crate) async fn dial_running(&self, worker: &RunningWorker) -> CallerConnection {
        self.dialer()
            .dial_worker(worker.addr, &worker.name, LIMIT)
            .await
            .unwrap()
    }
}

#[derive(Clone)]
pub(crate) struct TestWorkerSpec {
    pub(crate) credentials: Credentials,
    pub(crate) trust: Trust,
    /// Sessions that were minted for it.
    pub(crate) sessions: Vec<SessionEntry>,
    /// Idle timeout of its connections.
    pub(crate) idle_timeout: Duration,
    /// Connection limit.
    pub(crate) max_connections: usize,
}

pub(crate) struct RunningWorker {
    pub(crate) addr: SocketAddr,
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) sessions: Arc<WorkerSessions>,
    pub(crate) refusals: watch::Receiver<RefusalStats>,
    trust: Box<dyn Fn(Trust)>,
}

impl RunningWorker {
    /// Replaces the trust.
    pub(crate) fn set_trust(&self, trust: Trust) {
        (self.trust)(trust);
    }
}

impl TestWorkerSpec {
    /// Mints a session for a caller that never contacted this worker, before the worker starts.
    pub(crate) fn mint_session(&mut self, caller: &TestCaller) {
        let sessions = Arc::new(WorkerSessions::new(None));
        let config = config::worker_config(
            &self.credentials,
            &self.trust,
            sessions.clone(),
            &TEST_TOKEN_KEY,
        )
        .unwrap();
        let nowhere = (Ipv4Addr::LOCALHOST, 9).into();
        mint::mint_session(
            caller.config.clone(),
            Arc::new(config),
            &self.credentials.name,
            (nowhere, nowhere),
        )
        .unwrap();
        self.sessions.extend(sessions.drain_entries());
    }

    /// Starts the worker.
    pub(crate) fn start<F, A>(&self, handler: A) -> RunningWorker
    where
        A: Fn(ServedCall) -> F + 'static,
        F: Future<Output = Response<Full<Bytes>>> + 'static,
    {
        let sessions = Arc::new(WorkerSessions::new(None));
        sessions.insert_minted(self.sessions.clone(), std::time::Instant::now());
        let mut config = config::worker_config(
            &self.credentials,
            &self.trust,
            sessions.clone(),
            &TEST_TOKEN_KEY,
        )
        .unwrap();
        config.transport_config(config::worker_transport(self.idle_timeout));
        let endpoint = Endpoint::server(config, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (server, accepting) = (
            CallServer::new(self.trust.clone(), handler),
            endpoint.clone(),
        );
        let (refusals, trusting) = (server.refusals(), Rc::clone(&server));
        let trust: Box<dyn Fn(Trust)> = Box::new(move |trust| trusting.set_trust(trust));
        server.set_max_connections(self.max_connections);
        tokio::task::spawn_local(async move {
            while let Some(incoming) = accepting.accept().await {
                tokio::task::spawn_local(Rc::clone(&server).serve_connection(incoming));
            }
        });
        let (addr, name) = (
            endpoint.local_addr().unwrap(),
            self.credentials.name.clone(),
        );
        RunningWorker {
            addr,
            name,
            endpoint,
            sessions,
            refusals,
            trust,
        }
    }
}

/// Handler that returns the request's body.
pub(crate) async fn echo(call: ServedCall) -> Response<Full<Bytes>> {
    let early = call.early.to_string();
    let body = call
        .request
        .into_body()
        .collect()
        .await
        .map(|body| body.to_bytes());
    match body {
        Ok(body) => Response::builder()
            .header("early", early)
            .body(Full::new(body))
            .unwrap(),
        Err(error) => Response::builder()
            .status(400)
            .body(Full::new(error.to_string().into()))
            .unwrap(),
    }
}

pub(crate) fn post(body: impl Into<Bytes>) -> http::Request<Bytes> {
    http::Request::post("/path").body(body.into()).unwrap()
}

/// Handler that counts calls and returns an empty body.
pub(crate) fn counting(
    runs: &Rc<Cell<u32>>,
) -> impl Fn(ServedCall) -> std::future::Ready<Response<Full<Bytes>>> + use<> {
    let runs = runs.clone();
    move |_| {
        runs.set(runs.get() + 1);
        std::future::ready(Response::new(Full::default()))
    }
}
