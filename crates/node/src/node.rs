//! The handle to the agent.

use std::fs;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_domain::node_side::CallCounts;
use nearpath_egress::EgressHandle;
use nearpath_kernel::cgroup::{NodeCgroups, SocketGroup};
use nearpath_kernel::hub_netns::HubNetns;
use nearpath_kernel::sandbox::{InstanceLauncher, IsolationLevel, ZygoteProgram};
use nearpath_types::chain_status::DirectCallCounts;
use nearpath_types::direct::DirectInstances;
use nearpath_types::status::UsageStatus;
use nearpath_types::{
    DesiredState, Eip, FunctionId, FunctionMap, InnerListener, LogLine, LogQuery, NodeName,
    NodeStreamRequest, ObservedFunction, PlatformError, Reason, RoutingSnapshot,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::agent::{
    AgentCommand, AgentInputs, Allocations, InstanceDefaults, InstanceFactory, NodeAgent,
    StatePublisher,
};
use crate::allocators::{EipAllocator, InstanceIdAllocator};
use crate::artifact::{ArtifactHold, ArtifactStore};
use crate::config::{EdgeCallReader, NodeConfig, NodeError, WakeHook};
use crate::domain_stats::DomainStats;
use crate::domains::DomainRegistry;
use crate::edge_metrics;
use crate::forwarding::NodeForwarder;
use crate::gateway_threads::GatewayThreads;
use crate::identity::{DirectRegistry, IdentityContext};
use crate::instance::chain;
use crate::instance::lifecycle::LifecycleContext;
use crate::logs::LogStore;
use crate::loopback_metrics;
use crate::machine::InstanceMachine;
use crate::machine::kernel::KernelMachine;
use crate::metrics::NodeMetrics;
use crate::placement::placer::Placer;
use crate::pool_metrics::PoolReport;
use crate::run_lock::run_name;
use crate::sockmap_routers::SockmapRouters;
use crate::virtual_switch::remote::{
    self, AcceptedStream, StreamAcceptor, StreamCounts, StreamHook,
};
use crate::virtual_switch::{
    self, DatagramForwarder, IndexedSnapshots, InstanceConnector, NodeSwitch, SwitchReport,
    WakeProxy, log_denials,
};

/// Opens the group of all sockets of instances, where a virtual switch is possible: it needs root on the
/// machine, and replaces a forwarder.
fn open_socket_group(config: &NodeConfig, cgroups: &NodeCgroups) -> Option<SocketGroup> {
    if config.isolation != IsolationLevel::Root || config.forwarder.is_some() {
        return None;
    }
    let group = SocketGroup::open(cgroups);
    group.inspect_err(log_no_switch).ok()
}

fn zygote_program(config: &NodeConfig, group: Option<&SocketGroup>) -> ZygoteProgram {
    let program = config.init_program.as_ref().map(ZygoteProgram::at);
    ZygoteProgram {
        cgroup: group.and_then(SocketGroup::zygote_group),
        ..program.unwrap_or_default()
    }
}

fn log_no_switch(error: &io::Error) {
    tracing::warn!(%error, "virtual addresses are unavailable on this machine: functions call each other over HTTP and shared memory only; see `nearpath doctor`");
}

/// A running node. Dropping it without [`Node::drain_and_stop`] kills its instances.
#[derive(Debug)]
pub struct Node {
    desired: watch::Sender<DesiredState>,
    commands: mpsc::UnboundedSender<AgentCommand>,
    pub(crate) watch_snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    watch_observed: watch::Receiver<FunctionMap<ObservedFunction>>,
    read_logs: LogStore,
    artifacts: Arc<ArtifactStore>,
    pub(crate) stats: DomainStats,
    pub(crate) switch_report: SwitchReport,
    pub(crate) pool_report: PoolReport,
    gateway_threads: GatewayThreads,
    direct_instances: watch::Receiver<Arc<DirectInstances>>,
    /// `None`: instances have no network of their own.
    stream_acceptor: Option<StreamAcceptor>,
    pub(crate) stream_counts: StreamCounts,
}

impl Node {
    /// Sweeps what an earlier run left behind and starts the agent. Runs nothing until
    /// [`Node::apply_desired`] is called for the first time. Needs a running runtime.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn start(config: NodeConfig, registry: &MetricsRegistry) -> Result<Node, NodeError> {
        if config.isolation != IsolationLevel::None && config.hub.is_none() {
            return Err(NodeError::NoHub(config.isolation));
        }
        let run_name = run_name(&config.node, config.run_number);
        let cgroups = NodeCgroups::detect(&run_name);
        let group = open_socket_group(&config, &cgroups);
        let zygote = zygote_program(&config, group.as_ref());
        let launcher = InstanceLauncher::start(zygote).map_err(NodeError::Launcher)?;
        let network = (config.gateway_ip, config.hub.clone());
        let mut machine = KernelMachine::new(
            launcher,
            cgroups,
            config.isolation,
            &config.watchdog,
            network,
        );
        let mut absent = None;
        if let Some((group, hub)) = group.zip(config.hub.as_ref()) {
            let local_gateway = chain::gateway_listener(config.gateway_addr());
            let attached = NodeSwitch::attach(&group, hub, local_gateway);
            let (switch, opened) = attached.inspect_err(log_no_switch).ok().unzip();
            machine = machine.with_switch(group, switch);
            absent = opened;
        }
        machine = machine.with_shared_dirs(config.shared_dirs.clone());
        if let Some(forwarder) = config.forwarder.clone() {
            machine = machine.with_forwarder(NodeForwarder::new(
                forwarder,
                Eip(config.gateway_ip),
                registry,
            ));
        }
        if let Some(ports) = config.direct_ports.clone() {
            machine = machine.with_direct_ports(ports);
        }
        let logs = open_logs(&config);
        if let Some(egress_listener) = config.egress_listener.clone() {
            let notice_logs = logs.clone();
            let push_notice = move |function: &_, instance, text| {
                notice_logs.push_line(function, instance, format!("nearpath: {text}"))
            };
            let pool =
                EgressHandle::start(egress_listener, config.gateway_ip, Box::new(push_notice));
            machine = machine.with_pool(
                pool.map_err(NodeError::EgressPool)?,
                config.run_path("trust"),
            );
        }
        let (hub, wake, switch) = (config.hub.clone(), config.wake.clone(), machine.switch());
        let streams = config.streams.clone();
        let mut node = Self::start_with_logs(Arc::new(machine), config, registry, logs).await?;
        if let Some(hub) = hub {
            let connector =
                InstanceConnector::new(hub.clone(), node.watch_snapshots(), wake.clone());
            let (connections, datagrams) = absent
                .map(|absent| (absent.connections, absent.datagrams))
                .unzip();
            let snapshots = IndexedSnapshots::new(node.watch_snapshots());
            let proxied = connections.map(|listener| (listener, snapshots.clone()));
            node.serve_connections(connector, streams, proxied, registry);
            node.serve_datagrams(hub, datagrams.unwrap_or_default(), snapshots, wake);
        }
        node.serve_switch(switch, registry);
        Ok(node)
    }

    /// Serves connections to virtual addresses: those of other nodes, and those of instances here,
    /// which a listener accepts.
    fn serve_connections(
        &mut self,
        connector: InstanceConnector,
        streams: StreamHook,
        proxied: Option<(TcpListener, IndexedSnapshots)>,
        registry: &MetricsRegistry,
    ) {
        let counts = self.stream_counts.clone();
        remote::register_collector(counts.clone(), self.watch_snapshots(), registry);
        if let Some((listener, snapshots)) = proxied {
            let proxy = WakeProxy::new(snapshots, connector.clone(), streams, counts.clone());
            tokio::spawn(proxy.serve(listener));
        }
        self.stream_acceptor = Some(StreamAcceptor::new(connector, counts));
    }

    /// Connects a stream of another node to an instance here, and wakes its function if none is ready. `lost`
    /// ends when that node is not reachable any more.
    ///
    /// # Errors
    /// The reason of a refusal. No instance has seen the connection then.
    pub async fn accept_stream(
        &self,
        node: &NodeName,
        request: NodeStreamRequest,
        lost: BoxFuture<'static, ()>,
    ) -> Result<AcceptedStream, PlatformError> {
        match &self.stream_acceptor {
            Some(acceptor) => acceptor.accept(node, request, lost).await,
            None => {
                let why = "instances of this node have no network of their own";
                Err(PlatformError::new(remote::COMPONENT, Reason::NotHere, why))
            }
        }
    }

    /// Serves datagrams to virtual addresses without a ready instance here.
    fn serve_datagrams(
        &mut self,
        hub: Arc<HubNetns>,
        sockets: Vec<UdpSocket>,
        snapshots: IndexedSnapshots,
        wake: WakeHook,
    ) {
        if sockets.is_empty() {
            return;
        }
        let forwarder = DatagramForwarder::new(hub, snapshots, wake);
        self.switch_report = self
            .switch_report
            .clone()
            .with_datagrams(forwarder.report());
        tokio::spawn(forwarder.serve(sockets));
    }

    /// Reports what the switch counts and denies.
    fn serve_switch(&mut self, switch: Option<NodeSwitch>, registry: &MetricsRegistry) {
        let events = switch.as_ref().and_then(NodeSwitch::take_events);
        self.switch_report = self.switch_report.clone().with_switch(switch);
        virtual_switch::register_collector(self.switch_report.clone(), registry);
        if let Some(events) = events {
            tokio::spawn(log_denials(events, self.switch_report.clone()));
        }
    }

    /// Like [`Node::start`], on any machine.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn start_on_machine(
        machine: Arc<dyn InstanceMachine>,
        config: NodeConfig,
        registry: &MetricsRegistry,
    ) -> Result<Node, NodeError> {
        let logs = open_logs(&config);
        Self::start_with_logs(machine, config, registry, logs).await
    }

    async fn start_with_logs(
        machine: Arc<dyn InstanceMachine>,
        config: NodeConfig,
        registry: &MetricsRegistry,
        logs: LogStore,
    ) -> Result<Node, NodeError> {
        let opening = (machine.clone(), config.clone());
        // On a blocking thread: it sweeps cgroups and reads the whole store.
        let opened =
            tokio::task::spawn_blocking(move || open_data_dir(&*opening.0, &opening.1)).await;
        let (ids, artifacts) = opened.expect("opening does not panic")?;
        let (stats, pool) = register_reports(&machine, config.gateway_calls.clone(), registry);
        let (events, event_receiver) = mpsc::unbounded_channel();
        let (defaults, dispatch) = (instance_defaults(&config), config.run_path("dispatch"));
        let (artifacts, identities) = (Arc::new(artifacts), config.identities);
        let publisher = StatePublisher::new();
        let snapshots = publisher.subscribe_snapshots();
        let observed = publisher.subscribe_observed();
        let addresses = publisher.subscribe_addresses();
        let direct = DirectRegistry::new(config.direct_peers);
        let direct_instances = direct.watch_own();
        let identity_context = IdentityContext {
            direct,
            snapshots: snapshots.clone(),
            machine: machine.clone(),
            direct_stats: stats.direct_stats(),
        };
        let gateway_threads = GatewayThreads::default();
        let lifecycle_context = LifecycleContext {
            machine,
            artifacts: Arc::clone(&artifacts),
            identities,
            identity_context,
            gateway_threads: gateway_threads.clone(),
            logs: logs.clone(),
            events,
        };
        let domains = DomainRegistry::new(dispatch, stats.clone(), SockmapRouters::new(registry));
        let factory = InstanceFactory::new(
            lifecycle_context,
            defaults,
            Allocations::new(ids, EipAllocator::around_gateway(config.gateway_ip)),
            domains,
        );
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let (desired, desired_receiver) = watch::channel(DesiredState::default());
        let placer = Placer::new(config.call_counter, stats.clone(), gateway_threads.clone());
        let agent = NodeAgent::new(
            factory,
            publisher,
            config.settle,
            config.member_name,
            placer,
            NodeMetrics::new(registry),
        );
        tokio::spawn(agent.run(AgentInputs {
            desired: desired_receiver,
            commands: command_receiver,
            events: event_receiver,
        }));
        Ok(Node {
            desired,
            commands,
            switch_report: SwitchReport::new(None, snapshots.clone(), addresses),
            watch_snapshots: snapshots,
            watch_observed: observed,
            read_logs: logs,
            artifacts,
            stats,
            pool_report: pool,
            gateway_threads,
            direct_instances,
            stream_acceptor: None,
            stream_counts: StreamCounts::default(),
        })
    }

    /// Applies the complete desired state. Returns at once; the last call counts. Only what differs
    /// from the state before costs time, if this one was made from it.
    pub fn apply_desired(&self, desired: DesiredState) {
        // `send` would fail and drop the value once the agent has ended.
        self.desired.send_replace(desired);
    }

    /// Waits until the last applied state is published. Returns the version of that snapshot, and
    /// returns at once when the node has stopped.
    pub async fn wait_published(&self) -> u64 {
        let (answer, version) = oneshot::channel();
        // A stopped agent drops the answer.
        let _ = self.commands.send(AgentCommand::WaitPublished(answer));
        version.await.unwrap_or_default()
    }

    /// Returns the routing snapshots as they change.
    pub fn watch_snapshots(&self) -> watch::Receiver<Arc<RoutingSnapshot>> {
        self.watch_snapshots.clone()
    }

    /// Returns the instances that watchdogs of other nodes may call, as they change.
    pub fn watch_direct_instances(&self) -> watch::Receiver<Arc<DirectInstances>> {
        self.direct_instances.clone()
    }

    /// Returns the observed functions as they change. A removed function is listed until its last
    /// instance is gone.
    pub fn watch_observed(&self) -> watch::Receiver<FunctionMap<ObservedFunction>> {
        self.watch_observed.clone()
    }

    /// Returns sockets for one gateway thread: one for each present and future domain, which the
    /// thread joins as an endpoint.
    pub fn gateway_sockets(&self) -> mpsc::UnboundedReceiver<OwnedFd> {
        let (give, take) = mpsc::unbounded_channel();
        // A stopped agent has no domains.
        let _ = self.commands.send(AgentCommand::AddGatewayThread(give));
        take
    }

    /// Returns listeners for the calling thread of the gateway: its share of those inside instances.
    /// The thread may be kept on the processor of its chains.
    pub fn inner_listeners(&self) -> mpsc::UnboundedReceiver<InnerListener> {
        self.gateway_threads.add_current()
    }

    /// Returns lines that a function's instances wrote: first the stored ones, then, with `follow`,
    /// new ones. A slow reader loses lines and gets their number. Needs a running runtime.
    pub fn read_logs(&self, query: LogQuery) -> mpsc::Receiver<LogLine> {
        self.read_logs.read_lines(query)
    }

    /// Keeps the copies of all deployed folders while the value lives, also replaced ones.
    pub fn hold_artifacts(&self) -> ArtifactHold {
        self.artifacts.hold_copies()
    }

    /// Returns the calls of a function by other functions through shared memory, since the node
    /// began. Calls of the gateway are not included.
    pub fn call_totals(&self, callee: &FunctionId) -> DirectCallCounts {
        let CallCounts {
            ended,
            failed,
            open,
        } = self.stats.call_totals(callee);
        DirectCallCounts {
            ended,
            failed,
            open,
        }
    }

    /// Issues the declared reads (`prefetch`) of a function that was called. Never waits.
    pub fn prefetch(&self, function: &FunctionId) {
        self.pool_report.prefetch(function);
    }

    /// Closes idle connections to destinations outside and opens none ahead: the node is shutting
    /// down. A successor has its own limits and connections.
    pub fn close_idle_connections(&self) {
        self.pool_report.close_idle_connections();
    }

    /// Sums the usage of a function's instances; zero without accounting.
    pub async fn read_usage(&self, id: &FunctionId) -> UsageStatus {
        let (answer, usage) = oneshot::channel();
        // A stopped agent drops the answer.
        let _ = self.commands.send(AgentCommand::Usage(id.clone(), answer));
        usage.await.unwrap_or_default()
    }

    /// Drains all instances side by side and returns when nothing is left of them. Bounded by each
    /// instance's own limit (see [`crate::instance::variables::stop_timeout`]).
    pub async fn drain_and_stop(&self) {
        let (done, stopped) = oneshot::channel();
        let _ = self.commands.send(AgentCommand::Stop(done));
        let _ = stopped.await; // an agent that is gone has nothing left
    }
}

/// Registers what the machine and its domains count.
fn register_reports(
    machine: &Arc<dyn InstanceMachine>,
    gateway_calls: EdgeCallReader,
    registry: &MetricsRegistry,
) -> (DomainStats, PoolReport) {
    let stats = DomainStats::new(gateway_calls);
    edge_metrics::register_collector(stats.clone(), registry);
    loopback_metrics::register_collector(machine.clone(), registry);
    let pool = PoolReport::register(machine.clone(), registry);
    (stats, pool)
}

fn instance_defaults(config: &NodeConfig) -> InstanceDefaults {
    InstanceDefaults {
        gateway_url: config.gateway_url.clone(),
        gateway: config.gateway_addr(),
        tmp_dir: config.run_path("tmp"),
        limits: config.default_limits.clone(),
    }
}

fn open_logs(config: &NodeConfig) -> LogStore {
    let logs = LogStore::new(config.log_bound);
    match config.log_files {
        Some(bound) => logs.with_files(config.data_dir.join("logs"), bound),
        None => logs,
    }
}

/// Prepares the data directory and removes leftovers. Blocks.
fn open_data_dir(
    machine: &dyn InstanceMachine,
    config: &NodeConfig,
) -> Result<(InstanceIdAllocator, ArtifactStore), NodeError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| NodeError::DataDir { path, error }
    };
    let (ids, artifacts, tmp) = (
        config.data_dir.join("instance-ids"),
        config.data_dir.join("artifacts"),
        config.run_path("tmp"),
    );
    fs::create_dir_all(&tmp).map_err(failed(&tmp))?;
    // Before the folders: a process that still runs would write into them again.
    machine.sweep_leftovers().map_err(NodeError::Sweep)?;
    // Files of instances that were killed; `create_dir_all` above makes this succeed on a first
    // start.
    fs::remove_dir_all(&tmp).map_err(failed(&tmp))?;
    let _ = fs::remove_dir_all(config.run_path("dispatch")); // sockets of a run that is over
    let artifacts = ArtifactStore::open(artifacts.clone(), config.artifact_limit)
        .map_err(failed(&artifacts))?
        .with_shared_dirs(config.shared_dirs.clone());
    let artifacts = match config.isolation {
        IsolationLevel::None => artifacts.without_shared_files(),
        _ => artifacts,
    };
    Ok((
        InstanceIdAllocator::open(ids.clone()).map_err(failed(&ids))?,
        artifacts,
    ))
}
