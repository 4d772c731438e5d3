//! The one task that owns the node's state.
//!
//! It hears what is wanted and what happens, asks [`reconcile::plan`] for each function, publishes the outcome and only
//! then acts on what the outcome withdraws. Everything slow happens in the instances' own tasks.

mod crews;
mod function;
mod lots;
mod publisher;
mod record;
mod records;
mod workshop;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use nearpath_types::status::Usage;
use nearpath_types::{Desired, FunctionId, InstanceId, InstanceState};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep_until;

use crate::artifact::Key;
use crate::config::Settle;
use crate::instance::ending::Ending;
use crate::instance::life::{Event, StopOrder};
use crate::metrics::Metrics;
use crate::placement::placer::{PERIOD, Placer};
use crate::reconcile::{self, Action};
use publisher::Functions;
use record::{Meter, Record};
use records::Records;

pub(crate) use lots::Lots;
pub(crate) use publisher::Publisher;
pub(crate) use workshop::{Premises, Workshop};

/// What the node's handle asks for.
pub(crate) enum Command {
    /// What a function uses.
    Usage(FunctionId, oneshot::Sender<Usage>),
    /// The version of the snapshot that tells what was wished last.
    Version(oneshot::Sender<u64>),
    /// A thread of the gateway wants a socket for every domain.
    Gateway(mpsc::UnboundedSender<OwnedFd>),
    /// Drain everything; answered when nothing is left.
    Stop(oneshot::Sender<()>),
}

/// Where the agent hears from.
pub(crate) struct Inbox {
    pub(crate) desired: watch::Receiver<Desired>,
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
}

pub(crate) struct Agent {
    workshop: Workshop,
    publisher: Publisher,
    settle: Settle,
    metrics: Metrics,
    functions: Functions,
    records: Records,
    stopping: Option<oneshot::Sender<()>>,
    /// Who waits for the next publication.
    waiting: Vec<oneshot::Sender<u64>>,
    /// Copies that were needed when they were last collected; `None`: not known before the first wish.
    needed: Option<BTreeSet<Key>>,
    informed: bool,
    /// Where the chains' instances run, and when to look at that again.
    placer: Placer,
    next_look: tokio::time::Instant,
}

impl Agent {
    pub(crate) fn new(workshop: Workshop, publisher: Publisher, settle: Settle, metrics: Metrics) -> Self {
        Self {
            workshop,
            publisher,
            settle,
            metrics,
            functions: BTreeMap::new(),
            records: Records::default(),
            stopping: None,
            waiting: Vec::new(),
            needed: None,
            informed: false,
            placer: Placer::new(),
            next_look: tokio::time::Instant::now() + PERIOD,
        }
    }

    /// Works until it is stopped, or until its handle is dropped: then the instances are killed.
    pub(crate) async fn run(mut self, mut inbox: Inbox) {
        loop {
            let retry_at = self.step();
            if self.records.is_empty() && self.stopping.is_some() {
                break;
            }
            tokio::select! {
                command = inbox.commands.recv() => match command {
                    Some(command) => self.obey(command, &mut inbox.desired),
                    None => break,
                },
                Ok(()) = inbox.desired.changed() => self.wish(&mut inbox.desired),
                Some(event) = inbox.events.recv() => {
                    self.hear(event);
                    while let Ok(event) = inbox.events.try_recv() {
                        self.hear(event);
                    }
                }
                () = sleep_until(retry_at.unwrap_or_else(Instant::now).into()), if retry_at.is_some() => {}
                () = sleep_until(self.next_look), if self.places() => {
                    self.next_look = tokio::time::Instant::now() + PERIOD;
                    self.placer.look(self.crews());
                }
            }
        }
        if let Some(done) = self.stopping.take() {
            let machine = self.workshop.tools.machine.clone();
            let settled = tokio::task::spawn_blocking(move || machine.settle()).await;
            settled.expect("settling does not panic");
            self.workshop.tools.machine.leave();
            let _ = done.send(()); // the asker may have left
        }
    }

    /// Plans, publishes, and then tells the withdrawn instances to stop. Returns when to look again.
    fn step(&mut self) -> Option<Instant> {
        let now = tokio::time::Instant::now().into_std();
        let mut withdrawn = Vec::new();
        let ids: Vec<_> = self.functions.keys().cloned().collect();
        let retries: Vec<_> = ids.iter().map(|id| self.reconcile(id, now, &mut withdrawn)).collect();
        self.functions.retain(|id, function| {
            let lives = function.desired.is_some() || self.records.has(id);
            if !lives {
                self.workshop.tools.logs.forget(id);
            }
            lives
        });
        let version = self.publisher.publish(&self.functions, &self.records);
        for asker in self.waiting.drain(..) {
            let _ = asker.send(version); // the asker may have left
        }
        self.metrics.count(self.records.iter().map(|record| record.state));
        withdrawn.into_iter().for_each(|(id, was_ready)| self.order_stop(id, was_ready, version));
        self.collect_artifacts();
        retries.into_iter().flatten().min()
    }

    fn reconcile(&mut self, id: &FunctionId, now: Instant, withdrawn: &mut Vec<(InstanceId, bool)>) -> Option<Instant> {
        let function = &self.functions[id];
        let want = function.want().filter(|_| self.stopping.is_none());
        let seen: Vec<_> = self.records.of(id).map(Record::seen).collect();
        let plan = reconcile::plan(want, &seen, &function.backoff, now);
        let mut refused = false;
        for action in plan.actions {
            match action {
                Action::Start(count) => refused = !(0..count).all(|_| self.start(id, now)),
                Action::Withdraw(id) => withdrawn.extend(self.withdraw(id)),
            }
        }
        // after a refusal the back-off has changed: ask it, not the plan
        if refused { self.functions[id].backoff.retry_at() } else { plan.retry_at }
    }

    /// Whether an instance was set going.
    fn start(&mut self, id: &FunctionId, now: Instant) -> bool {
        let Some(function) = self.functions.get_mut(id) else { return false };
        let Some(desired) = &function.desired else { return false };
        self.workshop.tools.artifacts.also_need((id.clone(), desired.revision));
        match self.workshop.start(desired, now) {
            Ok(record) => {
                tracing::debug!(function = %id, instance = %record.id, revision = %record.revision, "starts");
                self.records.insert(record);
                true
            }
            Err(text) => {
                tracing::warn!(function = %id, "cannot start: {text}");
                self.metrics.started(false);
                function.learn_refusal(text, now);
                false
            }
        }
    }

    /// Marks an instance as draining; tells whether it was ready.
    fn withdraw(&mut self, id: InstanceId) -> Option<(InstanceId, bool)> {
        let record = self.records.get_mut(id)?;
        let state = std::mem::replace(&mut record.state, InstanceState::Draining);
        Some((id, state == InstanceState::Ready))
    }

    /// An instance that was never ready is in nobody's hands, so nobody has to settle.
    fn order_stop(&mut self, id: InstanceId, was_ready: bool, version: u64) {
        let Some(record) = self.records.get_mut(id) else { return };
        let Some(stop) = record.stop.take() else { return };
        let limit = record.stop_limit;
        let withdrawn = match was_ready {
            true => self.settled(id, version),
            false => Box::pin(std::future::ready(())),
        };
        let _ = stop.send(StopOrder { withdrawn, limit }); // it may just have ended
    }

    /// Ends when neither the gateway nor a peer in memory sends it anything new.
    fn settled(&self, id: InstanceId, version: u64) -> BoxFuture<'static, ()> {
        let (outside, inside) = (self.settle.settled(version), self.workshop.domains.withdraw(id));
        Box::pin(async move {
            outside.await;
            inside.await;
        })
    }

    fn obey(&mut self, command: Command, desired: &mut watch::Receiver<Desired>) {
        match command {
            Command::Usage(id, answer) => self.measure(&id, answer),
            Command::Version(answer) => {
                self.wish(desired); // the wish came before the question, on another channel
                self.waiting.push(answer);
            }
            Command::Gateway(sockets) => self.workshop.domains.let_gateway_in(sockets),
            Command::Stop(done) => self.stopping = Some(done),
        }
    }

    fn wish(&mut self, desired: &mut watch::Receiver<Desired>) {
        let desired = desired.borrow_and_update().clone();
        self.informed = true;
        let mut all: BTreeMap<_, _> = desired.functions.into_iter().map(|one| (one.spec.id(), one)).collect();
        for (id, function) in &mut self.functions {
            match all.remove(id) {
                Some(desired) => function.wish(desired),
                None => function.desired = None,
            }
        }
        for (id, desired) in all {
            self.functions.entry(id).or_default().wish(desired);
        }
        let policies = self.functions.iter().map(|(id, function)| (id, function.policy()));
        self.workshop.tools.identities.permit(policies.clone());
        self.workshop.domains.declare(policies);
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Launched { id, pid, process } => {
                let Some(record) = self.records.get_mut(id) else { return };
                record.pid = pid;
                record.meter = Some(Arc::new(Meter::new(process, record.started)));
            }
            Event::Named(id, name) => {
                if let Some(record) = self.records.get_mut(id) {
                    record.quic = Some(name);
                }
            }
            Event::Phase(id, phase) => {
                self.metrics.phase(&phase.name, phase.took);
                if let Some(record) = self.records.get_mut(id) {
                    record.add_phase(phase);
                }
            }
            Event::Ready(id) => self.hear_ready(id),
            Event::Exited(id) => {
                if let Some(record) = self.records.get_mut(id) {
                    record.exited = true;
                }
            }
            Event::Gone(id, ending) => self.hear_gone(id, &ending),
        }
    }

    fn hear_ready(&mut self, id: InstanceId) {
        let Some(record) = self.records.get_mut(id) else { return };
        if record.state != InstanceState::Starting {
            return; // it was withdrawn meanwhile
        }
        let now = tokio::time::Instant::now().into_std();
        (record.state, record.ready) = (InstanceState::Ready, Some(now));
        self.metrics.started(true);
        self.metrics.phase("total", now.saturating_duration_since(record.started));
        if let Some(function) = self.functions.get_mut(&record.function) {
            function.learn_ready(record);
        }
        if self.places() {
            self.placer.seat(self.crews());
        }
    }

    fn hear_gone(&mut self, id: InstanceId, ending: &Ending) {
        let Some(record) = self.records.remove(id) else { return };
        self.workshop.take_back(&record);
        if let Ending::FailedStart(text) | Ending::Impossible(text) | Ending::Died(text) = ending {
            tracing::warn!(function = %record.function, instance = %id, revision = %record.revision, "{text}");
            self.workshop.tools.logs.push(&record.function, id, format!("nearpath: {text}"));
        }
        if let Ending::FailedStart(_) | Ending::Impossible(_) = ending {
            self.metrics.started(false);
        }
        if let Some(function) = self.functions.get_mut(&record.function) {
            function.learn_ending(&record, ending, tokio::time::Instant::now().into_std());
        }
    }

    /// Sums up what a function's instances use; reads files, so not here.
    fn measure(&self, id: &FunctionId, answer: oneshot::Sender<Usage>) {
        let meters: Vec<_> = self.records.of(id).filter_map(|record| record.meter.clone()).collect();
        let now = tokio::time::Instant::now().into_std();
        tokio::task::spawn_blocking(move || {
            let mut usage = Usage::default();
            for (cpu, memory) in meters.iter().filter_map(|meter| meter.read(now)) {
                usage.cpu += cpu;
                usage.total_memory_bytes += memory;
            }
            let _ = answer.send(usage); // the asker may have left
        });
    }

    /// Removes copies that neither a wish nor a living instance needs, when that has changed.
    fn collect_artifacts(&mut self) {
        let wished = self.functions.iter().filter_map(|(id, f)| Some((id.clone(), f.want()?.revision)));
        let lived = self.records.iter().map(|record| (record.function.clone(), record.revision));
        let needed: BTreeSet<_> = wished.chain(lived).collect();
        if !self.informed || self.needed.as_ref() == Some(&needed) {
            return;
        }
        let artifacts = self.workshop.tools.artifacts.clone();
        artifacts.need(needed.clone());
        self.needed = Some(needed);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = artifacts.collect() {
                tracing::warn!(%error, "copies of removed functions are left behind; the next change tries again");
            }
        });
    }
}
