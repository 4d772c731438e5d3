//! An installation in small: one authority, workers and callers.

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
use nearpath_wire::early::{Entry, Register, Sessions, TokenKey, mint};
use nearpath_wire::identity::{Credentials, Request, Trust};
use nearpath_wire::quic::{CONNECTIONS, Call, Dialer, Line, Refused, Server, config};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use tokio::sync::watch;
use tokio::task::LocalSet;

pub(crate) const DOMAIN: &str = "test.nearpath";
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3600);
const KEY: TokenKey = TokenKey([7; 32]);

/// Runs a test on one thread; no test hangs for ever.
pub(crate) fn run(test: impl Future<Output = ()>) {
    run_for(LIMIT, test);
}

/// The same for a test that takes longer.
pub(crate) fn run_for(limit: Duration, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limited = async { tokio::time::timeout(limit, test).await.expect("the test has not ended in time") };
    LocalSet::new().block_on(&runtime, limited);
}

pub(crate) struct Site {
    pub(crate) authority: Authority,
    pub(crate) trust: Trust,
}

impl Site {
    pub(crate) fn new() -> Self {
        let authority = Authority::new(DOMAIN, SystemTime::now(), HOUR).unwrap();
        let trust = Trust::new(DOMAIN, &[authority.certificate().clone()]).unwrap();
        Self { authority, trust }
    }

    pub(crate) fn credentials(&self, id: SpiffeId, name: &str) -> Credentials {
        self.credentials_at(id, name, SystemTime::now(), HOUR)
    }

    pub(crate) fn credentials_at(&self, id: SpiffeId, name: &str, now: SystemTime, lifetime: Duration) -> Credentials {
        let request = Request::new().unwrap();
        let issued = self.authority.issue(request.csr(), &id, name, now, lifetime).unwrap();
        request.complete(id, name.to_owned(), issued)
    }

    /// A gateway that may call.
    pub(crate) fn caller(&self) -> Caller {
        self.caller_as(self.credentials(SpiffeId::gateway(DOMAIN, "node-a"), "gateway.node-a"))
    }

    pub(crate) fn caller_as(&self, credentials: Credentials) -> Caller {
        let sessions = Arc::new(Sessions::default());
        let config = config::caller(&credentials, &self.trust, &sessions).unwrap();
        Caller { sessions, config, trust: self.trust.clone() }
    }

    /// Who does not set itself up as [`config::caller`] does.
    pub(crate) fn caller_with(&self, tls: rustls::ClientConfig) -> Caller {
        let config = QuicClientConfig::try_from(tls).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(config));
        Caller { sessions: Arc::default(), config, trust: self.trust.clone() }
    }

    /// A worker that has not started.
    pub(crate) fn worker(&self, number: u64) -> Worker {
        let id = SpiffeId::instance(DOMAIN, "echo".parse().unwrap(), InstanceId(number));
        let name = format!("i{number}.{DOMAIN}");
        Worker {
            credentials: self.credentials(id, &name),
            trust: self.trust.clone(),
            entries: Vec::new(),
            idle: config::IDLE,
            connections: CONNECTIONS,
        }
    }
}

pub(crate) struct Caller {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) config: quinn::ClientConfig,
    pub(crate) trust: Trust,
}

impl Caller {
    pub(crate) fn dialer(&self) -> Dialer {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime)).unwrap();
        Dialer::new(endpoint, self.config.clone(), self.trust.clone())
    }

    pub(crate) async fn dial(&self, worker: &Running) -> Line {
        self.dialer().dial(worker.addr, &worker.name, LIMIT).await.unwrap()
    }
}

#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) credentials: Credentials,
    pub(crate) trust: Trust,
    /// Minted for it.
    pub(crate) entries: Vec<Entry>,
    /// When a silent connection ends.
    pub(crate) idle: Duration,
    /// How many it takes.
    pub(crate) connections: usize,
}

pub(crate) struct Running {
    pub(crate) addr: SocketAddr,
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) register: Arc<Register>,
    pub(crate) refused: watch::Receiver<Refused>,
    trust: Box<dyn Fn(Trust)>,
}

impl Running {
    /// Others are admitted from now on.
    pub(crate) fn admit(&self, trust: Trust) {
        (self.trust)(trust);
    }
}

impl Worker {
    /// Mints a session for the caller, who has never seen this worker; which has not started.
    pub(crate) fn mint(&mut self, caller: &Caller) {
        let register = Arc::new(Register::new(None));
        let config = config::worker(&self.credentials, &self.trust, register.clone(), &KEY).unwrap();
        let nowhere = (Ipv4Addr::LOCALHOST, 9).into();
        mint::mint(caller.config.clone(), Arc::new(config), &self.credentials.name, (nowhere, nowhere)).unwrap();
        self.entries.extend(register.drain());
    }

    /// Starts it.
    pub(crate) fn start<F, A>(&self, handler: A) -> Running
    where
        A: Fn(Call) -> F + 'static,
        F: Future<Output = Response<Full<Bytes>>> + 'static,
    {
        let register = Arc::new(Register::new(None));
        register.provision(self.entries.clone(), std::time::Instant::now());
        let mut config = config::worker(&self.credentials, &self.trust, register.clone(), &KEY).unwrap();
        config.transport_config(config::transport(self.idle));
        let endpoint = Endpoint::server(config, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (server, accepting) = (Server::new(self.trust.clone(), handler), endpoint.clone());
        let (refused, ruled) = (server.refused(), Rc::clone(&server));
        let trust: Box<dyn Fn(Trust)> = Box::new(move |trust| ruled.trust(trust));
        server.connections(self.connections);
        tokio::task::spawn_local(async move {
            while let Some(incoming) = accepting.accept().await {
                tokio::task::spawn_local(Rc::clone(&server).connection(incoming));
            }
        });
        let (addr, name) = (endpoint.local_addr().unwrap(), self.credentials.name.clone());
        Running { addr, name, endpoint, register, refused, trust }
    }
}

/// Answers with the request's body.
pub(crate) async fn echo(call: Call) -> Response<Full<Bytes>> {
    let early = call.early.to_string();
    let body = call.request.into_body().collect().await.map(|body| body.to_bytes());
    match body {
        Ok(body) => Response::builder().header("early", early).body(Full::new(body)).unwrap(),
        Err(error) => Response::builder().status(400).body(Full::new(error.to_string().into())).unwrap(),
    }
}

pub(crate) fn post(body: impl Into<Bytes>) -> http::Request<Bytes> {
    http::Request::post("/path").body(body.into()).unwrap()
}

/// A handler that counts, and answers with nothing.
pub(crate) fn counting(runs: &Rc<Cell<u32>>) -> impl Fn(Call) -> std::future::Ready<Response<Full<Bytes>>> + use<> {
    let runs = runs.clone();
    move |_| {
        runs.set(runs.get() + 1);
        std::future::ready(Response::new(Full::default()))
    }
}
