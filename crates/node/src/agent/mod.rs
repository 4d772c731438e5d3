//! The task that owns the node's state.
//!
//! It receives the desired state and events, calls [`reconcile::plan`] for each function that they
//! concern, and publishes the result. Only then does it act on withdrawn instances. Slow work happens
//! in the instances' own tasks.

mod allocations;
mod function_changes;
mod function_state;
mod instance_factory;
mod instance_record;
mod instance_table;
mod placed_groups;
mod publisher;
mod retry_queue;
mod switch_rows;
mod withdrawal;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use nearpath_kernel::bpf::LoopbackRedirect;
use nearpath_types::egress::EgressPlacements;
use nearpath_types::instance_label::label_instance;
use nearpath_types::policy::{LOOPBACK, LoopbackDelivery};
use nearpath_types::status::UsageStatus;
use nearpath_types::{
    DesiredState, FunctionId, InstanceId, InstanceState, NodeName, Revision, StartFailureCause,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep_until;

use crate::config::SettleHook;
use crate::identity::DirectCallers;
use crate::instance::ending::{EndReport, InstanceEnding};
use crate::instance::lifecycle::InstanceEvent;
use crate::instance::notes::ServerNote;
use crate::metrics::NodeMetrics;
use crate::placement::placer::{PLACEMENT_INTERVAL, Placer};
use crate::reconcile::{self, DesiredInstances, ReconcileAction};
use crate::virtual_switch::SwitchTable;
use instance_record::{InstanceRecord, UsageMeter};
use instance_table::InstanceTable;
use publisher::FunctionStates;
use retry_queue::RetryQueue;
use withdrawal::WithdrawalPurpose;

pub(crate) use allocations::Allocations;
pub(crate) use instance_factory::{InstanceDefaults, InstanceFactory};
pub(crate) use publisher::StatePublisher;

/// A command of the node's handle.
pub(crate) enum AgentCommand {
    /// Measures the usage of a function.
    Usage(FunctionId, oneshot::Sender<UsageStatus>),
    /// Returns the version of the snapshot that reflects the last desired state.
    WaitPublished(oneshot::Sender<u64>),
    /// Adds a gateway thread, which gets a socket for every domain.
    AddGatewayThread(mpsc::UnboundedSender<OwnedFd>),
    /// Drains everything; answered when nothing is left.
    Stop(oneshot::Sender<()>),
}

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
            let (machine, logs) = (
                self.factory.context.machine.clone(),
                self.factory.context.logs.clone(),
            );
            // Blocking: asynchronous writes of ended instances are flushed first.
            let settled = tokio::task::spawn_blocking(move || {
                machine.flush_writes();
                logs.flush();
            })
            .await;
            settled.expect("settling does not panic");
            self.factory.context.machine.remove_cgroups();
            let _ = done.send(()); // the caller may have left
        }
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

    fn reconcile_function(
        &mut self,
        id: &FunctionId,
        now: Instant,
        withdrawn: &mut Vec<(InstanceId, WithdrawalPurpose)>,
    ) -> Option<Instant> {
        let function = self.functions.get(id)?;
        let frozen = function
            .frozen_instances()
            .filter(|(until, _)| *until > now && self.factory.context.machine.can_freeze());
        let desired = function
            .desired_instances()
            // While the node stops nothing is desired, so that plans only withdraw.
            .filter(|_| self.stopping.is_none())
            .map(|desired| DesiredInstances {
                frozen: frozen.map_or(0, |(_, count)| count),
                ..desired
            });
        let views: Vec<_> = self
            .instances
            .instances_of(id)
            .map(InstanceRecord::reconcile_view)
            .collect();
        let plan = reconcile::plan(desired, &views, &function.backoff, now);
        let mut refused = false;
        for action in plan.actions {
            match action {
                ReconcileAction::Start(count) => {
                    refused = !(0..count).all(|_| self.start_instance(id, now))
                }
                ReconcileAction::Freeze(id) => {
                    self.set_state(id, InstanceState::Frozen);
                    withdrawn.push((id, WithdrawalPurpose::Freeze));
                }
                ReconcileAction::Thaw(id) => self.thaw_instance(id),
                ReconcileAction::Withdraw(id) => {
                    let state = self.set_state(id, InstanceState::Draining);
                    // A frozen one may still be ending its calls.
                    let called = [InstanceState::Ready, InstanceState::Frozen].map(Some);
                    let may_have_calls = called.contains(&state);
                    withdrawn.push((id, WithdrawalPurpose::Stop { may_have_calls }));
                }
            }
        }
        match refused {
            // A refusal changed the back-off after planning.
            true => self.functions.get(id)?.backoff.retry_at(),
            false => plan.retry_at.or(frozen.map(|(until, _)| until)),
        }
    }

    /// Starts an instance; returns whether its task was spawned.
    fn start_instance(&mut self, id: &FunctionId, now: Instant) -> bool {
        let addresses = self.addresses();
        let Some(function) = self.functions.get_mut(id) else {
            return false;
        };
        let (Some(desired), Some(policy)) = (&function.desired, function.policy()) else {
            return false;
        };
        self.factory
            .context
            .artifacts
            // Marked before the start, or a collection could remove the copy in between.
            .add_needed((id.clone(), desired.revision));
        match self
            .factory
            .start_instance(desired, policy, &addresses, now)
        {
            Ok(record) => {
                let instance = label_instance(self.member_name.as_ref(), record.id);
                tracing::debug!(function = %id, instance, revision = %record.revision, "instance starts");
                self.instances.insert(record);
                true
            }
            Err(text) => {
                tracing::warn!(function = %id, "instance could not be started: {text}");
                self.metrics.count_start(false);
                function.record_refusal(text, now);
                false
            }
        }
    }

    fn handle_command(
        &mut self,
        command: AgentCommand,
        desired: &mut watch::Receiver<DesiredState>,
    ) {
        match command {
            AgentCommand::Usage(id, reply) => self.measure_usage(&id, reply),
            AgentCommand::WaitPublished(reply) => {
                // the desired state was sent before this command, on another channel
                self.apply_desired(desired);
                self.version_waiters.push(reply);
            }
            AgentCommand::AddGatewayThread(sockets) => {
                self.factory.domains.add_gateway_thread(sockets)
            }
            // The next plan withdraws everything; the answer follows when the table is empty.
            AgentCommand::Stop(done) => {
                self.stopping = Some(done);
                self.changed.extend(self.functions.keys().cloned());
            }
        }
    }

    fn handle_event(&mut self, event: InstanceEvent) {
        if let Some(record) = self.instances.get(event.instance()) {
            self.changed.insert(record.function.clone());
        }
        match event {
            InstanceEvent::Launched { id, pid, process } => {
                let Some(record) = self.instances.get_mut(id) else {
                    return;
                };
                record.pid = pid;
                self.factory.domains.accept_endpoints(id, pid);
                record.meter = Some(Arc::new(UsageMeter::new(process, record.started)));
            }
            InstanceEvent::Named(id, name) => {
                if let Some(record) = self.instances.get_mut(id) {
                    record.quic = Some(name);
                }
            }
            InstanceEvent::Phase(id, phase) => {
                self.metrics.observe_phase(&phase.name, phase.took);
                if let Some(record) = self.instances.get_mut(id) {
                    record.add_phase(phase);
                }
            }
            InstanceEvent::Server(id, note) => self.handle_server(id, note),
            InstanceEvent::Ready(id) => self.handle_ready(id),
            InstanceEvent::OomKill(id) => {
                if let Some(record) = self.instances.get_mut(id) {
                    self.metrics.count_oom_kill(&record.function);
                }
            }
            InstanceEvent::Remark(id, text) => self.handle_remark(id, &text),
            InstanceEvent::Thawed(id) => self.handle_thawed(id),
            InstanceEvent::NotFrozen(id) => drop(self.set_state(id, InstanceState::Draining)),
            InstanceEvent::Exited(id) => {
                if let Some(record) = self.instances.get_mut(id) {
                    // Routes leave it out from the next publication on, before its cleanup ends.
                    record.exited = true;
                }
            }
            InstanceEvent::Removed(id, ending) => self.handle_removed(id, &ending),
        }
    }

    /// Opens access to an instance's own server, with the delivery that its function asks for.
    fn handle_server(&mut self, id: InstanceId, note: ServerNote) {
        let redirect = self.loopback_redirect_of(id);
        if let Some(record) = self.instances.get_mut(id) {
            record.open_server(note, redirect);
        }
    }

    /// Returns the redirection of an instance's connections; `None`: they use TCP. A remark tells why.
    fn loopback_redirect_of(&mut self, id: InstanceId) -> Option<Arc<LoopbackRedirect>> {
        let record = self.instances.get_mut(id)?;
        if record.loopback_delivery == LoopbackDelivery::Tcp {
            return None;
        }
        let redirect = self.factory.context.machine.loopback_redirect();
        redirect
            .inspect_err(|error| {
                let text = format!(
                    "`{LOOPBACK}: sockmap` is unavailable, so this instance uses TCP; run `nearpath doctor`, then deploy again after 10 s: {error}"
                );
                self.handle_remark(id, &text);
            })
            .ok()
    }

    /// Shows what is wrong with an instance that goes on, in logs and `describe`.
    fn handle_remark(&mut self, id: InstanceId, text: &str) {
        let Some(record) = self.instances.get_mut(id) else {
            return;
        };
        let now = tokio::time::Instant::now().into_std();
        if let Some(suppressed) = record.remark_lines.take_due((), now) {
            let instance = label_instance(self.member_name.as_ref(), id);
            tracing::warn!(function = %record.function, instance, suppressed, "{text}");
            let logs = &self.factory.context.logs;
            logs.push_line(&record.function, id, format!("nearpath: {text}"));
        }
        if let Some(function) = self.functions.get_mut(&record.function) {
            function.record_remark(record, text);
        }
    }

    fn handle_ready(&mut self, id: InstanceId) {
        let Some(record) = self.instances.get_mut(id) else {
            return;
        };
        if record.state != InstanceState::Starting {
            return; // withdrawn in the meantime
        }
        let now = tokio::time::Instant::now().into_std();
        (record.state, record.ready) = (InstanceState::Ready, Some(now));
        tracing::debug!(function = %record.function, instance = %id, "instance is ready");
        self.metrics.count_start(true);
        self.metrics
            .observe_phase("total", now.saturating_duration_since(record.started));
        if let Some(function) = self.functions.get_mut(&record.function) {
            function.record_ready(record);
        }
        // At once, not at the next interval: a new instance would run elsewhere for 2 s.
        let record = self.instances.get(id);
        let chain = record.map(|record| self.chain_of(record));
        if let Some(chain) = chain.filter(|chain| !chain.is_empty()) {
            self.placer.apply_policies(chain);
        }
    }

    fn handle_removed(&mut self, id: InstanceId, ending: &InstanceEnding) {
        let Some(record) = self.instances.remove(id) else {
            return;
        };
        // Only now that nothing of the instance is left: the next one may get its address at once.
        self.factory.release_instance(&record);
        if let Some(EndReport { cause, text }) = ending.report() {
            if *cause == StartFailureCause::OutOfMemory {
                self.metrics.count_oom_kill(&record.function);
            }
            let instance = label_instance(self.member_name.as_ref(), id);
            tracing::warn!(function = %record.function, instance, revision = %record.revision, "{text}");
            self.factory
                .context
                .logs
                .push_line(&record.function, id, format!("nearpath: {text}"));
        }
        if let InstanceEnding::FailedStart(_) | InstanceEnding::Impossible(_) = ending {
            self.metrics.count_start(false);
        }
        if let Some(function) = self.functions.get_mut(&record.function) {
            function.record_ending(&record, ending, tokio::time::Instant::now().into_std());
        }
    }

    /// Sums the usage of a function's instances, on a blocking thread because it reads files.
    fn measure_usage(&self, id: &FunctionId, reply: oneshot::Sender<UsageStatus>) {
        // Cloned handles, because the blocking thread cannot borrow the agent.
        let meters: Vec<_> = self
            .instances
            .instances_of(id)
            .filter_map(|record| record.meter.clone())
            .collect();
        let now = tokio::time::Instant::now().into_std();
        tokio::task::spawn_blocking(move || {
            let mut usage = UsageStatus::default();
            for (cpu, memory) in meters.iter().filter_map(|meter| meter.read_usage(now)) {
                usage.cpu += cpu;
                usage.total_memory_bytes += memory;
            }
            let _ = reply.send(usage); // the caller may have left
        });
    }
}
