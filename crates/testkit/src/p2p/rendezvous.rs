//! A rendezvous for tests.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lab::nat::{IpFamily, LabInternet};
use nearpath_daemon::drain::{self, DrainTrigger};
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_p2p::control::{self, ControlConnection, ControlEvent};
use nearpath_p2p::message::SignedToken;
use nearpath_p2p::ticket::{RendezvousKey, WorkerTicket};
use nearpath_rendezvous::{ObserverBinding, RendezvousLimits, RunningRendezvous};
use nearpath_types::SpiffeId;
use rustls::ServerConfig;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::Receiver;

/// Runs on a runtime of its own, so that it can be killed.
pub struct TestRendezvous {
    pub rendezvous: RunningRendezvous,
    pub key: RendezvousKey,
    pub registry: MetricsRegistry,
    trigger: Option<DrainTrigger>,
    runtime: Option<Runtime>,
}

impl TestRendezvous {
    /// Starts on loopback.
    pub fn start(limits: RendezvousLimits) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), limits)
    }

    pub fn start_at(addr: SocketAddr, limits: RendezvousLimits) -> Self {
        Self::start_with(addr, None, limits)
    }

    pub fn start_with(
        addr: SocketAddr,
        tls: Option<Arc<ServerConfig>>,
        limits: RendezvousLimits,
    ) -> Self {
        Self::start_observing(addr, &[SocketAddr::new(addr.ip(), 0)], tls, limits)
    }

    /// Starts on the rendezvous node of an internet, with an observer on each of its addresses of a
    /// family.
    pub fn start_on(internet: &LabInternet, family: IpFamily) -> Self {
        let [first, second] = internet.rendezvous_addresses(family);
        let observers = [first, second].map(|ip| SocketAddr::new(ip, 3478));
        // Threads that are started in the node stay there.
        internet.rendezvous.enter(|| {
            Self::start_observing(
                (first, 8443).into(),
                &observers,
                None,
                RendezvousLimits::default(),
            )
        })
    }

    fn start_observing(
        addr: SocketAddr,
        observers: &[SocketAddr],
        tls: Option<Arc<ServerConfig>>,
        limits: RendezvousLimits,
    ) -> Self {
        let key = RendezvousKey::new([5; 32]);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let inside = runtime.enter();
        let listener = nearpath_wire::sockets::bind_tcp(addr, 1)
            .unwrap()
            .pop()
            .unwrap();
        let (trigger, drain) = drain::channel();
        let observers = observers
            .iter()
            .map(|bind| ObserverBinding {
                bind: *bind,
                public: None,
            })
            .collect();
        let settings = nearpath_rendezvous::RendezvousSettings {
            key: key.clone(),
            listener,
            tls,
            observers,
            limits,
            drain,
        };
        let registry = MetricsRegistry::default();
        let rendezvous = nearpath_rendezvous::start_rendezvous(settings, &registry).unwrap();
        drop(inside);
        Self {
            rendezvous,
            key,
            registry,
            trigger: Some(trigger),
            runtime: Some(runtime),
        }
    }

    /// Starts the drain; completes when all connections have ended.
    pub fn drain(&mut self) -> impl Future<Output = ()> + use<> {
        self.trigger.take().unwrap().drain()
    }

    pub fn ticket(&self, job: &str, name: &str) -> SignedToken {
        self.ticket_until(job, name, unix_seconds() + 3600)
    }

    pub fn ticket_until(&self, job: &str, name: &str, until: u64) -> SignedToken {
        self.issue_ticket(job, worker_id(name), name == "leader", until)
    }

    pub fn issue_ticket(&self, job: &str, you: SpiffeId, leader: bool, until: u64) -> SignedToken {
        WorkerTicket {
            worker: you,
            job: job.parse().unwrap(),
            leader,
            until,
        }
        .mint(&self.key)
    }

    pub fn control_settings(&self, ticket: SignedToken) -> control::ControlSettings {
        control::ControlSettings {
            url: format!("ws://{}", self.rendezvous.addr).parse().unwrap(),
            ticket,
            tls: None,
        }
    }

    /// Connects a worker.
    pub async fn connect_worker(&self, job: &str, name: &str) -> TestWorker {
        let settings = self.control_settings(self.ticket(job, name));
        let (line, mut events) = ControlConnection::open(settings.clone());
        assert!(matches!(
            next_event(&mut events).await,
            ControlEvent::Connected(_)
        ));
        TestWorker {
            connection: line,
            events,
            settings,
        }
    }

    /// Value of a metric.
    pub fn metric_value(&self, name: &str) -> u64 {
        let text = self.registry.encode();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .parse()
            .unwrap()
    }
}

impl Drop for TestRendezvous {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Sockets are closed when this returns. A runtime may not wait for another one on its
            // own thread.
            let closed =
                std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5))).join();
            assert!(closed.is_ok() || std::thread::panicking());
        }
    }
}

pub struct TestWorker {
    pub connection: ControlConnection,
    pub events: Receiver<ControlEvent>,
    pub settings: control::ControlSettings,
}

impl TestWorker {
    pub async fn next_event(&mut self) -> ControlEvent {
        next_event(&mut self.events).await
    }

    /// Waits for the next incoming call.
    pub async fn next_call(&mut self) -> control::PeerSession {
        match self.next_event().await {
            ControlEvent::IncomingCall(meeting) => meeting,
            other => panic!("no call: {other:?}"),
        }
    }
}

pub async fn next_event(events: &mut Receiver<ControlEvent>) -> ControlEvent {
    crate::within(events.recv())
        .await
        .expect("the line's task runs")
}

/// Identity of a worker in tests.
pub fn worker_id(name: &str) -> SpiffeId {
    SpiffeId::for_gateway("job", name)
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

pub const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(20);

/// Address with a port that is free now.
pub fn free_port() -> SocketAddr {
    let addr = crate::free_addr();
    drop(TcpListener::bind(addr).unwrap());
    addr
}
