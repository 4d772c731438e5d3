//! The handle to the agent.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_domain::node_side::CallCounts;
use nearpath_egress::EgressHandle;
use nearpath_kernel::sandbox::{INIT_ARGUMENT, InstanceLauncher, IsolationLevel};
use nearpath_types::chain_status::DirectCallCounts;
use nearpath_types::status::UsageStatus;
use nearpath_types::{
    DesiredState, Eip, FunctionId, LogLine, LogQuery, ObservedFunction, RoutingSnapshot,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::agent::{
    AgentCommand, AgentInputs, Allocations, InstanceDefaults, InstanceFactory, NodeAgent,
    StatePublisher,
};
use crate::allocators::{EipAllocator, InstanceIdAllocator};
use crate::artifact::ArtifactStore;
use crate::config::{NodeConfig, NodeError};
use crate::domain_stats::DomainStats;
use crate::domains::DomainRegistry;
use crate::edge_metrics;
use crate::forwarding::NodeForwarder;
use crate::identity::IdentityContext;
use crate::instance::lifecycle::LifecycleContext;
use crate::logs::LogStore;
use crate::machine::InstanceMachine;
use crate::machine::kernel::KernelMachine;
use crate::metrics::NodeMetrics;
use crate::pool_metrics::PoolReport;
use crate::run_lock::run_name;
use crate::sockmap_routers::SockmapRouters;

/// A running node. Dropping it without [`Node::drain_and_stop`] kills its instances.
#[derive(Debug)]
pub struct Node {
    desired: watch::Sender<DesiredState>,
    commands: mpsc::UnboundedSender<AgentCommand>,
    pub(crate) watch_snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    watch_observed: watch::Receiver<Arc<Vec<ObservedFunction>>>,
    read_logs: LogStore,
    pub(crate) stats: DomainStats,
    pub(crate) pool_report: PoolReport,
}

impl Node {
    /// Sweeps what an earlier run left behind and starts the agent. Runs nothing until [`Node::apply_desired`] is called for the
    /// first time. Needs a running runtime.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn start(config: NodeConfig, registry: &MetricsRegistry) -> Result<Node, NodeError> {
        if config.isolation != IsolationLevel::None && config.hub.is_none() {
            return Err(NodeError::NoHub(config.isolation));
        }
        let launcher = match &config.init_program {
            Some(program) => InstanceLauncher::start_with_program(program, [INIT_ARGUMENT]),
            None => InstanceLauncher::start(),
        };
        let launcher = launcher.map_err(NodeError::Launcher)?;
        let network = (config.gateway_ip, config.hub.clone());
        let mut machine = KernelMachine::new(
            launcher,
            &run_name(&config.node, config.run_number),
            config.isolation,
            &config.watchdog,
            network,
        );
        if let Some(forwarder) = config.forwarder.clone() {
            machine = machine.with_forwarder(NodeForwarder::new(
                forwarder,
                Eip(config.gateway_ip),
                registry,
            ));
        }
        let logs = LogStore::new(config.log_bound);
        if let Some(doorway) = config.egress_listener.clone() {
            let told = logs.clone();
            let tell = move |function: &_, instance, text| {
                told.push_line(function, instance, format!("nearpath: {text}"))
            };
            let pool = EgressHandle::start(doorway, config.gateway_ip, Box::new(tell));
            machine = machine.with_pool(pool.map_err(NodeError::EgressPool)?);
        }
        Self::start_with_logs(Arc::new(machine), config, registry, logs).await
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
        let logs = LogStore::new(config.log_bound);
        Self::start_with_logs(machine, config, registry, logs).await
    }

    async fn start_with_logs(
        machine: Arc<dyn InstanceMachine>,
        config: NodeConfig,
        registry: &MetricsRegistry,
        logs: LogStore,
    ) -> Result<Node, NodeError> {
        let opening = (machine.clone(), config.clone());
        let opened =
            tokio::task::spawn_blocking(move || open_data_dir(&*opening.0, &opening.1)).await;
        let (ids, artifacts) = opened.expect("opening does not panic")?;
        let books = DomainStats::default();
        edge_metrics::register_collector(books.clone(), registry);
        let pool = PoolReport::register(machine.clone(), registry);
        let (events, heard) = mpsc::unbounded_channel();
        let gateway = (config.gateway_ip, config.gateway_port()).into();
        let (tmp, doors) = (config.run_path("tmp"), config.run_path("dispatch"));
        let premises = InstanceDefaults {
            gateway_url: config.gateway_url,
            gateway,
            tmp_dir: tmp,
        };
        let (artifacts, identities) = (Arc::new(artifacts), config.identities);
        let publisher = StatePublisher::new();
        let (snapshots, observed) = (
            publisher.subscribe_snapshots(),
            publisher.subscribe_observed(),
        );
        let around = IdentityContext {
            snapshots: snapshots.clone(),
            machine: machine.clone(),
            direct_stats: books.direct_stats(),
        };
        let tools = LifecycleContext {
            machine,
            artifacts,
            identities,
            identity_context: around,
            logs: logs.clone(),
            events,
        };
        let domains = DomainRegistry::new(doors, books.clone(), SockmapRouters::new(registry));
        let workshop = InstanceFactory::new(
            tools,
            premises,
            Allocations::new(ids, EipAllocator::around_gateway(config.gateway_ip)),
            domains,
        );
        let (commands, obeyed) = mpsc::unbounded_channel();
        let (desired, wishes) = watch::channel(DesiredState::default());
        let agent = NodeAgent::new(
            workshop,
            publisher,
            config.settle,
            NodeMetrics::new(registry),
        );
        tokio::spawn(agent.run(AgentInputs {
            desired: wishes,
            commands: obeyed,
            events: heard,
        }));
        Ok(Node {
            desired,
            commands,
            watch_snapshots: snapshots,
            watch_observed: observed,
            read_logs: logs,
            stats: books,
            pool_report: pool,
        })
    }

    /// Says what should run: the whole truth, each time. Returns at once; the last call counts.
    pub fn apply_desired(&self, desired: DesiredState) {
        self.desired.send_replace(desired);
    }

    /// Waits until what was applied last is published, and gives the version of that snapshot. At once when the node has
    /// stopped.
    pub async fn wait_published(&self) -> u64 {
        let (answer, version) = oneshot::channel();
        let _ = self.commands.send(AgentCommand::WaitPublished(answer)); // a stopped agent drops the answer
        version.await.unwrap_or_default()
    }

    /// What can be called, as it changes.
    pub fn watch_snapshots(&self) -> watch::Receiver<Arc<RoutingSnapshot>> {
        self.watch_snapshots.clone()
    }

    /// What there is, as it changes. A removed function is listed until its last instance is gone.
    pub fn watch_observed(&self) -> watch::Receiver<Arc<Vec<ObservedFunction>>> {
        self.watch_observed.clone()
    }

    /// For a thread of the gateway: a socket for each domain that there is and will be, to join it as a party.
    pub fn gateway_sockets(&self) -> mpsc::UnboundedReceiver<OwnedFd> {
        let (give, take) = mpsc::unbounded_channel();
        let _ = self.commands.send(AgentCommand::AddGatewayThread(give)); // a stopped agent has no domains
        take
    }

    /// Lines that a function's instances wrote: first those kept, then, with `follow`, those that come. A reader that
    /// is too slow loses lines and is told how many. Needs a running runtime.
    pub fn read_logs(&self, query: LogQuery) -> mpsc::Receiver<LogLine> {
        self.read_logs.read_lines(query)
    }

    /// How often a function was called by other functions through shared memory, since the node began. Calls from the gateway
    /// are not in it.
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

    /// A call of a function has arrived whose egress declares reads (`prefetch`): they are issued now. Never waits.
    pub fn prefetch(&self, function: &FunctionId) {
        self.pool_report.prefetch(function);
    }

    /// The node is about to end: what it has open outside for nobody is closed, and nothing more is opened ahead. A successor has ceilings of its own,
    /// and opens connections of its own.
    pub fn close_idle_connections(&self) {
        self.pool_report.close_idle_connections();
    }

    /// What the instances of a function use together; zero where nobody counts.
    pub async fn read_usage(&self, id: &FunctionId) -> UsageStatus {
        let (answer, usage) = oneshot::channel();
        let _ = self.commands.send(AgentCommand::Usage(id.clone(), answer)); // a stopped agent drops the answer
        usage.await.unwrap_or_default()
    }

    /// Drains all instances side by side and returns when nothing is left of them. Bounded by each instance's own limit
    /// (see [`crate::instance::variables::stop_timeout`]).
    pub async fn drain_and_stop(&self) {
        let (done, stopped) = oneshot::channel();
        let _ = self.commands.send(AgentCommand::Stop(done));
        let _ = stopped.await; // an agent that is gone has nothing left
    }
}

/// Everything on the disk and the machine that has to be in order first. Blocks.
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
    machine.sweep_leftovers().map_err(NodeError::Sweep)?;
    fs::remove_dir_all(&tmp).map_err(failed(&tmp))?;
    let _ = fs::remove_dir_all(config.run_path("dispatch")); // doors into a run that is over
    let artifacts = ArtifactStore::open(artifacts.clone(), config.artifact_limit)
        .map_err(failed(&artifacts))?;
    Ok((
        InstanceIdAllocator::open(ids.clone()).map_err(failed(&ids))?,
        artifacts,
    ))
}
