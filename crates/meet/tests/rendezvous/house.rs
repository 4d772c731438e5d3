//! A rendezvous of a test's own, and workers that come to it.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nearpath_daemon::drain::{self, Trigger};
use nearpath_daemon::metrics::Registry;
use nearpath_meet::client::{self, Heard, Line};
use nearpath_meet::message::Pass;
use nearpath_meet::server::{self, Limits, Place, Rendezvous};
use nearpath_meet::ticket::{Key, Ticket};
use nearpath_types::SpiffeId;
use rustls::ServerConfig;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::Receiver;

/// Runs on a runtime of its own, so that it can be killed.
pub(crate) struct House {
    pub(crate) rendezvous: Rendezvous,
    pub(crate) key: Key,
    pub(crate) registry: Registry,
    trigger: Option<Trigger>,
    runtime: Option<Runtime>,
}

impl House {
    pub(crate) fn start(limits: Limits) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), limits)
    }

    pub(crate) fn start_at(addr: SocketAddr, limits: Limits) -> Self {
        Self::start_with(addr, None, limits)
    }

    pub(crate) fn start_with(addr: SocketAddr, tls: Option<Arc<ServerConfig>>, limits: Limits) -> Self {
        let key = Key::new([5; 32]);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        let listener = nearpath_wire::bind::bind(addr, 1).unwrap().pop().unwrap();
        let (trigger, drain) = drain::channel();
        let observers = vec![Place { bind: "127.0.0.1:0".parse().unwrap(), public: None }];
        let settings = server::Settings { key: key.clone(), listener, tls, observers, limits, drain };
        let registry = Registry::default();
        let rendezvous = server::start(settings, &registry).unwrap();
        drop(_inside);
        Self { rendezvous, key, registry, trigger: Some(trigger), runtime: Some(runtime) }
    }

    /// Begins the drain; ready when everybody has gone.
    pub(crate) fn drain(&mut self) -> impl Future<Output = ()> + use<> {
        self.trigger.take().unwrap().drain()
    }

    pub(crate) fn ticket(&self, job: &str, name: &str) -> Pass {
        self.ticket_until(job, name, now() + 3600)
    }

    pub(crate) fn ticket_until(&self, job: &str, name: &str, until: u64) -> Pass {
        Ticket { you: id(name), job: job.parse().unwrap(), leader: name == "leader", until }.mint(&self.key)
    }

    pub(crate) fn settings(&self, ticket: Pass) -> client::Settings {
        client::Settings { place: format!("ws://{}", self.rendezvous.addr).parse().unwrap(), ticket, tls: None }
    }

    /// A worker with its line.
    pub(crate) async fn worker(&self, job: &str, name: &str) -> Worker {
        let settings = self.settings(self.ticket(job, name));
        let (line, mut heard) = Line::open(settings.clone());
        assert!(matches!(next(&mut heard).await, Heard::Here(_)));
        Worker { line, heard, settings }
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> u64 {
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

pub(crate) struct Worker {
    pub(crate) line: Line,
    pub(crate) heard: Receiver<Heard>,
    pub(crate) settings: client::Settings,
}

impl Worker {
    pub(crate) async fn next(&mut self) -> Heard {
        next(&mut self.heard).await
    }

    /// Somebody's call.
    pub(crate) async fn called(&mut self) -> client::Meeting {
        match self.next().await {
            Heard::Called(meeting) => meeting,
            other => panic!("no call: {other:?}"),
        }
    }
}

pub(crate) async fn next(heard: &mut Receiver<Heard>) -> Heard {
    nearpath_testkit::within(heard.recv()).await.expect("the line's task runs")
}

pub(crate) fn id(name: &str) -> SpiffeId {
    SpiffeId::gateway("job", name)
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A port that is free now.
pub(crate) fn free() -> SocketAddr {
    let addr = nearpath_testkit::free_addr();
    drop(TcpListener::bind(addr).unwrap());
    addr
}
