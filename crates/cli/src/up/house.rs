//! Builds the parts in the order in which they depend on each other, lives until a signal, and takes them down in the
//! opposite order.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use nearpath_controller::{Controller, DataDir};
use nearpath_daemon::admin::Admin;
use nearpath_daemon::metrics::Registry;
use nearpath_daemon::ready::Readiness;
use nearpath_daemon::{drain, signals};
use nearpath_gateway::{Gateway, Listener, Serving};
use nearpath_node::{Identities, Node, Settle};
use tokio::sync::watch;

use super::cpu::Cpu;
use super::desk::{FrontDesk, Machine};
use super::network::Network;
use super::plan::{Plan, UpError, cores};
use super::{adapters, banner, identity, parts, sockets};

/// Everything that lives until the end.
struct House {
    gateway: drain::Trigger,
    admin: drain::Trigger,
    serving: Serving,
    cpu: Option<Cpu>,
    node: Arc<Node>,
    controller: Controller,
}

/// Builds the house, lives in it until SIGTERM or SIGINT, and takes it down.
pub(super) fn live(plan: Plan) -> Result<(), UpError> {
    let control =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("control").enable_all().build();
    let control = control.map_err(UpError::part("the control runtime"))?;
    control.block_on(async {
        let told = signals::listen().map_err(UpError::part("signals"))?;
        let house = House::build(plan).await?;
        told.await;
        house.take_down().await
    })
}

/// What callers come in by. All of it is opened before anything runs, so that a port that is taken ends the start at once.
struct Doors {
    listeners: Vec<Listener>,
    adapters: adapters::Sockets,
    admin: TcpListener,
    network: Option<Network>,
}

impl Doors {
    fn open(plan: &Plan) -> Result<Self, UpError> {
        let mut listeners = sockets::public(plan)?;
        let adapters = plan.adapters.bind()?;
        let admin = TcpListener::bind(plan.admin_listen);
        let admin = admin.map_err(UpError::listen("--admin-listen", plan.admin_listen))?;
        let network = Network::create(plan)?;
        listeners.extend(network.as_ref().map(|network| network.inner(plan.threads)).transpose()?);
        Ok(Self { listeners, adapters, admin, network })
    }
}

/// What runs behind them: the node, the controller, and the gateway, which does not serve yet.
struct Rooms {
    name: String,
    node: Arc<Node>,
    gateway: Gateway,
    controller: Controller,
}

impl Rooms {
    async fn furnish(
        plan: &Plan,
        folder: DataDir,
        network: Option<&Network>,
        registry: &Registry,
    ) -> Result<Self, UpError> {
        let desk = FrontDesk::new(tokio::runtime::Handle::current());
        let (settle, published) = settle();
        let config = parts::node_config(plan, network, settle.clone())?;
        let (issuer, caller) = identity::open(parts::identity_terms(plan, &config))?;
        let config = nearpath_node::Config { identities: Identities::from(issuer), ..config };
        let gateway = parts::gateway(plan, desk.clone(), registry)?.with_caller(caller);
        let name = config.node.clone();
        let node = Node::start(config, registry).await;
        let node = Arc::new(node.map_err(UpError::part("node"))?);
        tokio::spawn(forward_snapshots(node.clone(), gateway.clone(), published));

        let control = tokio::runtime::Handle::current();
        let fleet = Arc::new(Machine { node: node.clone(), gateway: gateway.clone(), settle, control });
        let controller = Controller::open_in(folder, parts::controller_config(plan), fleet).await;
        let controller = controller.map_err(UpError::part("controller"))?;
        desk.seat(controller.clone(), node.clone());
        Ok(Self { name, node, gateway, controller })
    }
}

/// The gateway as it serves.
struct Front {
    trigger: drain::Trigger,
    serving: Serving,
    cpu: Option<Cpu>,
}

impl Front {
    fn open(
        plan: &Plan,
        rooms: &Rooms,
        (listeners, adapters): (Vec<Listener>, adapters::Sockets),
        network: Option<Network>,
        registry: &Registry,
    ) -> Result<Self, UpError> {
        let (trigger, drain) = drain::channel();
        let mut cpu = Cpu::new(plan.gateway_cpu, &rooms.name)?;
        let join = cpu.as_ref().map(Cpu::enter);
        let enter = move || {
            network.as_ref().map_or(Ok(()), Network::enter)?;
            join.as_ref().map_or(Ok(()), |join| join())
        };
        let gateway = rooms.gateway.clone();
        let gateway = match plan.adapters.adapters(adapters, rooms.controller.credentials()) {
            Some(adapters) => gateway.with_adapters(adapters, registry),
            None => gateway,
        };
        let serving = gateway.serve(listeners, plan.threads, Arc::new(enter), drain);
        let serving = serving.map_err(UpError::part("gateway"))?;
        if let Some(cpu) = &mut cpu {
            cpu.begin(&gateway, plan.threads.min(cores()), registry)?;
        }
        Ok(Self { trigger, serving, cpu })
    }
}

impl House {
    async fn build(plan: Plan) -> Result<Self, UpError> {
        let (readiness, registry) = (Readiness::default(), Registry::default());
        let pending = readiness.pending("node");
        let folder = DataDir::claim(&plan.data_dir).map_err(UpError::part("--data-dir"))?;
        let Doors { listeners, adapters, admin: socket, network } = Doors::open(&plan)?;
        let rooms = Rooms::furnish(&plan, folder, network.as_ref(), &registry).await?;
        let front = Front::open(&plan, &rooms, (listeners, adapters), network, &registry)?;
        let (admin, admin_drain) = drain::channel();
        Admin { registry, readiness }.serve(socket, admin_drain).map_err(UpError::part("--admin-listen"))?;
        drop(pending);
        banner::print(&plan, &rooms.controller);
        let (Rooms { node, controller, .. }, Front { trigger: gateway, serving, cpu }) = (rooms, front);
        Ok(Self { gateway, admin, serving, cpu, node, controller })
    }

    /// Callers first, so that nothing new comes in; then instances; the store last.
    async fn take_down(self) -> Result<(), UpError> {
        tracing::info!("draining: new connections are refused, running requests go on");
        self.gateway.drain().await;
        let served = tokio::task::spawn_blocking(|| self.serving.join()).await;
        if let Some(cpu) = self.cpu {
            cpu.end().await;
        }
        self.node.stop().await;
        self.controller.close().await;
        self.admin.drain().await;
        tracing::info!("down");
        served.unwrap_or_else(|_| Err(io::Error::other("its end panicked"))).map_err(UpError::part("gateway"))
    }
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
