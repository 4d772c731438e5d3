//! A rendezvous of a test's own.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::lab::nat::{Family, Internet};
use nearpath_daemon::drain::{self, Trigger};
use nearpath_daemon::metrics::Registry;
use nearpath_p2p::control::{self, Heard, Line};
use nearpath_p2p::message::Pass;
use nearpath_p2p::ticket::{Key, Ticket};
use nearpath_rendezvous::{Limits, Place, Rendezvous};
use nearpath_types::SpiffeId;
use rustls::ServerConfig;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::Receiver;

/// Runs on a runtime of its own, so that it can be killed.
pub struct House {
    pub rendezvous: Rendezvous,
    pub key: Key,
    pub registry: Registry,
    trigger: Option<Trigger>,
    runtime: Option<Runtime>,
}

impl House {
    /// On loopback.
    pub fn start(limits: Limits) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), limits)
    }

    pub fn start_at(addr: SocketAddr, limits: Limits) -> Self {
        Self::start_with(addr, None, limits)
    }

    pub fn start_with(addr: SocketAddr, tls: Option<Arc<ServerConfig>>, limits: Limits) -> Self {
        Self::observing(addr, &[SocketAddr::new(addr.ip(), 0)], tls, limits)
    }

    /// On the rendezvous' machine of an internet, with an observer on each of its addresses of a family.
    pub fn on(internet: &Internet, family: Family) -> Self {
        let [first, second] = internet.addresses(family);
        let observers = [first, second].map(|ip| SocketAddr::new(ip, 3478));
        // Threads that are begun on the machine stay there.
        internet.rendezvous.enter(|| Self::observing((first, 8443).into(), &observers, None, Limits::default()))
    }

    fn observing(addr: SocketAddr, observers: &[SocketAddr], tls: Option<Arc<ServerConfig>>, limits: Limits) -> Self {
        let key = Key::new([5; 32]);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let inside = runtime.enter();
        let listener = nearpath_wire::bind::bind(addr, 1).unwrap().pop().unwrap();
        let (trigger, drain) = drain::channel();
        let observers = observers.iter().map(|bind| Place { bind: *bind, public: None }).collect();
        let settings = nearpath_rendezvous::Settings { key: key.clone(), listener, tls, observers, limits, drain };
        let registry = Registry::default();
        let rendezvous = nearpath_rendezvous::start(settings, &registry).unwrap();
        drop(inside);
        Self { rendezvous, key, registry, trigger: Some(trigger), runtime: Some(runtime) }
    }

    /// Begins the drain; ready when everybody has gone.
    pub fn drain(&mut self) -> impl Future<Output = ()> + use<> {
        self.trigger.take().unwrap().drain()
    }

    pub fn ticket(&self, job: &str, name: &str) -> Pass {
        self.ticket_until(job, name, now() + 3600)
    }

    pub fn ticket_until(&self, job: &str, name: &str, until: u64) -> Pass {
        self.admit(job, id(name), name == "leader", until)
    }

    pub fn admit(&self, job: &str, you: SpiffeId, leader: bool, until: u64) -> Pass {
        Ticket { you, job: job.parse().unwrap(), leader, until }.mint(&self.key)
    }

    pub fn settings(&self, ticket: Pass) -> control::Settings {
        control::Settings { place: format!("ws://{}", self.rendezvous.addr).parse().unwrap(), ticket, tls: None }
    }

    /// A worker with its line.
    pub async fn worker(&self, job: &str, name: &str) -> Worker {
        let settings = self.settings(self.ticket(job, name));
        let (line, mut heard) = Line::open(settings.clone());
        assert!(matches!(next(&mut heard).await, Heard::Here(_)));
        Worker { line, heard, settings }
    }

    /// The value of a metric.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.registry.encode();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }
}

impl Drop for House {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Its sockets are closed when this returns; a runtime may not wait for another one on its own thread.
            let closed = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5))).join();
            assert!(closed.is_ok() || std::thread::panicking());
        }
    }
}

pub struct Worker {
    pub line: Line,
    pub heard: Receiver<Heard>,
    pub settings: control::Settings,
}

impl Worker {
    pub async fn next(&mut self) -> Heard {
        next(&mut self.heard).await
    }

    /// Somebody's call.
    pub async fn called(&mut self) -> control::Meeting {
        match self.next().await {
            Heard::Called(meeting) => meeting,
            other => panic!("no call: {other:?}"),
        }
    }
}

pub async fn next(heard: &mut Receiver<Heard>) -> Heard {
    crate::within(heard.recv()).await.expect("the line's task runs")
}

/// Whom a test calls so.
pub fn id(name: &str) -> SpiffeId {
    SpiffeId::gateway("job", name)
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

pub const SOON: Duration = Duration::from_secs(20);

/// A port that is free now.
pub fn free() -> SocketAddr {
    let addr = crate::free_addr();
    drop(TcpListener::bind(addr).unwrap());
    addr
}
