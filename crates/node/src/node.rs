//! The handle to the agent.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use nearpath_daemon::metrics::Registry;
use nearpath_domain::hub::Calls;
use nearpath_kernel::sandbox::{INIT_ARGUMENT, Isolation, Launcher};
use nearpath_pool::Pool;
use nearpath_types::chain::{EdgeStatus, MemoryStatus, NearCalls, PathStatus};
use nearpath_types::pool::PoolStatus;
use nearpath_types::status::Usage;
use nearpath_types::{Desired, Eip, FunctionId, LogLine, LogQuery, ObservedFunction, Snapshot};
use tokio::sync::{mpsc, oneshot, watch};

use crate::agent::{Agent, Command, Inbox, Lots, Premises, Publisher, Workshop};
use crate::artifact::Artifacts;
use crate::books::Books;
use crate::config::{Config, NodeError};
use crate::domains::Domains;
use crate::exchanges::Exchanges;
use crate::forwarding::Forwarding;
use crate::identities::Surroundings;
use crate::ids::{Eips, Ids};
use crate::instance::life::Tools;
use crate::logs::Logs;
use crate::machine::Machine;
use crate::machine::kernel::KernelMachine;
use crate::metrics::Metrics;
use crate::pool_metrics::PoolReport;
use crate::run::named;
use crate::{edge_metrics, paths};

/// A running node. Dropping it without [`Node::stop`] kills its instances.
#[derive(Debug)]
pub struct Node {
    desired: watch::Sender<Desired>,
    commands: mpsc::UnboundedSender<Command>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    observed: watch::Receiver<Arc<Vec<ObservedFunction>>>,
    logs: Logs,
    books: Books,
    pool: PoolReport,
}

impl Node {
    /// Sweeps what an earlier run left behind and starts the agent. Runs nothing until [`Node::apply`] is called for the
    /// first time. Needs a running runtime.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn start(config: Config, registry: &Registry) -> Result<Node, NodeError> {
        if config.isolation != Isolation::None && config.switch.is_none() {
            return Err(NodeError::NoSwitch(config.isolation));
        }
        let launcher = match &config.init {
            Some(program) => Launcher::with_program(program, [INIT_ARGUMENT]),
            None => Launcher::start(),
        };
        let launcher = launcher.map_err(NodeError::Launcher)?;
        let network = (config.gateway_ip, config.switch.clone());
        let mut machine =
            KernelMachine::new(launcher, &named(&config.node, config.run), config.isolation, &config.watchdog, network);
        if let Some(forwarder) = config.forwarder.clone() {
            machine = machine.forwarded(Forwarding::new(forwarder, Eip(config.gateway_ip), registry));
        }
        let logs = Logs::new(config.log_bound);
        if let Some(doorway) = config.doorway.clone() {
            let told = logs.clone();
            let tell = move |function: &_, instance, text| told.push(function, instance, format!("nearpath: {text}"));
            let pool = Pool::start(doorway, config.gateway_ip, Box::new(tell));
            machine = machine.going_out_by(pool.map_err(NodeError::Pool)?);
        }
        Self::start_with(Arc::new(machine), config, registry, logs).await
    }

    /// Like [`Node::start`], on any machine.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn start_on(machine: Arc<dyn Machine>, config: Config, registry: &Registry) -> Result<Node, NodeError> {
        let logs = Logs::new(config.log_bound);
        Self::start_with(machine, config, registry, logs).await
    }

    async fn start_with(
        machine: Arc<dyn Machine>,
        config: Config,
        registry: &Registry,
        logs: Logs,
    ) -> Result<Node, NodeError> {
        let opening = (machine.clone(), config.clone());
        let opened = tokio::task::spawn_blocking(move || open(&*opening.0, &opening.1)).await;
        let (ids, artifacts) = opened.expect("opening does not panic")?;
        let books = Books::default();
        edge_metrics::register(books.clone(), registry);
        let pool = PoolReport::register(machine.clone(), registry);
        let (events, heard) = mpsc::unbounded_channel();
        let gateway = (config.gateway_ip, config.gateway_port()).into();
        let (tmp, doors) = (config.own("tmp"), config.own("dispatch"));
        let premises = Premises { gateway_url: config.gateway_url, gateway, tmp };
        let (artifacts, identities) = (Arc::new(artifacts), config.identities);
        let publisher = Publisher::new();
        let (snapshots, observed) = (publisher.snapshots(), publisher.observed());
        let around = Surroundings { snapshots: snapshots.clone(), machine: machine.clone(), direct: books.direct() };
        let tools = Tools { machine, artifacts, identities, around, logs: logs.clone(), events };
        let domains = Domains::new(doors, books.clone(), Exchanges::new(registry));
        let workshop = Workshop::new(tools, premises, Lots::new(ids, Eips::around(config.gateway_ip)), domains);
        let (commands, obeyed) = mpsc::unbounded_channel();
        let (desired, wishes) = watch::channel(Desired::default());
        let agent = Agent::new(workshop, publisher, config.settle, Metrics::new(registry));
        tokio::spawn(agent.run(Inbox { desired: wishes, commands: obeyed, events: heard }));
        Ok(Node { desired, commands, snapshots, observed, logs, books, pool })
    }

    /// Says what should run: the whole truth, each time. Returns at once; the last call counts.
    pub fn apply(&self, desired: Desired) {
        self.desired.send_replace(desired);
    }

    /// Waits until what was applied last is published, and gives the version of that snapshot. At once when the node has
    /// stopped.
    pub async fn caught_up(&self) -> u64 {
        let (answer, version) = oneshot::channel();
        let _ = self.commands.send(Command::Version(answer)); // a stopped agent drops the answer
        version.await.unwrap_or_default()
    }

    /// What can be called, as it changes.
    pub fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.clone()
    }

    /// What there is, as it changes. A removed function is listed until its last instance is gone.
    pub fn observed(&self) -> watch::Receiver<Arc<Vec<ObservedFunction>>> {
        self.observed.clone()
    }

    /// For a thread of the gateway: a socket for each domain that there is and will be, to join it as a party.
    pub fn domains(&self) -> mpsc::UnboundedReceiver<OwnedFd> {
        let (give, take) = mpsc::unbounded_channel();
        let _ = self.commands.send(Command::Gateway(give)); // a stopped agent has no domains
        take
    }

    /// Lines that a function's instances wrote: first those kept, then, with `follow`, those that come. A reader that
    /// is too slow loses lines and is told how many. Needs a running runtime.
    pub fn logs(&self, query: LogQuery) -> mpsc::Receiver<LogLine> {
        self.logs.read(query)
    }

    /// What the edges of the chains counted in shared memory. Reads the counters of every open channel.
    pub fn edges(&self) -> Vec<EdgeStatus> {
        self.books.edges()
    }

    /// How often a function was called by other functions through shared memory, since the node began. Calls from the gateway
    /// are not in it.
    pub fn calls(&self, callee: &FunctionId) -> NearCalls {
        let Calls { ended, failed, open } = self.books.calls(callee);
        NearCalls { ended, failed, open }
    }

    /// Who holds how much of the chains' memory. Looks at every slot.
    pub fn memory(&self) -> Vec<MemoryStatus> {
        self.books.memory()
    }

    /// Which path a plain call takes along every edge, the gateway's included.
    pub fn paths(&self) -> Vec<PathStatus> {
        let snapshot = self.snapshots.borrow().clone();
        paths::matrix(&snapshot, &self.books.rolls(), self.books.ways())
    }

    /// How connections to destinations outside stand.
    pub fn pool(&self) -> Vec<PoolStatus> {
        self.pool.ask()
    }

    /// A call of a function has arrived whose egress declares reads (`prefetch`): they are issued now. Never waits.
    pub fn foresee(&self, function: &FunctionId) {
        self.pool.foresee(function);
    }

    /// The node is about to end: what it has open outside for nobody is closed, and nothing more is opened ahead. A successor has ceilings of its own,
    /// and opens connections of its own.
    pub fn rest(&self) {
        self.pool.rest();
    }

    /// What the instances of a function use together; zero where nobody counts.
    pub async fn usage(&self, id: &FunctionId) -> Usage {
        let (answer, usage) = oneshot::channel();
        let _ = self.commands.send(Command::Usage(id.clone(), answer)); // a stopped agent drops the answer
        usage.await.unwrap_or_default()
    }

    /// Drains all instances side by side and returns when nothing is left of them. Bounded by each instance's own limit
    /// (see [`crate::instance::variables::stop_limit`]).
    pub async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        let _ = self.commands.send(Command::Stop(done));
        let _ = stopped.await; // an agent that is gone has nothing left
    }
}

/// Everything on the disk and the machine that has to be in order first. Blocks.
fn open(machine: &dyn Machine, config: &Config) -> Result<(Ids, Artifacts), NodeError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| NodeError::DataDir { path, error }
    };
    let (ids, artifacts, tmp) =
        (config.data_dir.join("instance-ids"), config.data_dir.join("artifacts"), config.own("tmp"));
    fs::create_dir_all(&tmp).map_err(failed(&tmp))?;
    machine.sweep().map_err(NodeError::Sweep)?;
    fs::remove_dir_all(&tmp).map_err(failed(&tmp))?;
    let _ = fs::remove_dir_all(config.own("dispatch")); // doors into a run that is over
    let artifacts = Artifacts::open(artifacts.clone(), config.artifact_limit).map_err(failed(&artifacts))?;
    Ok((Ids::open(ids.clone()).map_err(failed(&ids))?, artifacts))
}
