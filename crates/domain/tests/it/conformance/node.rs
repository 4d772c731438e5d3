//! A domain in a runtime of its own, in one of the modes, and endpoints of all sorts.

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

use nearpath_domain::endpoint::{self, blocking, polled};
use nearpath_domain::node_side::{
    self, DescriptorDelivery, DomainHandle, DomainSettings, EndpointSocket, InstanceFault,
};
use nearpath_domain::{CallResponse, IncomingCall, packet};
use nearpath_kernel::bpf::SockmapRouter;
use nearpath_shm::EndpointId;
use nearpath_testkit::{eventually, eventually_blocking, read_until};
use nearpath_types::{FunctionId, InstanceId};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const ROLE_VARIABLE: &str = "NEARPATH_DOMAIN_TEST_ROLE";
pub(crate) const DISPATCH_VARIABLE: &str = "NEARPATH_DISPATCH";

pub(crate) use nearpath_domain::protocol::DeliveryMode;

pub(crate) fn delivery(mode: DeliveryMode) -> DescriptorDelivery {
    match mode {
        DeliveryMode::Poll => DescriptorDelivery::Poll,
        DeliveryMode::Sockmap => {
            DescriptorDelivery::Sockmap(Arc::new(KernelExchange(SockmapRouter::create().unwrap())))
        }
        _ => DescriptorDelivery::Ring,
    }
}

/// Why this machine cannot do a mode.
pub(crate) fn unmet_requirement(mode: DeliveryMode) -> Option<String> {
    (mode == DeliveryMode::Sockmap)
        .then(SockmapRouter::create)?
        .err()
        .map(|error| error.to_string())
}

/// The kernel's exchange as the node side knows it.
#[derive(Debug)]
struct KernelExchange(SockmapRouter);

impl node_side::SockmapExchange for KernelExchange {
    fn create_sockets(&self, endpoint: EndpointId) -> io::Result<[OwnedFd; 2]> {
        self.0
            .add_endpoint(endpoint.get())
            .map(|state| [state.endpoint, state.node])
    }

    fn remove_endpoint(&self, endpoint: EndpointId) {
        self.0.remove_endpoint(endpoint.get());
    }

    fn permit_channel(&self, from: EndpointId, channel: u32, to: EndpointId) -> io::Result<()> {
        self.0.allow_channel(from.get(), channel, to.get())
    }

    fn revoke_channel(&self, from: EndpointId, channel: u32) {
        self.0.revoke_channel(from.get(), channel);
    }
}

thread_local! {
    /// True if domains that this thread makes are strict.
    static STRICT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a case whose domains are strict.
pub(crate) fn strictly(case: impl FnOnce()) {
    STRICT.set(true);
    case();
}

/// Returns true if the running case is one of strict domains.
pub(crate) fn is_strict() -> bool {
    STRICT.get()
}

pub(crate) fn function(name: &str) -> FunctionId {
    name.parse().unwrap()
}

/// A domain.
pub(crate) struct TestNode {
    pub(crate) runtime: Runtime,
    pub(crate) hub: DomainHandle,
    pub(crate) faults: UnboundedReceiver<InstanceFault>,
}

impl TestNode {
    pub(crate) fn new(mode: DeliveryMode) -> Self {
        Self::with(mode, DomainSettings::named("test"))
    }

    pub(crate) fn with(mode: DeliveryMode, settings: DomainSettings) -> Self {
        let settings = if STRICT.get() {
            settings.into_strict()
        } else {
            settings
        };
        let settings = DomainSettings {
            delivery: delivery(mode),
            ..settings
        };
        Self::started(|| DomainHandle::start(settings))
    }

    pub(crate) fn started(
        start: impl FnOnce() -> io::Result<(DomainHandle, UnboundedReceiver<InstanceFault>)>,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (hub, faults) = {
            let _inside = runtime.enter();
            start().unwrap()
        };
        Self {
            runtime,
            hub,
            faults,
        }
    }

    pub(crate) fn edges(&self, edges: &[(&str, &str)]) {
        self.hub.declare_edges(
            edges
                .iter()
                .map(|(caller, callee)| (function(caller), function(callee))),
        );
    }

    /// The socket of a new endpoint of this instance.
    pub(crate) fn socket(&self, instance: u64, name: &str) -> OwnedFd {
        let (ours, theirs) = packet::socket_pair().unwrap();
        self.hub.admit_instance(
            InstanceId(instance),
            function(name),
            EndpointSocket::Connected(ours),
        );
        theirs
    }

    /// The socket of a new endpoint that is this instance's watchdog.
    pub(crate) fn watchdog_socket(&self, instance: u64, name: &str) -> OwnedFd {
        let (ours, theirs) = packet::socket_pair().unwrap();
        self.hub.admit_with_watchdog(
            InstanceId(instance),
            function(name),
            std::process::id(),
            EndpointSocket::Connected(ours),
        );
        theirs
    }

    /// A thread that serves until the node hangs up.
    pub(crate) fn serve(
        &self,
        instance: u64,
        name: &str,
        handler: impl FnMut(&mut blocking::BlockingEndpoint, &mut IncomingCall) -> CallResponse
        + Send
        + 'static,
    ) -> JoinHandle<()> {
        Self::serve_on(self.socket(instance, name), handler)
    }

    pub(crate) fn serve_on(
        socket: OwnedFd,
        handler: impl FnMut(&mut blocking::BlockingEndpoint, &mut IncomingCall) -> CallResponse
        + Send
        + 'static,
    ) -> JoinHandle<()> {
        std::thread::spawn(move || {
            let mut endpoint = match blocking::BlockingEndpoint::join(
                socket,
                endpoint::EndpointSettings::default(),
            ) {
                // The test was over before it had begun.
                Err(endpoint::JoinError::HungUp) => return,
                Err(endpoint::JoinError::Io(error))
                    if error.kind() == std::io::ErrorKind::BrokenPipe =>
                {
                    return;
                }
                joined => joined.unwrap(),
            };
            if let Err(error) = endpoint.serve_calls(handler) {
                assert_eq!(
                    error.kind(),
                    std::io::ErrorKind::BrokenPipe,
                    "the node has hung up: {error}"
                );
            }
        })
    }

    /// An endpoint that only calls, on this thread.
    pub(crate) fn caller(&self, instance: u64, name: &str) -> blocking::BlockingEndpoint {
        let settings = endpoint::EndpointSettings {
            serves: false,
            ..endpoint::EndpointSettings::default()
        };
        blocking::BlockingEndpoint::join(self.socket(instance, name), settings).unwrap()
    }

    /// This program again, as an instance.
    pub(crate) fn process(&self, instance: u64, name: &str, role: &str) -> ChildProcess {
        // The same cases run in several modes at once
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let socket_path =
            std::env::temp_dir().join(format!("np-domain-{}-{number}.sock", std::process::id()));
        self.hub.admit_instance(
            InstanceId(instance),
            function(name),
            EndpointSocket::listen_at(&socket_path).unwrap(),
        );
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "conformance::deaths::role",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ]);
        let child = command
            .env(ROLE_VARIABLE, role)
            .env(DISPATCH_VARIABLE, &socket_path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        ChildProcess { child, socket_path }
    }

    /// Waits until the domain is as wanted.
    pub(crate) fn until(
        &self,
        what: &str,
        wanted: impl Fn(nearpath_domain::node_side::DomainUsage) -> bool,
    ) {
        // Each reading is an exchange with the node side's task.
        let usage = || self.runtime.block_on(self.hub.read_usage());
        read_until(what, usage, |usage| wanted(*usage));
    }

    /// A gateway thread: runs `inside` with a polled endpoint.
    pub(crate) fn gateway<T: 'static, F: Future<Output = T>>(
        &self,
        inside: impl FnOnce(polled::AsyncEndpoint) -> F,
    ) -> T {
        let socket = self.hub.gateway_socket().unwrap();
        polled_endpoint(socket, false, inside)
    }

    pub(crate) fn stop(self) {
        self.runtime.block_on(self.hub.stop());
    }
}

pub(crate) fn polled_endpoint<T, F: Future<Output = T>>(
    socket: OwnedFd,
    serves: bool,
    inside: impl FnOnce(polled::AsyncEndpoint) -> F,
) -> T {
    polled_endpoint_with(
        socket,
        endpoint::EndpointSettings {
            serves,
            ..endpoint::EndpointSettings::default()
        },
        inside,
    )
}

pub(crate) fn polled_endpoint_with<T, F: Future<Output = T>>(
    socket: OwnedFd,
    settings: endpoint::EndpointSettings,
    inside: impl FnOnce(polled::AsyncEndpoint) -> F,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let (endpoint, driver) = polled::AsyncEndpoint::join(socket, settings).await.unwrap();
        let driver = tokio::task::spawn_local(driver);
        let result = tokio::time::timeout(2 * TEST_TIMEOUT, inside(endpoint))
            .await
            .expect("it hangs");
        tokio::time::timeout(TEST_TIMEOUT, driver)
            .await
            .expect("the driver ends with its last handle")
            .unwrap()
            .unwrap();
        result
    })
}

/// A child that is killed at the end.
pub(crate) struct ChildProcess {
    pub(crate) child: Child,
    socket_path: PathBuf,
}

impl ChildProcess {
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket_path);
    }
}

/// Both have ended, and neither by a panic.
pub(crate) fn joined(threads: [JoinHandle<()>; 2]) {
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// Waits until a function can be called from here.
pub(crate) fn knows(endpoint: &mut blocking::BlockingEndpoint, name: &str) {
    eventually_blocking(&format!("{name} is known"), || {
        endpoint.callable_functions().contains(&function(name))
    });
}

pub(crate) async fn knows_async(endpoint: &polled::AsyncEndpoint, name: &str) {
    eventually(&format!("{name} is known"), async || {
        endpoint.has_function(&function(name))
    })
    .await;
}
