//! A domain in a runtime of its own, and parties of all sorts.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use nearpath_domain::hub::{Door, Fault, Hub, Settings};
use nearpath_domain::post::{self, blocking, polled};
use nearpath_domain::{Answer, Incoming, packet};
use nearpath_types::{FunctionId, InstanceId};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;

pub const DEADLINE: Duration = Duration::from_secs(30);
pub const ROLE: &str = "NEARPATH_DOMAIN_TEST_ROLE";
pub const DOOR: &str = "NEARPATH_DISPATCH";

pub fn function(name: &str) -> FunctionId {
    name.parse().unwrap()
}

/// A domain.
pub struct Node {
    pub runtime: Runtime,
    pub hub: Hub,
    pub faults: UnboundedReceiver<Fault>,
}

impl Node {
    pub fn new() -> Self {
        Self::with(Settings::named("test"))
    }

    pub fn with(settings: Settings) -> Self {
        Self::started(|| Hub::start(settings))
    }

    pub fn started(start: impl FnOnce() -> std::io::Result<(Hub, UnboundedReceiver<Fault>)>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (hub, faults) = {
            let _inside = runtime.enter();
            start().unwrap()
        };
        Self { runtime, hub, faults }
    }

    pub fn edges(&self, edges: &[(&str, &str)]) {
        self.hub.declare(edges.iter().map(|(caller, callee)| (function(caller), function(callee))));
    }

    /// The socket of a new party of this instance.
    pub fn socket(&self, instance: u64, name: &str) -> OwnedFd {
        let (ours, theirs) = packet::pair().unwrap();
        self.hub.admit(InstanceId(instance), function(name), Door::Connected(ours));
        theirs
    }

    /// A thread that serves until the node hangs up.
    pub fn serve(
        &self,
        instance: u64,
        name: &str,
        handler: impl FnMut(&mut blocking::Post, &Incoming) -> Answer + Send + 'static,
    ) -> JoinHandle<()> {
        let socket = self.socket(instance, name);
        std::thread::spawn(move || {
            let mut post = blocking::Post::join(socket, post::Settings::default()).unwrap();
            post.serve(handler).unwrap();
        })
    }

    /// A party that only calls, on this thread.
    pub fn caller(&self, instance: u64, name: &str) -> blocking::Post {
        let settings = post::Settings { serves: false, ..post::Settings::default() };
        blocking::Post::join(self.socket(instance, name), settings).unwrap()
    }

    /// This program again, as an instance.
    pub fn process(&self, instance: u64, name: &str, role: &str) -> Process {
        let door = std::env::temp_dir().join(format!("np-domain-{}-{instance}-{name}.sock", std::process::id()));
        let _ = std::fs::remove_file(&door);
        let socket = listening(&door);
        self.hub.admit(InstanceId(instance), function(name), Door::Listening(socket));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["role", "--exact", "--nocapture", "--test-threads=1"]);
        let child = command.env(ROLE, role).env(DOOR, &door).stdout(Stdio::null()).spawn().unwrap();
        Process { child, door }
    }

    /// Waits until the domain is as wanted.
    pub fn until(&self, what: &str, wanted: impl Fn(nearpath_domain::hub::Usage) -> bool) {
        let wait = async {
            while !wanted(self.hub.usage().await) {
                tokio::time::sleep(Duration::from_millis(2)).await; // each look is an exchange with the hub's task
            }
        };
        let waited = self.runtime.block_on(async { tokio::time::timeout(DEADLINE, wait).await });
        assert!(waited.is_ok(), "never: {what}; {:?}", self.runtime.block_on(self.hub.usage()));
    }

    /// A gateway thread: runs `inside` with a polled party.
    pub fn gateway<T: 'static, F: Future<Output = T>>(&self, inside: impl FnOnce(polled::Post) -> F) -> T {
        let socket = self.hub.gateway_socket().unwrap();
        polled_party(socket, false, inside)
    }

    pub fn stop(self) {
        self.runtime.block_on(self.hub.stop());
    }
}

pub fn polled_party<T, F: Future<Output = T>>(
    socket: OwnedFd,
    serves: bool,
    inside: impl FnOnce(polled::Post) -> F,
) -> T {
    polled_party_with(socket, post::Settings { serves, ..post::Settings::default() }, inside)
}

pub fn polled_party_with<T, F: Future<Output = T>>(
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
pub struct Process {
    pub child: Child,
    door: PathBuf,
}

impl Process {
    pub fn kill(&mut self) {
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

pub fn listening(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 16).unwrap();
    socket
}

/// Both have ended, and neither by a panic.
pub fn joined(threads: [JoinHandle<()>; 2]) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Waits until a function can be called from here.
pub fn knows(post: &mut blocking::Post, name: &str) {
    let end = std::time::Instant::now() + DEADLINE;
    while !post.functions().contains(&function(name)) {
        assert!(std::time::Instant::now() < end, "{name} never came");
        std::thread::yield_now();
    }
}

pub async fn knows_async(post: &polled::Post, name: &str) {
    while !post.knows(&function(name)) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
