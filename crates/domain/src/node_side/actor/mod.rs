//! The task of a domain: it owns pool, wakeup cells and channels, and executes the decisions of the
//! topology.

mod channels;
mod connections;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::time::Duration;

use nearpath_shm::channel::ChannelState;
use nearpath_shm::{Channel, EndpointId};
use nearpath_types::InstanceId;
use nearpath_types::log_limiter::LogLimiter;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::connection::{ConnectionKey, OutboundPacket, SocketEvent};
use super::endpoint_state::EndpointState;
use super::pools::DomainPools;
use super::stats::StatsWriter;
use super::{
    DescriptorDelivery, DomainCommand, DomainSettings, DomainUsage, EndpointSocket, InstanceFault,
    SockmapExchange, WatchdogPid,
};
use crate::clock;
use crate::packet;
use crate::protocol::{EdgeTerms, NodeMessage};
use crate::topology::{DomainTopology, EndpointOwner, FunctionEdge};

/// A socket, and the endpoint that uses it.
#[derive(Debug)]
struct EndpointConnection {
    owner: EndpointOwner,
    /// The process that connected is the instance's watchdog.
    is_watchdog: bool,
    endpoint: Option<EndpointId>,
    outbound: mpsc::Sender<OutboundPacket>,
    /// All channels that the endpoint has been an end of.
    channels: BTreeSet<u32>,
}

/// A listener of an instance.
#[derive(Debug)]
struct AcceptTask {
    owner: EndpointOwner,
    watchdog: Option<WatchdogPid>,
    task: AbortHandle,
}

/// A mapped channel.
#[derive(Debug)]
struct MappedChannel {
    channel: Channel,
    caller: EndpointId,
    callee: EndpointId,
}

/// Actor of a domain; see the module documentation.
#[derive(Debug)]
pub(super) struct DomainActor {
    settings: DomainSettings,
    pools: DomainPools,
    stats: StatsWriter,
    topology: DomainTopology,
    connections: HashMap<ConnectionKey, EndpointConnection>,
    accept_tasks: HashMap<ConnectionKey, AcceptTask>,
    endpoints: HashMap<EndpointId, EndpointState>,
    channels: BTreeMap<u32, MappedChannel>,
    /// The declared edges.
    terms: HashMap<FunctionEdge, EdgeTerms>,
    quiet_waiters: HashMap<InstanceId, Vec<oneshot::Sender<()>>>,
    faults: mpsc::UnboundedSender<InstanceFault>,
    events: mpsc::Sender<SocketEvent>,
    event_inbox: Option<mpsc::Receiver<SocketEvent>>,
    last_key: ConnectionKey,
    /// Lines that endpoints cause, by instance; `None`: the gateway's threads.
    log_limiter: LogLimiter<Option<InstanceId>>,
    /// Connections whose packets pile up.
    slow_consumers: Vec<ConnectionKey>,
}

impl DomainActor {
    pub(super) fn new(
        settings: DomainSettings,
        pools: DomainPools,
        stats: StatsWriter,
        faults: mpsc::UnboundedSender<InstanceFault>,
    ) -> Self {
        let (events, inbox) = mpsc::channel(256);
        Self {
            settings,
            pools,
            stats,
            topology: DomainTopology::new(),
            connections: HashMap::new(),
            accept_tasks: HashMap::new(),
            endpoints: HashMap::new(),
            channels: BTreeMap::new(),
            terms: HashMap::new(),
            quiet_waiters: HashMap::new(),
            faults,
            events,
            event_inbox: Some(inbox),
            last_key: 0,
            log_limiter: LogLimiter::default(),
            slow_consumers: Vec::new(),
        }
    }

    pub(super) async fn run(mut self, mut orders: mpsc::UnboundedReceiver<DomainCommand>) {
        let Some(mut events) = self.event_inbox.take() else {
            return;
        };
        loop {
            // Disconnected here and not while sending: a removal performs actions, which send
            // again.
            while let Some(key) = self.slow_consumers.pop() {
                self.disconnect_faulty(key, "it does not read the node's packets".into());
            }
            let now = clock::monotonic_now();
            let tick = self
                .topology
                .next_tick(now)
                .map(|at| Duration::from_nanos(at.saturating_sub(now)));
            tokio::select! {
                // Events first: a command then acts on the endpoints that are really there.
                biased;
                Some(event) = events.recv() => self.handle_event(event),
                order = orders.recv() => match order {
                    Some(DomainCommand::Stop(done)) => {
                        self.close_all();
                        // Drops pools and statistics before the caller of `stop` goes on.
                        drop(self);
                        let _ = done.send(());
                        return;
                    }
                    Some(order) => self.handle_command(order),
                    // The last handle is gone: no further command can come.
                    None => return self.close_all(),
                },
                () = tokio::time::sleep(tick.unwrap_or_default()), if tick.is_some() => {
                    let actions = self.topology.tick(clock::monotonic_now());
                    self.perform_actions(actions);
                }
            }
        }
    }

    fn handle_command(&mut self, order: DomainCommand) {
        match order {
            DomainCommand::Declare(edges) => self.declare_edges(edges.into_iter().collect()),
            DomainCommand::Admit(who, watchdog, EndpointSocket::Connected(socket)) => {
                self.start_connection(who, watchdog, socket)
            }
            DomainCommand::Admit(who, watchdog, EndpointSocket::Listening(listener)) => {
                self.start_accepting(who, watchdog, listener)
            }
            DomainCommand::Withdraw(instance, done) => {
                self.quiet_waiters.entry(instance).or_default().push(done);
                let actions = self.topology.withdraw_instance(instance);
                self.perform_actions(actions);
                self.notify_if_empty(instance);
            }
            DomainCommand::Readmit(instance) => {
                let actions = self.topology.readmit_instance(instance);
                self.perform_actions(actions);
            }
            DomainCommand::Remove(instance) => self.remove_instance(instance),
            DomainCommand::ReadEdges(give) => drop(give.send(self.read_edges())),
            DomainCommand::ReadUsage(give) => drop(give.send(self.read_usage())),
            DomainCommand::Stop(_) => {} // handled by `run`
        }
    }

    /// Replaces the declared edges. A channel with changed terms is closed and reopened: an
    /// endpoint learns terms with its peer.
    fn declare_edges(&mut self, terms: HashMap<FunctionEdge, EdgeTerms>) {
        let changed = |edge: &FunctionEdge| {
            self.terms
                .get(edge)
                .is_some_and(|known| *known != terms[edge])
        };
        if terms.keys().any(changed) {
            let kept: Vec<FunctionEdge> = terms
                .keys()
                .filter(|edge| !changed(edge))
                .cloned()
                .collect();
            // Withdrawn first and declared again below: a channel cannot change its terms.
            let actions = self.topology.declare_edges(kept);
            self.perform_actions(actions);
        }
        let edges: Vec<FunctionEdge> = terms.keys().cloned().collect();
        self.terms = terms;
        let actions = self.topology.declare_edges(edges);
        self.perform_actions(actions);
    }

    fn next_key(&mut self) -> ConnectionKey {
        self.last_key += 1;
        self.last_key
    }

    fn sockmap_exchange(&self) -> Option<&dyn SockmapExchange> {
        match &self.settings.delivery {
            DescriptorDelivery::Sockmap(exchange) => Some(&**exchange),
            DescriptorDelivery::Ring | DescriptorDelivery::Poll => None,
        }
    }

    /// Sends a packet and notifies the cell. An endpoint that does not read is disconnected.
    fn send_on_connection(
        &mut self,
        key: ConnectionKey,
        message: &NodeMessage,
        descriptors: Vec<OwnedFd>,
    ) {
        let Some(connection) = self.connections.get(&key) else {
            return;
        };
        // Fails only for a message larger than a packet: the endpoint then misses one peer.
        let Ok(bytes) = packet::encode_message(message) else {
            return;
        };
        // None before the hello is accepted: until then the endpoint waits on its socket.
        let bell = connection
            .endpoint
            .and_then(|endpoint| self.endpoints.get(&endpoint))
            .map(EndpointState::endpoint_waker);
        if connection
            .outbound
            .try_send(OutboundPacket {
                bytes,
                descriptors,
                waker: bell,
            })
            .is_err()
        {
            self.slow_consumers.push(key);
        }
    }

    fn send_to_endpoint(
        &mut self,
        endpoint: EndpointId,
        message: &NodeMessage,
        descriptors: Vec<OwnedFd>,
    ) {
        if let Some(key) = self.endpoints.get(&endpoint).map(|state| state.key) {
            self.send_on_connection(key, message, descriptors);
        }
    }

    fn notify_quiet(&mut self, instance: InstanceId) {
        self.quiet_waiters
            .remove(&instance)
            .into_iter()
            .flatten()
            .for_each(|done| {
                let _ = done.send(());
            });
    }

    fn read_edges(&self) -> Vec<super::EdgeCounters> {
        self.stats.edge_counters()
    }

    fn read_usage(&self) -> DomainUsage {
        let mut usage = DomainUsage {
            endpoints: self.endpoints.len(),
            channels: self.channels.len(),
            ..DomainUsage::default()
        };
        self.pools.add_to_usage(&mut usage);
        usage
    }

    /// Ends the domain: breaks all channels, so that callers see it.
    fn close_all(&mut self) {
        self.accept_tasks
            .drain()
            .for_each(|(_, entrance)| entrance.task.abort());
        for line in self.channels.values() {
            // Endpoints outlive the domain: without this state callers would wait for ever.
            line.channel.close_with(ChannelState::Broken);
        }
        self.connections.clear();
        self.quiet_waiters.clear();
    }
}
