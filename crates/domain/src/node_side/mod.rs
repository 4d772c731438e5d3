//! The node's side of a domain: one task owns the pool and the channels, and executes the decisions
//! of the topology.
//!
//! Every endpoint's socket has a small task that reads and writes packets. An endpoint that does
//! not read its packets, or violates the protocol, is disconnected. All else happens in order in
//! the task of the domain.

mod actor;
mod call_counts;
mod connection;
mod delivery;
mod edge_counters;
mod endpoint_socket;
mod endpoint_state;
mod endpoint_waker;
mod pools;
mod stats;

use std::io;
use std::os::fd::OwnedFd;

use nearpath_shm::geometry::ClassSpec;
use nearpath_types::{FunctionId, InstanceId};
use tokio::sync::{mpsc, oneshot};

pub use call_counts::CallCounts;
pub use delivery::{DescriptorDelivery, SockmapExchange};
pub use edge_counters::{EDGE_RETENTION, EdgeCounters, MAX_COUNTER, MAX_PAST_EDGES};
pub use endpoint_socket::EndpointSocket;
pub use nearpath_shm::EndpointId;
pub use nearpath_shm::counters::{CounterReading, LATENCY_BUCKETS};
pub use nearpath_shm::region::PageKind;
pub use stats::{DomainMembership, FunctionUsage, PoolUsage, SharedStats};

pub use crate::protocol::DomainIsolation;

use crate::packet;
use crate::protocol::EdgeTerms;
use crate::topology::{EndpointOwner, FunctionEdge};
use actor::DomainActor;
use pools::DomainPools;

/// Configuration of a domain.
#[derive(Debug, Clone)]
pub struct DomainSettings {
    /// Name of the domain, for display.
    pub name: String,
    /// Size classes of the pool; in a strict domain, of each endpoint's own pool.
    pub classes: Vec<ClassSpec>,
    /// Page size of the pool.
    pub pages: PageKind,
    /// Maximum bytes of slots that one endpoint may hold.
    pub max_held_bytes: u64,
    /// Descriptors per ring.
    pub ring_capacity: u32,
    /// Maximum number of endpoints per instance.
    pub max_endpoints: usize,
    /// Delivery of descriptors.
    pub delivery: DescriptorDelivery,
    /// Isolation of the domain's memory.
    pub isolation: DomainIsolation,
}

impl DomainSettings {
    /// Default configuration: about 44 MB of address space, of which only used pages take memory.
    pub fn named(name: impl Into<String>) -> Self {
        let class = |size, count| ClassSpec { size, count };
        let sizes = vec![
            class(256, 4096),
            class(1024, 4096),
            class(4096, 2048),
            class(65_536, 256),
            class(1 << 20, 16),
        ];
        Self {
            name: name.into(),
            classes: sizes,
            pages: PageKind::Small,
            max_held_bytes: 16 << 20,
            ring_capacity: 256,
            max_endpoints: 64,
            delivery: DescriptorDelivery::Ring,
            isolation: DomainIsolation::Shared,
        }
    }

    /// Converts the configuration to a strict domain: one pool per endpoint, a quarter as large.
    pub fn into_strict(self) -> Self {
        let quarter = |size: &ClassSpec| ClassSpec {
            // A quarter: a strict domain has as many pools as endpoints.
            count: (size.count / 4).max(1),
            ..*size
        };
        Self {
            classes: self.classes.iter().map(quarter).collect(),
            isolation: DomainIsolation::Strict,
            ..self
        }
    }
}

/// A protocol violation; the instance counts as failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceFault {
    /// The instance; none for the gateway.
    pub instance: Option<InstanceId>,
    /// Description of the violation, for display.
    pub reason: String,
}

/// Process id of an instance's watchdog, in the PID namespace of the domain's process.
pub type WatchdogPid = u32;

enum DomainCommand {
    Declare(Vec<(FunctionEdge, EdgeTerms)>),
    Admit(EndpointOwner, Option<WatchdogPid>, EndpointSocket),
    Withdraw(InstanceId, oneshot::Sender<()>),
    Readmit(InstanceId),
    Remove(InstanceId),
    ReadEdges(oneshot::Sender<Vec<EdgeCounters>>),
    ReadUsage(oneshot::Sender<DomainUsage>),
    Stop(oneshot::Sender<()>),
}

/// Current usage of a domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DomainUsage {
    /// Live endpoints.
    pub endpoints: usize,
    /// Mapped channels.
    pub channels: usize,
    /// Slots in use.
    pub slots: u32,
    /// Bytes of these slots.
    pub bytes: u64,
}

/// Handle to a domain; clones share it. The domain ends with [`DomainHandle::stop`], or with the
/// last handle.
#[derive(Debug, Clone)]
pub struct DomainHandle {
    commands: mpsc::UnboundedSender<DomainCommand>,
}

impl DomainHandle {
    /// Creates the pool and starts the domain's task on the current runtime.
    pub fn start(
        settings: DomainSettings,
    ) -> io::Result<(Self, mpsc::UnboundedReceiver<InstanceFault>)> {
        Self::start_with(settings, &SharedStats::default())
    }

    /// As [`DomainHandle::start`], recording into `stats`, which may continue an earlier domain of
    /// that name.
    pub fn start_with(
        settings: DomainSettings,
        stats: &SharedStats,
    ) -> io::Result<(Self, mpsc::UnboundedReceiver<InstanceFault>)> {
        let pools = DomainPools::new(&settings)?;
        // Before the task starts: readers see the pool as soon as the handle exists.
        let writer = stats.begin_run(pools.clone(), settings.pages, settings.max_held_bytes);
        let (orders, inbox) = mpsc::unbounded_channel();
        let (faults, fault_inbox) = mpsc::unbounded_channel();
        tokio::spawn(DomainActor::new(settings, pools, writer, faults).run(inbox));
        Ok((Self { commands: orders }, fault_inbox))
    }

    /// Replaces all declared edges between functions.
    pub fn declare_edges(&self, edges: impl IntoIterator<Item = (FunctionId, FunctionId)>) {
        self.declare_edges_with(edges.into_iter().map(|edge| (edge, EdgeTerms::default())));
    }

    /// Replaces all declared edges, each with its terms. An edge without a callee leads to the gateway.
    pub fn declare_edges_with<Callee: Into<Option<FunctionId>>>(
        &self,
        edges: impl IntoIterator<Item = ((FunctionId, Callee), EdgeTerms)>,
    ) {
        let edges = edges.into_iter();
        let edges = edges.map(|((caller, callee), terms)| ((caller, callee.into()), terms));
        self.send_command(DomainCommand::Declare(edges.collect()));
    }

    /// Admits an instance. Its endpoints announce when they are ready.
    pub fn admit_instance(
        &self,
        instance: InstanceId,
        function: FunctionId,
        socket: EndpointSocket,
    ) {
        let owner = EndpointOwner::Instance(instance, function);
        self.send_command(DomainCommand::Admit(owner, None, socket));
    }

    /// As [`DomainHandle::admit_instance`]. Responses of the process `watchdog` may be errors of
    /// the platform; those of the instance's other processes are the function's own.
    pub fn admit_with_watchdog(
        &self,
        instance: InstanceId,
        function: FunctionId,
        watchdog: WatchdogPid,
        socket: EndpointSocket,
    ) {
        let owner = EndpointOwner::Instance(instance, function);
        self.send_command(DomainCommand::Admit(owner, Some(watchdog), socket));
    }

    /// Creates a connected socket for a gateway thread, which may call every function of the
    /// domain.
    pub fn gateway_socket(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = packet::socket_pair()?;
        self.send_command(DomainCommand::Admit(
            EndpointOwner::Gateway,
            None,
            EndpointSocket::Connected(ours),
        ));
        Ok(theirs)
    }

    /// Stops new calls to an instance. Returns when its open calls have ended, or the instance is
    /// gone.
    pub async fn withdraw_instance(&self, instance: InstanceId) {
        let (done, quiet) = oneshot::channel();
        self.send_command(DomainCommand::Withdraw(instance, done));
        // An error means that the domain ended, and the open calls with it.
        let _ = quiet.await;
    }

    /// Lets calls to a withdrawn instance go on.
    pub fn readmit_instance(&self, instance: InstanceId) {
        self.send_command(DomainCommand::Readmit(instance));
    }

    /// Removes a dead instance: closes its sockets and treats its endpoints as dead.
    pub fn remove_instance(&self, instance: InstanceId) {
        self.send_command(DomainCommand::Remove(instance));
    }

    /// Reads all edge counters; [`SharedStats::edge_counters`] does not wait for the domain's task.
    pub async fn read_edges(&self) -> Vec<EdgeCounters> {
        let (give, take) = oneshot::channel();
        self.send_command(DomainCommand::ReadEdges(give));
        take.await.unwrap_or_default()
    }

    /// Reads the usage of the domain. Reads every slot of the pool: for tests and diagnostics.
    pub async fn read_usage(&self) -> DomainUsage {
        let (give, take) = oneshot::channel();
        self.send_command(DomainCommand::ReadUsage(give));
        take.await.unwrap_or_default()
    }

    /// Stops the domain: closes all sockets and channels.
    pub async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        self.send_command(DomainCommand::Stop(done));
        let _ = stopped.await;
    }

    fn send_command(&self, order: DomainCommand) {
        // Fails when the task ended: then the domain has ended, too
        let _ = self.commands.send(order);
    }
}
