//! Starts the components in the order of their dependencies, serves, and stops them in the opposite
//! order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nearpath_ca::IssuerHandle;
use nearpath_controller::Controller;
use nearpath_daemon::admin::AdminServer;
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_daemon::ready::ProcessReadiness;
use nearpath_daemon::{drain, signals};
use nearpath_gateway::invoke::FunctionTable;
use nearpath_gateway::{GatewayControl, ServingThreads};
use nearpath_kernel::cgroup::{CgroupController, NodeCgroups};
use nearpath_kernel::sandbox::IsolationLevel;
use nearpath_node::{
    CallCounter, EdgeCallReader, IdentityService, Node, RunLock, SettleHook, WakeHook,
};
use nearpath_source::{SourceHandle, SourceSettings};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::autoscaling::{AutoscalerHandle, LoadReader, ScaleDriver};
use crate::control::{ControlHandle, PeerServer};
use crate::cpu_quota::GatewayCpu;
use crate::error::StartError;
use crate::fleet::LocalFleet;
use crate::handover::{InheritedSockets, OldProcess, SuccessorListener, UdpPort, wait_ready};
use crate::identity::NodeIssuer;
use crate::local_status::LocalStatus;
use crate::network::Network;
use crate::peers::{NodeDirectory, PeerService, RouteForwarder, RoutePeers, warn_unconnected};
use crate::resources::{self, Resources};
use crate::settings::{ServerSettings, available_cores};
use crate::{autoscaling, build, isolation, source_metrics};

/// Time between steering new connections here and stopping the old process.
///
/// The old process still accepts the first packets that are in its queues by then. Once it drains,
/// it would refuse them.
const STEERING_GRACE: Duration = Duration::from_millis(250);
/// Time after which a request that the gateway sent has reached its instance, even on an
/// overloaded machine.
///
/// A withdrawn instance closes its idle connections, so a request on its way would be lost. A
/// longer wait would only delay the stop of instances with long requests.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The running components.
struct Server {
    gateway_drain: drain::DrainTrigger,
    admin_drain: drain::DrainTrigger,
    serving: ServingThreads,
    cpu: Option<GatewayCpu>,
    node: Arc<Node>,
    controller: Controller,
    /// Applies changes of the folder to the controller; also the addresses of the other nodes.
    source: Option<SourceHandle>,
    /// Connections to the other nodes.
    peers: Option<PeerService>,
    successor_listener: Arc<SuccessorListener>,
    replaced: oneshot::Receiver<()>,
    /// Cgroup controllers that this machine lacks for instances.
    missing_controllers: Vec<CgroupController>,
    /// Holds the lock on this run's number in the data directory.
    _run: RunLock,
}

/// Runs a server until SIGTERM, SIGINT or a successor; `announce` is called once it serves,
/// with the isolation of instances and the limits that the machine cannot enforce.
///
/// Must be called while the process has one thread.
///
/// # Errors
/// When a component does not start, or the gateway fails.
pub fn run(
    settings: ServerSettings,
    announce: impl FnOnce(&ServerSettings, IsolationLevel, &[CgroupController]),
) -> Result<(), StartError> {
    resources::check_open_files(settings.threads.get())?;
    // Before the runtime: entering a user namespace needs a process with one thread.
    let isolation = isolation::set_up(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // Requests run on the gateway's own threads; these two serve controller, node and timers.
        .worker_threads(2)
        .thread_name("control")
        .enable_all()
        .build();
    let runtime = runtime.map_err(StartError::component("the control runtime"))?;
    runtime.block_on(async {
        // Before the start: a signal during it must end the process in order.
        let terminated = signals::listen_for_signals().map_err(StartError::component("signals"))?;
        let mut server = Server::start(&settings, isolation).await?;
        // After the start: what it prints is true only once calls are served.
        announce(&settings, isolation, &server.missing_controllers);
        let replaced = tokio::select! {
            () = terminated => false,
            Ok(()) = &mut server.replaced => true,
        };
        server.shut_down(replaced).await
    })
}

impl Server {
    #[expect(clippy::too_many_lines, reason = "the order of start-up in one place")]
    async fn start(
        settings: &ServerSettings,
        isolation: IsolationLevel,
    ) -> Result<Self, StartError> {
        let readiness = ProcessReadiness::default();
        // Held until the end of the start, so that /healthz is not ready before.
        let pending = readiness.add_pending("node");
        let resources = Resources::acquire(settings, isolation)?;
        let Resources {
            data_dir,
            run,
            listeners,
            device_sockets,
            admin,
            peer_port,
            network,
            old_process,
            for_successor,
        } = resources;

        let registry = MetricsRegistry::default();
        let control = ControlHandle::new(Handle::current());
        let gateway = build::gateway(settings, control.clone(), &registry)?;
        let published = watch::Sender::new(0);
        let settle = settle_hook(gateway.functions(), published.subscribe());
        let functions = gateway.functions();
        let call_counter = CallCounter::from_hook(move |id| functions.answered(id));
        let functions = gateway.functions();
        let gateway_calls = EdgeCallReader::from_hook(move || functions.edge_calls());
        let waker = Arc::downgrade(&control);
        let wake = WakeHook::from_hook(move |id| {
            if let Some(control) = waker.upgrade() {
                control.wake_function(id);
            }
        });
        let hooks = (settle, call_counter, wake);
        let config = build::node_config(settings, isolation, network.as_ref(), hooks)?;
        let config = nearpath_node::NodeConfig {
            gateway_calls,
            ..config
        };
        let node_id = config.node.clone();
        let (issuer, caller) =
            IssuerHandle::start(build::issuer_settings(settings, isolation, &node_id))?;
        let gateway = gateway.with_caller(caller);
        let own_name = settings.member_name().cloned();
        let peers = own_name.zip(peer_port.as_ref().map(|port| port.tls.clone()));
        let (handover, handed_over) = drain::channel();
        let peers = peers.map(|(own, tls)| PeerService::new(own, tls, handover));
        let gateway = match &peers {
            Some(peers) => gateway.with_node_caller(peers.caller()),
            None => gateway,
        };
        let config = match &peers {
            Some(peers) => nearpath_node::NodeConfig {
                direct_peers: peers.watch_direct_peers(),
                streams: peers.stream_hook(),
                ..config
            },
            None => config,
        };
        let authority = issuer.authority();
        let node = start_node(settings, config, issuer, &run, &registry).await?;
        let autoscaler = AutoscalerHandle::new(node.clone(), settings.member_name().cloned());
        autoscaling::register_collector(autoscaler.clone(), &registry);
        let fleet = LocalFleet {
            node: node.clone(),
            gateway: gateway.clone(),
            autoscaler: autoscaler.clone(),
            published: published.subscribe(),
            runtime: Handle::current(),
        };
        let forwarder = RouteForwarder {
            gateway: gateway.clone(),
            snapshots: node.watch_snapshots(),
            peers: match &peers {
                Some(peers) => peers.route_states(),
                None => RoutePeers::none(),
            },
            published,
        };
        tokio::spawn(forwarder.run());
        let status = LocalStatus {
            node: node.clone(),
            functions: gateway.functions(),
        };
        let config = build::controller_config(settings);
        let controller =
            Controller::open_claimed(data_dir, config, Arc::new(fleet), Arc::new(status)).await;
        let controller = controller.map_err(StartError::component("controller"))?;
        control.attach(controller.clone(), node.clone(), autoscaler.clone());
        let source = settings
            .source
            .as_ref()
            .map(|settings| start_source(settings, &controller, peers.as_ref()));
        if let Some((peers, source)) = peers.as_ref().zip(source.as_ref()) {
            control.attach_peers(PeerServer {
                states: peers.state_server(),
                queries: controller.build_node_router(),
                node: node.clone(),
                client: peers.client(),
            });
            peers.start(source.watch_nodes(), (&node, &gateway), &registry);
            if build::direct_ports(settings).is_some() {
                peers.start_direct(&node, authority);
            }
        }
        if let Some(source) = &source {
            source_metrics::register_collector(source.watch_status(), &registry);
        }

        let gateway = match settings
            .devices
            .listeners(device_sockets, &controller.logins())
        {
            Some(devices) => devices.attach(gateway, &registry),
            None => gateway,
        };
        let cgroup_name = nearpath_node::run_lock::run_name(&node_id, run.number());
        let mut cpu = GatewayCpu::create(settings.gateway_cpu, &cgroup_name)?;
        if old_process.is_some() {
            // The old process serves until then: a caller must never find fewer instances because
            // of the handover.
            wait_ready(&controller, &node, settings.member_name()).await;
        }
        let (gateway_drain, drain) = drain::channel();
        let enter = enter_thread(network, cpu.as_ref());
        let peer_listener = peer_port.map(|port| port.into_listener(handed_over));
        let listeners = listeners.into_iter().chain(peer_listener).collect();
        let serving = gateway.serve(listeners, settings.threads.get(), enter, drain);
        let serving = serving.map_err(StartError::component("gateway"))?;
        // Not before: a function must not sleep while the old process still gets its calls.
        let has_direct_nodes = build::direct_ports(settings).is_some();
        let reader = LoadReader::new(node.clone(), gateway.functions(), has_direct_nodes);
        tokio::spawn(ScaleDriver::new(autoscaler, reader).run());
        if let Some(cpu) = &mut cpu {
            cpu.start_scaler(
                &gateway,
                settings.threads.get().min(available_cores()),
                &registry,
            )?;
        }
        let (admin_drain, drain) = drain::channel();
        AdminServer {
            registry,
            readiness,
        }
        .serve(admin, drain)
        .map_err(StartError::component("--admin-listen"))?;
        let (successor_listener, replaced) =
            finish_handover(settings, old_process, for_successor, control, &node_id).await?;
        drop(pending);
        Ok(Self {
            gateway_drain,
            admin_drain,
            serving,
            cpu,
            node,
            controller,
            source,
            peers,
            successor_listener,
            replaced,
            missing_controllers: NodeCgroups::detect(&cgroup_name).missing_controllers(),
            _run: run,
        })
    }

    /// Stops callers first, so that nothing new comes in, then instances, and the store last.
    async fn shut_down(mut self, replaced: bool) -> Result<(), StartError> {
        match replaced {
            true => tracing::info!(
                "draining: another process has taken over, finishing running requests"
            ),
            false => {
                tracing::info!("draining: refusing new connections, finishing running requests")
            }
        }
        // Before the instances stop: a change must not start new ones.
        drop(self.source);
        if let Some(peers) = self.peers.as_mut() {
            match replaced {
                true => peers.hand_over().await,
                false => peers.begin_drain().await,
            }
        }
        let _udp_ports = self.successor_listener.close();
        self.node.close_idle_connections();
        // The admin port answers until the end, unless the successor's does.
        let mut admin = Some(self.admin_drain);
        if let Some(admin) = admin.take_if(|_| replaced) {
            tokio::spawn(admin.drain());
        }
        let cause = match replaced {
            true => drain::DrainCause::Replaced,
            false => drain::DrainCause::Stop,
        };
        self.gateway_drain.drain_because(cause).await;
        // Joining blocks, and the runtime still has the admin port to serve.
        let served = tokio::task::spawn_blocking(|| self.serving.join_all()).await;
        if let Some(cpu) = self.cpu {
            // After the threads have ended: a cgroup with threads cannot be removed.
            cpu.remove().await;
        }
        self.node.drain_and_stop().await;
        self.controller.close().await;
        if let Some(admin) = admin {
            admin.drain().await;
        }
        tracing::info!("stopped");
        served
            .unwrap_or_else(|_| Err(io::Error::other("a gateway thread panicked")))
            .map_err(StartError::component("gateway"))
    }
}

async fn start_node(
    settings: &ServerSettings,
    config: nearpath_node::NodeConfig,
    issuer: IssuerHandle,
    run: &RunLock,
    registry: &MetricsRegistry,
) -> Result<Arc<Node>, StartError> {
    nearpath_node::run_lock::sweep_ended_runs(&settings.data_dir, &config.node)
        .map_err(StartError::component("--data-dir"))?;
    let identities = IdentityService::from_issuer(Arc::new(NodeIssuer(issuer)));
    let config = nearpath_node::NodeConfig {
        identities,
        run_number: run.number(),
        ..config
    };
    let node = Node::start(config, registry).await;
    Ok(Arc::new(node.map_err(StartError::component("node"))?))
}

/// Starts the source, and gives the controller the nodes of its list.
fn start_source(
    settings: &SourceSettings,
    controller: &Controller,
    peers: Option<&PeerService>,
) -> SourceHandle {
    let source = SourceHandle::start(settings.clone(), controller.clone());
    if peers.is_none() {
        tokio::spawn(warn_unconnected(source.watch_nodes()));
    }
    let directory = NodeDirectory::new(settings, &source, peers);
    controller.attach_peers(Arc::new(directory));
    source
}

/// The function by which each gateway thread enters its network namespace and its cgroup.
fn enter_thread(
    network: Option<Network>,
    cpu: Option<&GatewayCpu>,
) -> Arc<dyn Fn() -> io::Result<()> + Send + Sync + 'static> {
    let join_cgroup = cpu.map(GatewayCpu::join_thread);
    Arc::new(move || {
        network.as_ref().map_or(Ok(()), Network::enter)?;
        join_cgroup.as_ref().map_or(Ok(()), |join| join())
    })
}

/// Takes over new connections, lets the old process exit, and waits for a successor from then on.
async fn finish_handover(
    settings: &ServerSettings,
    old_process: Option<OldProcess>,
    mut for_successor: InheritedSockets,
    control: Arc<ControlHandle>,
    node_id: &str,
) -> Result<(Arc<SuccessorListener>, oneshot::Receiver<()>), StartError> {
    if old_process.is_some() {
        let mut is_steered = false;
        for port in for_successor.udp_ports() {
            port.steer_to_self()
                .map_err(StartError::component("--take-over"))?;
            is_steered = true;
        }
        // Only with QUIC: TCP connections stay with the process that accepted them.
        if is_steered {
            tokio::time::sleep(STEERING_GRACE).await;
        }
    }
    if let Some(old_process) = old_process {
        let (data_dir, node_id) = (settings.data_dir.clone(), node_id.to_owned());
        old_process.finish(move || {
            if let Err(error) = nearpath_node::run_lock::sweep_ended_runs(&data_dir, &node_id) {
                tracing::warn!(%error, "handover: cannot remove files of the old process, the next start retries");
            }
        });
    }
    for_successor.udp_ports().for_each(UdpPort::reset_orphans);
    Ok(SuccessorListener::start(
        &settings.data_dir,
        for_successor,
        move || control.release_data_dir(),
    ))
}

/// A hook that waits until the gateway has taken over a snapshot, and the requests that it sent to
/// a withdrawn instance before have ended or arrived.
///
/// `published` is the version of the last snapshot that the gateway uses.
fn settle_hook(functions: FunctionTable, published: watch::Receiver<u64>) -> SettleHook {
    SettleHook::from_hook(move |version, instance| {
        let (functions, mut published) = (functions.clone(), published.clone());
        Box::pin(async move {
            // An error means that routing has ended.
            let _ = published.wait_for(|last| *last >= version).await;
            let _ = timeout(ARRIVAL_TIMEOUT, functions.wait_requests_ended(instance)).await;
        })
    })
}
