//! The task that owns the node's state.
//!
//! It receives the desired state and events, calls [`crate::reconcile::plan`] for each function
//! that they concern, and publishes the result. Only then does it act on withdrawn instances. Slow work
//! happens in the instances' own tasks.

mod allocations;
mod commands;
mod function_changes;
mod function_state;
mod instance_events;
mod instance_factory;
mod instance_record;
mod instance_table;
mod placed_groups;
mod plan_steps;
mod publisher;
mod retry_queue;
mod switch_rows;
mod withdrawal;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Instant;

use nearpath_types::egress::EgressPlacements;
use nearpath_types::{DesiredState, FunctionId, NodeName, Revision};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep_until;

use crate::config::SettleHook;
use crate::identity::DirectCallers;
use crate::instance::lifecycle::InstanceEvent;
use crate::metrics::NodeMetrics;
use crate::placement::placer::{PLACEMENT_INTERVAL, Placer};
use crate::virtual_switch::SwitchTable;
use instance_table::InstanceTable;
use publisher::FunctionStates;
use retry_queue::RetryQueue;

pub(crate) use allocations::Allocations;
pub(crate) use commands::AgentCommand;
pub(crate) use instance_factory::{InstanceDefaults, InstanceFactory};
pub(crate) use publisher::StatePublisher;

/// Receivers of the agent's inputs.
pub(crate) struct AgentInputs {
    pub(crate) desired: watch::Receiver<DesiredState>,
    pub(crate) commands: mpsc::UnboundedReceiver<AgentCommand>,
    pub(crate) events: mpsc::UnboundedReceiver<InstanceEvent>,
}

pub(crate) struct NodeAgent {
    factory: InstanceFactory,
    publisher: StatePublisher,
    settle: SettleHook,
    /// Name of this node, if there are others.
    member_name: Option<NodeName>,
    metrics: NodeMetrics,
    functions: FunctionStates,
    instances: InstanceTable,
    /// The last desired state that was applied; `None` before the first one.
    applied: Option<DesiredState>,
    /// Nodes that reach each destination of functions.
    egress_placements: EgressPlacements,
    /// Functions to plan and to publish.
    changed: BTreeSet<FunctionId>,
    /// Functions whose policy may differ from the one that chains and callers know.
    changed_policies: BTreeSet<FunctionId>,
    retries: RetryQueue,
    callers: DirectCallers,
    stopping: Option<oneshot::Sender<()>>,
    /// Callers that wait for the next publication.
    version_waiters: Vec<oneshot::Sender<u64>>,
    /// Copies that each function needed at the last collection.
    needed: BTreeMap<FunctionId, BTreeSet<Revision>>,
    /// Copies of earlier processes were collected.
    has_collected: bool,
    /// Placement of the chains' instances, and the time of the next one.
    placer: Placer,
    next_placement: tokio::time::Instant,
    /// The last round had chains to place.
    has_placements: bool,
    /// Rows of the virtual switch.
    switch: SwitchTable,
}

impl NodeAgent {
    pub(crate) fn new(
        factory: InstanceFactory,
        publisher: StatePublisher,
        settle: SettleHook,
        member_name: Option<NodeName>,
        placer: Placer,
        metrics: NodeMetrics,
    ) -> Self {
        Self {
            factory,
            publisher,
            settle,
            member_name,
            metrics,
            functions: BTreeMap::new(),
            instances: InstanceTable::default(),
            applied: None,
            egress_placements: EgressPlacements::default(),
            changed: BTreeSet::new(),
            changed_policies: BTreeSet::new(),
            retries: RetryQueue::default(),
            callers: DirectCallers::default(),
            stopping: None,
            version_waiters: Vec::new(),
            needed: BTreeMap::new(),
            has_collected: false,
            placer,
            next_placement: tokio::time::Instant::now() + PLACEMENT_INTERVAL,
            has_placements: false,
            switch: SwitchTable::default(),
        }
    }

    /// Runs until it is stopped, or its handle is dropped; then the instances are killed.
    pub(crate) async fn run(mut self, mut inputs: AgentInputs) {
        loop {
            // Before waiting, so that each input is reflected in a published state first.
            let retry_at = self.reconcile_changed();
            if self.instances.is_empty() && self.stopping.is_some() {
                break;
            }
            tokio::select! {
                command = inputs.commands.recv() => match command {
                    Some(command) => self.handle_command(command, &mut inputs.desired),
                    // The handle is gone. Dropping the stop senders kills the instances.
                    None => break,
                },
                // A watch channel: only the latest desired state counts.
                Ok(()) = inputs.desired.changed() => self.apply_desired(&mut inputs.desired),
                Some(event) = inputs.events.recv() => {
                    self.handle_event(event);
                    // One publication covers all waiting events.
                    while let Ok(event) = inputs.events.try_recv() {
                        self.handle_event(event);
                    }
                }
                () = sleep_until(retry_at.unwrap_or_else(Instant::now).into()), if retry_at.is_some() => {}
                () = sleep_until(self.next_placement), if self.has_placements || self.needs_placement() => {
                    self.next_placement = tokio::time::Instant::now() + PLACEMENT_INTERVAL;
                    self.has_placements = self.needs_placement(); // else this round ends them
                    self.placer.measure_and_place(self.placed_groups());
                }
            }
        }
        if let Some(done) = self.stopping.take() {
            self.settle_writes().await;
            let _ = done.send(()); // the caller may have left
        }
    }

    /// Flushes what ended instances have written, and removes what the node has made for them.
    async fn settle_writes(&self) {
        let context = &self.factory.context;
        let (machine, logs) = (context.machine.clone(), context.logs.clone());
        // Blocking: asynchronous writes of ended instances are flushed first.
        let settled = tokio::task::spawn_blocking(move || {
            machine.flush_writes();
            logs.flush();
        });
        settled.await.expect("settling does not panic");
        context.machine.remove_cgroups();
    }

    /// Plans and publishes the functions that changed, and then asks withdrawn instances to stop.
    /// Returns the time of the next retry.
    fn reconcile_changed(&mut self) -> Option<Instant> {
        let now = tokio::time::Instant::now().into_std();
        self.changed.extend(self.retries.take_due(now));
        let changed = mem::take(&mut self.changed);
        let mut withdrawn = Vec::new();
        for id in &changed {
            let retry_at = self.reconcile_function(id, now, &mut withdrawn);
            self.retries.set(id, retry_at);
        }
        // Before the publication, so that a removed function is gone from it.
        changed.iter().for_each(|id| self.drop_if_gone(id));
        self.apply_policies();
        let version = self.publisher.publish_changes(
            &changed,
            &self.functions,
            &self.instances,
            &self.addresses(),
        );
        for waiter in self.version_waiters.drain(..) {
            let _ = waiter.send(version); // the caller may have left
        }
        self.metrics.set_states(self.publisher.state_counts());
        self.update_switch(&changed);
        // Only after the publication: the snapshot must show them as draining first.
        withdrawn
            .into_iter()
            .for_each(|(id, purpose)| self.request_end(id, purpose, version));
        self.collect_artifacts(&changed);
        self.retries.next_time()
    }
}
