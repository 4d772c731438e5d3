//! Where gateway, node and controller meet. None of them knows the others; each is given one of these.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use nearpath_controller::{Controller, Fleet};
use nearpath_gateway::{Control, Gateway};
use nearpath_node::{Node, Settle};
use nearpath_types::chain::{EdgeStatus, MemoryStatus, NearCalls, PathStatus};
use nearpath_types::pool::PoolStatus;
use nearpath_types::status::Usage;
use nearpath_types::{Desired, FunctionId, LogLine, LogQuery, ObservedFunction};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tower::ServiceExt;

/// What the gateway may ask of the rest of the house. The others move in after the gateway is built.
pub(super) struct FrontDesk {
    controller: OnceLock<Controller>,
    /// Functions that had to be woken after the store was given away; `None`: it was not.
    alone: Mutex<Option<BTreeSet<FunctionId>>>,
    node: OnceLock<Arc<Node>>,
    control: Handle,
}

impl FrontDesk {
    /// An empty desk; `control` is the runtime on which the administrator's requests are answered.
    pub(super) fn new(control: Handle) -> Arc<Self> {
        Arc::new(Self { controller: OnceLock::new(), alone: Mutex::default(), node: OnceLock::new(), control })
    }

    /// Controller and node move in. Second ones would be a fault of the caller and are ignored.
    pub(super) fn seat(&self, controller: Controller, node: Arc<Node>) {
        let _ = self.controller.set(controller);
        let _ = self.node.set(node);
    }

    /// Takes no more orders and lets go of the data directory, for a successor. Calls go on. Blocks; for a thread that is not a runtime's.
    pub(super) fn release(&self) {
        self.alone().get_or_insert_default();
        if let Some(controller) = self.controller.get() {
            self.control.block_on(controller.close());
        }
    }

    /// Wakes a function without the controller, whose last word is known.
    fn wake_alone(&self, function: &FunctionId, controller: &Controller) -> bool {
        let mut alone = self.alone();
        let Some(woken) = alone.as_mut() else { return false };
        if woken.insert(function.clone())
            && let Some(node) = self.node.get()
        {
            let mut desired = controller.model().desired();
            let asleep = desired.functions.iter_mut().filter(|one| one.replicas == 0 && woken.contains(&one.spec.id()));
            asleep.for_each(|one| one.replicas = 1);
            node.apply(desired);
        }
        true
    }

    fn alone(&self) -> MutexGuard<'_, Option<BTreeSet<FunctionId>>> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control for FrontDesk {
    fn wake(&self, function: &FunctionId) {
        if let Some(controller) = self.controller.get()
            && !self.wake_alone(function, controller)
        {
            controller.wake(function);
        }
    }

    fn called(&self, function: &FunctionId) {
        self.node.get().into_iter().for_each(|node| node.foresee(function));
    }

    fn admin(&self, request: Request<nearpath_wire::Body>) -> BoxFuture<'static, Response<nearpath_wire::Body>> {
        let Some(controller) = self.controller.get() else {
            return Box::pin(std::future::ready(unavailable()));
        };
        let router = controller.router();
        let answer = self.control.spawn(async move { router.oneshot(request).await });
        Box::pin(async move {
            match answer.await {
                Ok(Ok(response)) => response.map(nearpath_wire::Body::boxed),
                Ok(Err(never)) => match never {},
                Err(_) => unavailable(), // the control runtime is shutting down
            }
        })
    }

    fn near_calls(&self, function: &FunctionId) -> NearCalls {
        self.node.get().map(|node| node.calls(function)).unwrap_or_default()
    }

    fn domains(&self) -> Option<mpsc::UnboundedReceiver<OwnedFd>> {
        self.node.get().map(|node| node.domains())
    }
}

fn unavailable() -> Response<nearpath_wire::Body> {
    let mut response = Response::new(nearpath_wire::Body::from("controller: draining: not taking orders now\n"));
    *response.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// What the controller may ask of the machine.
pub(super) struct Machine {
    pub(super) node: Arc<Node>,
    pub(super) gateway: Gateway,
    pub(super) settle: Settle,
    pub(super) control: Handle,
}

/// An order is answered after this even when the gateway has not heard of it.
const PATIENCE: Duration = Duration::from_secs(2);

impl Fleet for Machine {
    /// Returns when the gateway knows: who deploys and calls at once finds the function.
    fn apply(&self, desired: Desired) {
        self.node.apply(desired);
        let known = async { self.settle.settled(self.node.caught_up().await).await };
        let late = self.control.block_on(async { tokio::time::timeout(PATIENCE, known).await.is_err() });
        if late {
            tracing::warn!(?PATIENCE, "the gateway has not taken over a change yet");
        }
    }

    fn observed(&self) -> Arc<Vec<ObservedFunction>> {
        self.node.observed().borrow().clone()
    }

    fn logs(&self, query: LogQuery) -> mpsc::Receiver<LogLine> {
        self.node.logs(query)
    }

    fn usage(&self, id: FunctionId) -> BoxFuture<'static, Usage> {
        let node = Arc::clone(&self.node);
        Box::pin(async move { node.usage(&id).await })
    }

    fn invocations(&self, id: &FunctionId) -> u64 {
        self.gateway.invocations(id).saturating_add(self.node.calls(id).ended)
    }

    fn edges(&self) -> Vec<EdgeStatus> {
        self.node.edges()
    }

    fn memory(&self) -> Vec<MemoryStatus> {
        self.node.memory()
    }

    fn paths(&self) -> Vec<PathStatus> {
        self.node.paths()
    }

    fn pool(&self) -> Vec<PoolStatus> {
        self.node.pool()
    }
}
