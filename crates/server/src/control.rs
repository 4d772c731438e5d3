//! The gateway's view of controller and node.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::future::BoxFuture;
use http::{Request, Response};
use nearpath_controller::Controller;
use nearpath_controller::api::ApiRouter;
use nearpath_gateway::{GatewayControl, NodeResponse};
use nearpath_internode::protocol::STREAM_PATH;
use nearpath_internode::{PeerClient, StateServer};
use nearpath_kernel::cores::{self, OwnThread};
use nearpath_kernel::namespace::open_tcp_socket_in;
use nearpath_node::Node;
use nearpath_types::chain_status::DirectCallCounts;
use nearpath_types::{DesiredFunction, FunctionId, InnerListener, NodeName};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tower::ServiceExt;

use crate::autoscaling::AutoscalerHandle;
use crate::peers::respond_stream;

/// Passes the gateway's requests to controller and node, which are attached after the gateway was
/// built.
pub(crate) struct ControlHandle {
    controller: OnceLock<Controller>,
    /// Routes of the API, built once: a build costs more than most requests.
    router: OnceLock<ApiRouter>,
    node: OnceLock<Arc<Node>>,
    autoscaler: OnceLock<Arc<AutoscalerHandle>>,
    /// Functions woken since the store was released to a successor; `None` while the store is open.
    woken_after_release: Mutex<Option<BTreeSet<FunctionId>>>,
    /// Service for other nodes; unset: this node knows no others.
    peers: OnceLock<PeerServer>,
    /// The machine's network namespace, which gateway threads leave.
    machine_netns: Option<File>,
    runtime: Handle,
    /// Processors that this process may use.
    allowed_cpus: Vec<usize>,
}

impl ControlHandle {
    /// Creates a handle without controller and node. `runtime` serves the administrator's requests.
    pub(crate) fn new(runtime: Handle) -> Arc<Self> {
        let (controller, router, node, woken_after_release) = Default::default();
        Arc::new(Self {
            controller,
            router,
            node,
            autoscaler: OnceLock::new(),
            woken_after_release,
            peers: OnceLock::new(),
            machine_netns: File::open("/proc/thread-self/ns/net").ok(),
            runtime,
            allowed_cpus: cores::allowed_cpus().unwrap_or_default(),
        })
    }

    /// Attaches controller, node and autoscalers; only the first call counts.
    pub(crate) fn attach(
        &self,
        controller: Controller,
        node: Arc<Node>,
        autoscaler: Arc<AutoscalerHandle>,
    ) {
        let _ = self.router.set(controller.build_router());
        let _ = self.controller.set(controller);
        let _ = self.node.set(node);
        let _ = self.autoscaler.set(autoscaler);
    }

    /// Attaches the service for other nodes; only the first call counts.
    pub(crate) fn attach_peers(&self, peers: PeerServer) {
        let _ = self.peers.set(peers);
    }

    /// Closes the store and unlocks the data directory for a successor, while calls continue.
    ///
    /// Blocks; must not run on a thread of the runtime.
    pub(crate) fn release_data_dir(&self) {
        // Before the store is closed: no wake-up may fall between the two.
        self.woken().get_or_insert_default();
        if let Some(controller) = self.controller.get() {
            self.runtime.block_on(controller.close());
        }
    }

    /// Wakes a function without the store. Returns false while the store is open.
    fn wake_after_release(&self, function: &FunctionId, controller: &Controller) -> bool {
        // Held until the node has the order: two calls must not both start an instance.
        let mut woken = self.woken();
        let Some(woken) = woken.as_mut() else {
            return false;
        };
        if woken.insert(function.clone())
            && let Some(autoscaler) = self.autoscaler.get()
        {
            // The closed controller still knows the last committed state; only what was woken since
            // is missing there.
            let mut desired = controller.model().desired_state();
            for id in woken.iter() {
                let asleep = desired.functions.get(id).filter(|one| one.replicas == 0);
                if let Some(asleep) = asleep.cloned() {
                    let awake = DesiredFunction {
                        replicas: 1,
                        ..DesiredFunction::clone(&asleep)
                    };
                    desired.functions.insert(id.clone(), awake);
                }
            }
            autoscaler.apply_desired(desired);
        }
        true
    }

    fn woken(&self) -> MutexGuard<'_, Option<BTreeSet<FunctionId>>> {
        self.woken_after_release
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl GatewayControl for ControlHandle {
    fn wake_function(&self, function: &FunctionId) {
        // Its replicas are not in the store, so the controller knows nothing of its sleep.
        let autoscaler = self.autoscaler.get();
        if autoscaler.is_some_and(|autoscaler| autoscaler.wake(function)) {
            return;
        }
        if let Some(controller) = self.controller.get()
            && !self.wake_after_release(function, controller)
        {
            controller.wake_function(function);
        }
    }

    fn note_call(&self, function: &FunctionId) {
        self.node
            .get()
            .into_iter()
            .for_each(|node| node.prefetch(function));
    }

    fn handle_admin(
        &self,
        request: Request<nearpath_wire::Body>,
    ) -> BoxFuture<'static, Response<nearpath_wire::Body>> {
        // The handle exists before the controller, which in turn needs the gateway.
        let Some(router) = self.router.get().cloned() else {
            return Box::pin(std::future::ready(draining_response()));
        };
        // A gateway thread must not run it: a long administrative request would delay that thread's
        // calls.
        let response = self
            .runtime
            .spawn(async move { router.oneshot(request).await });
        Box::pin(async move {
            match response.await {
                Ok(Ok(response)) => response.map(nearpath_wire::Body::boxed),
                Ok(Err(never)) => match never {},
                Err(_) => draining_response(), // the runtime is shutting down
            }
        })
    }

    fn open_machine_socket(&self, is_ipv6: bool) -> io::Result<OwnedFd> {
        let netns = self.machine_netns.as_ref();
        let netns = netns.ok_or_else(|| io::Error::other("the machine's network is not known"))?;
        open_tcp_socket_in(netns, is_ipv6)
    }

    fn handle_node(
        &self,
        node: &NodeName,
        request: Request<nearpath_wire::Body>,
    ) -> BoxFuture<'static, NodeResponse> {
        let Some(peers) = self.peers.get().cloned() else {
            return Box::pin(std::future::ready(draining_response().into()));
        };
        let (node, runtime) = (node.clone(), self.runtime.clone());
        // On the runtime: its state streams have tasks there, and queries must not delay calls.
        let response = runtime.spawn(async move { peers.respond(&node, request).await });
        Box::pin(async move {
            response
                .await
                .unwrap_or_else(|_| draining_response().into())
        })
    }

    fn near_calls(&self, function: &FunctionId) -> DirectCallCounts {
        self.node
            .get()
            .map(|node| node.call_totals(function))
            .unwrap_or_default()
    }

    fn function_at(&self, address: Ipv4Addr) -> Option<FunctionId> {
        self.node.get().and_then(|node| node.function_at(address))
    }

    fn set_batch_policy(&self, is_batch: bool) {
        cores::set_own_batch_policy(is_batch);
    }

    fn prepare_disk_thread(&self) {
        cores::set_own_batch_policy(false);
        let _ = OwnThread::current().set_affinity(&self.allowed_cpus, None); // only speed depends on it
    }

    fn domain_sockets(&self) -> Option<mpsc::UnboundedReceiver<OwnedFd>> {
        self.node.get().map(|node| node.gateway_sockets())
    }

    fn inner_listeners(&self) -> Option<mpsc::UnboundedReceiver<InnerListener>> {
        self.node.get().map(|node| node.inner_listeners())
    }
}

/// Service for other nodes.
#[derive(Clone)]
pub(crate) struct PeerServer {
    /// State of this node.
    pub(crate) states: StateServer,
    /// Queries about this node.
    pub(crate) queries: ApiRouter,
    /// Node with the instances that streams go to.
    pub(crate) node: Arc<Node>,
    /// Knows which nodes are reachable.
    pub(crate) client: PeerClient,
}

impl PeerServer {
    async fn respond(self, node: &NodeName, request: Request<nearpath_wire::Body>) -> NodeResponse {
        let path = request.uri().path();
        if path == STREAM_PATH {
            return respond_stream(&self.node, &self.client, node, request).await;
        }
        if StateServer::has_path(path) {
            return self.states.respond(node, request).await.into();
        }
        match self.queries.oneshot(request).await {
            Ok(response) => response.map(nearpath_wire::Body::boxed).into(),
            Err(never) => match never {},
        }
    }
}

fn draining_response() -> Response<nearpath_wire::Body> {
    let mut response = Response::new(nearpath_wire::Body::from(
        "controller: draining: no changes are accepted now\n",
    ));
    *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
    response
}
