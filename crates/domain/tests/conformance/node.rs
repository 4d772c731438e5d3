//! A domain in a runtime of its own, in one of the modes, and parties of all sorts.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nearpath_domain::hub::{self, Delivery, Door, Fault, Hub, Settings};
use nearpath_domain::post::{self, blocking, polled};
use nearpath_domain::{Answer, Incoming, packet};
use nearpath_kernel::bpf::Exchange;
use nearpath_shm::Party;
use nearpath_types::{FunctionId, InstanceId};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
pub(crate) const ROLE: &str = "NEARPATH_DOMAIN_TEST_ROLE";
pub(crate) const DOOR: &str = "NEARPATH_DISPATCH";

pub(crate) use nearpath_domain::protocol::Mode;

pub(crate) fn delivery(mode: Mode) -> Delivery {
    match mode {
        Mode::Poll => Delivery::Poll,
        Mode::Sockmap => Delivery::Sockmap(Arc::new(Kernel(Exchange::create().unwrap()))),
        _ => Delivery::Ring,
    }
}

/// Why this machine cannot do a mode.
pub(crate) fn trouble(mode: Mode) -> Option<String> {
    (mode == Mode::Sockmap).then(Exchange::create)?.err().map(|error| error.to_string())
}

/// The kernel's exchange as the hub knows it.
#[derive(Debug)]
struct Kernel(Exchange);

impl hub::Exchange for Kernel {
    fn seat(&self, party: Party) -> io::Result<[OwnedFd; 2]> {
        self.0.seat(party.get()).map(|seat| [seat.party, seat.node])
    }

    fn unseat(&self, party: Party) {
        self.0.unseat(party.get());
    }

    fn permit(&self, from: Party, channel: u32, to: Party) -> io::Result<()> {
        self.0.permit(from.get(), channel, to.get())
    }

    fn revoke(&self, from: Party, channel: u32) {
        self.0.revoke(from.get(), channel);
    }
}

thread_local! {
    /// Whether domains that this thread makes are strict.
    static STRICT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a case whose domains are strict.
pub(crate) fn strictly(case: impl FnOnce()) {
    STRICT.set(true);
    case();
}

/// Whether the case that runs is one of strict domains.
pub(crate) fn is_strict() -> bool {
    STRICT.get()
}

pub(crate) fn function(name: &str) -> FunctionId {
    name.parse().unwrap()
}

/// A domain.
pub(crate) struct Node {
    pub(crate) runtime: Runtime,
    pub(crate) hub: Hub,
    pub(crate) faults: UnboundedReceiver<Fault>,
}

impl Node {
    pub(crate) fn new(mode: Mode) -> Self {
        Self::with(mode, Settings::named("test"))
    }

    pub(crate) fn with(mode: Mode, settings: Settings) -> Self {
        let settings = if STRICT.get() { settings.strict() } else { settings };
        let settings = Settings { delivery: delivery(mode), ..settings };
        Self::started(|| Hub::start(settings))
    }

    pub(crate) fn started(start: impl FnOnce() -> io::Result<(Hub, UnboundedReceiver<Fault>)>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (hub, faults) = {
            let _inside = runtime.enter();
            start().unwrap()
        };
        Self { runtime, hub, faults }
    }

    pub(crate) fn edges(&self, edges: &[(&str, &str)]) {
        self.hub.declare(edges.iter().map(|(caller, callee)| (function(caller), function(callee))));
    }

    /// The socket of a new party of this instance.
    pub(crate) fn socket(&self, instance: u64, name: &str) -> OwnedFd {
        let (ours, theirs) = packet::pair().unwrap();
        self.hub.admit(InstanceId(instance), function(name), Door::Connected(ours));
        theirs
    }

    /// A thread that serves until the node hangs up.
    pub(crate) fn serve(
        &self,
        instance: u64,
        name: &str,
        handler: impl FnMut(&mut blocking::Post, &mut Incoming) -> Answer + Send + 'static,
    ) -> JoinHandle<()> {
        let socket = self.socket(instance, name);
        std::thread::spawn(move || {
            let mut post = match blocking::Post::join(socket, post::Settings::default()) {
                // The test was over before it had begun.
                Err(post::JoinError::HungUp) => return,
                Err(post::JoinError::Io(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => return,
                joined => joined.unwrap(),
            };
            if let Err(error) = post.serve(handler) {
                assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe, "the node has hung up: {error}");
            }
        })
    }

    /// A party that only calls, on this thread.
    pub(crate) fn caller(&self, instance: u64, name: &str) -> blocking::Post {
        let settings = post::Settings { serves: false, ..post::Settings::default() };
        blocking::Post::join(self.socket(instance, name), settings).unwrap()
    }

    /// This program again, as an instance.
    pub(crate) fn process(&self, instance: u64, name: &str, role: &str) -> Process {
        static LAST: AtomicUsize = AtomicUsize::new(0); // the same cases run in several modes at once
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let door = std::env::temp_dir().join(format!("np-domain-{}-{number}.sock", std::process::id()));
        self.hub.admit(InstanceId(instance), function(name), Door::at(&door).unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["deaths::role", "--exact", "--nocapture", "--test-threads=1"]);
        let child = command.env(ROLE, role).env(DOOR, &door).stdout(Stdio::null()).spawn().unwrap();
        Process { child, door }
    }

    /// Waits until the domain is as wanted.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(nearpath_domain::hub::Usage) -> bool) {
        let wait = async {
            while !wanted(self.hub.usage().await) {
                tokio::time::sleep(Duration::from_millis(2)).await; // each look is an exchange with the hub's task
            }
        };
        let waited = self.runtime.block_on(async { tokio::time::timeout(DEADLINE, wait).await });
        assert!(waited.is_ok(), "never: {what}; {:?}", self.runtime.block_on(self.hub.usage()));
    }

    /// A gateway thread: runs `inside` with a polled party.
    pub(crate) fn gateway<T: 'static, F: Future<Output = T>>(&self, inside: impl FnOnce(polled::Post) -> F) -> T {
        let socket = self.hub.gateway_socket().unwrap();
        polled_party(socket, false, inside)
    }

    pub(crate) fn stop(self) {
        self.runtime.block_on(self.hub.stop());
    }
}

pub(crate) fn polled_party<T, F: Future<Output = T>>(
    socket: OwnedFd,
    serves: bool,
    inside: impl FnOnce(polled::Post) -> F,
) -> T {
    polled_party_with(socket, post::Settings { serves, ..post::Settings::default() }, inside)
}

pub(crate) fn polled_party_with<T, F: Future<Output = T>>(
    socket: OwnedFd,
    settings: post::Settings,
    inside: impl FnOnce(polled::Post) -> F,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let (post, driver) = polled::Post::join(socket, settings).await.unwrap();
        let driver = tokio::task::spawn_local(driver);
        let result = tokio::time::timeout(2 * DEADLINE, inside(post)).await.expect("it hangs");
        tokio::time::timeout(DEADLINE, driver).await.expect("the driver ends with its last handle").unwrap().unwrap();
        result
    })
}

/// A child that is killed at the end.
pub(crate) struct Process {
    pub(crate) child: Child,
    door: PathBuf,
}

impl Process {
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.door);
    }
}

/// Both have ended, and neither by a panic.
pub(crate) fn joined(threads: [JoinHandle<()>; 2]) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Waits until a function can be called from here.
pub(crate) fn knows(post: &mut blocking::Post, name: &str) {
    let end = std::time::Instant::now() + DEADLINE;
    while !post.functions().contains(&function(name)) {
        assert!(std::time::Instant::now() < end, "{name} never came");
        std::thread::yield_now();
    }
}

pub(crate) async fn knows_async(post: &polled::Post, name: &str) {
    while !post.knows(&function(name)) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
