//! Builds the parts in the order in which they depend on each other, lives until a signal, and takes them down in the
//! opposite order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nearpath_controller::Controller;
use nearpath_daemon::admin::Admin;
use nearpath_daemon::metrics::Registry;
use nearpath_daemon::ready::Readiness;
use nearpath_daemon::{drain, signals};
use nearpath_gateway::{Gateway, Serving};
use nearpath_node::{Identities, Node, Run, Settle};
use tokio::sync::{oneshot, watch};

use super::cpu::Cpu;
use super::desk::{FrontDesk, Machine};
use super::footing::Footing;
use super::network::Network;
use super::plan::{Plan, UpError, cores};
use super::succession::{Estate, Heirs, Predecessor, risen};
use super::{banner, identity, parts};

/// Between steering newcomers elsewhere and telling the old process to end: it takes the first packets that are in its queues by then, which it
/// would refuse afterwards.
const SETTLE: Duration = Duration::from_millis(250);

/// Everything that lives until the end.
struct House {
    gateway: drain::Trigger,
    admin: drain::Trigger,
    serving: Serving,
    cpu: Option<Cpu>,
    node: Arc<Node>,
    controller: Controller,
    heirs: Arc<Heirs>,
    succeeded: oneshot::Receiver<()>,
    _run: Run,
}

/// Builds the house, lives in it until SIGTERM, SIGINT or a successor, and takes it down.
pub(super) fn live(plan: Plan) -> Result<(), UpError> {
    let control =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("control").enable_all().build();
    let control = control.map_err(UpError::part("the control runtime"))?;
    control.block_on(async {
        let told = signals::listen().map_err(UpError::part("signals"))?;
        let mut house = House::build(plan).await?;
        let succeeded = tokio::select! {
            () = told => false,
            Ok(()) = &mut house.succeeded => true,
        };
        house.take_down(succeeded).await
    })
}

impl House {
    async fn build(plan: Plan) -> Result<Self, UpError> {
        let readiness = Readiness::default();
        let pending = readiness.pending("node");
        let Footing { folder, run, listeners, adapters, admin, network, predecessor, estate } = Footing::find(&plan)?;

        let registry = Registry::default();
        let desk = FrontDesk::new(tokio::runtime::Handle::current());
        let (settle, published) = settle();
        let config = parts::node_config(&plan, network.as_ref(), settle.clone())?;
        let (issuer, caller) = identity::open(parts::identity_terms(&plan, &config))?;
        nearpath_node::run::sweep(&plan.data_dir, &config.node).map_err(UpError::part("--data-dir"))?;
        let config = nearpath_node::Config { identities: Identities::from(issuer), run: run.number(), ..config };
        let gateway = parts::gateway(&plan, desk.clone(), &registry)?.with_caller(caller);
        let id = config.node.clone();
        let name = nearpath_node::run::named(&config.node, run.number());
        let node = Node::start(config, &registry).await;
        let node = Arc::new(node.map_err(UpError::part("node"))?);
        tokio::spawn(forward_snapshots(node.clone(), gateway.clone(), published));

        let control = tokio::runtime::Handle::current();
        let fleet = Arc::new(Machine { node: node.clone(), gateway: gateway.clone(), settle, control });
        let controller = Controller::open_in(folder, parts::controller_config(&plan), fleet).await;
        let controller = controller.map_err(UpError::part("controller"))?;
        desk.seat(controller.clone(), node.clone());

        let (trigger, drain) = drain::channel();
        let mut cpu = Cpu::new(plan.gateway_cpu, &name)?;
        let join = cpu.as_ref().map(Cpu::enter);
        let enter = move || {
            network.as_ref().map_or(Ok(()), Network::enter)?;
            join.as_ref().map_or(Ok(()), |join| join())
        };
        let gateway = match plan.adapters.adapters(adapters, controller.credentials()) {
            Some(adapters) => gateway.with_adapters(adapters, &registry),
            None => gateway,
        };
        if predecessor.is_some() {
            risen(&controller, &node).await;
        }
        let serving =
            gateway.serve(listeners, plan.threads, Arc::new(enter), drain).map_err(UpError::part("gateway"))?;
        if let Some(cpu) = &mut cpu {
            cpu.begin(&gateway, plan.threads.min(cores()), &registry)?;
        }
        let (admin_trigger, admin_drain) = drain::channel();
        Admin { registry, readiness }.serve(admin, admin_drain).map_err(UpError::part("--admin-listen"))?;
        let (heirs, succeeded) = succeed(&plan, predecessor, estate, &desk, &id).await?;
        drop(pending);
        banner::print(&plan, &controller);
        let (gateway, admin) = (trigger, admin_trigger);
        Ok(Self { gateway, admin, serving, cpu, node, controller, heirs, succeeded, _run: run })
    }

    /// Callers first, so that nothing new comes in; then instances; the store last. The operator may look until the end, or at the
    /// successor.
    async fn take_down(self, succeeded: bool) -> Result<(), UpError> {
        match succeeded {
            true => tracing::info!("another process has taken over: running requests go on, nothing new comes"),
            false => tracing::info!("draining: new connections are refused, running requests go on"),
        }
        let _port = self.heirs.close();
        self.node.rest();
        let mut admin = Some(self.admin);
        if let Some(admin) = admin.take_if(|_| succeeded) {
            tokio::spawn(admin.drain());
        }
        self.gateway.drain().await;
        let served = tokio::task::spawn_blocking(|| self.serving.join()).await;
        if let Some(cpu) = self.cpu {
            cpu.end().await;
        }
        self.node.stop().await;
        self.controller.close().await;
        if let Some(admin) = admin {
            admin.drain().await;
        }
        tracing::info!("down");
        served.unwrap_or_else(|_| Err(io::Error::other("its end panicked"))).map_err(UpError::part("gateway"))
    }
}

/// Everything serves: newcomers are to come here, and the process before may end. From now on this one may be succeeded, too.
async fn succeed(
    plan: &Plan,
    predecessor: Option<Predecessor>,
    mut estate: Estate,
    desk: &Arc<FrontDesk>,
    node: &str,
) -> Result<(Arc<Heirs>, oneshot::Receiver<()>), UpError> {
    if let (Some(port), true) = (&mut estate.port, predecessor.is_some()) {
        port.steer().map_err(UpError::part("--take-over"))?;
        tokio::time::sleep(SETTLE).await;
    }
    if let Some(predecessor) = predecessor {
        let (data_dir, node) = (plan.data_dir.clone(), node.to_owned());
        predecessor.go(move || {
            if let Err(error) = nearpath_node::run::sweep(&data_dir, &node) {
                tracing::warn!(%error, "what the process that was taken over from left is left to the next start");
            }
        });
    }
    if let Some(port) = &mut estate.port {
        port.mourn();
    }
    let desk = desk.clone();
    Ok(Heirs::wait(&plan.data_dir, estate, move || desk.release()))
}

/// The node tells instances to stop only after the gateway has taken over the snapshot that withdraws them.
fn settle() -> (Settle, watch::Sender<u64>) {
    let published = watch::Sender::new(0);
    let seen = published.clone();
    let hook = Settle::when(move |version| {
        let mut seen = seen.subscribe();
        Box::pin(async move {
            let _ = seen.wait_for(|last| *last >= version).await; // the sender is gone: nobody routes any more
        })
    });
    (hook, published)
}

async fn forward_snapshots(node: Arc<Node>, gateway: Gateway, published: watch::Sender<u64>) {
    let mut snapshots = node.snapshots();
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        gateway.publish(&snapshot);
        published.send_replace(snapshot.version);
        if snapshots.changed().await.is_err() {
            return;
        }
    }
}
