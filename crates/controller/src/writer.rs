//! The `store` thread: takes commands one after the other, decides them on the model, writes what came of it, and only
//! then makes it the truth for everybody and answers.
//!
//! Commands that arrive while one is being written are written together with a single fsync. They are decided in order,
//! each on the model that the one before leaves; if the write fails, each is tried on its own, so that a secret too
//! large for the disk does not take its neighbours down.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use nearpath_types::FunctionId;
use tokio::sync::oneshot;

use crate::fleet::Fleet;
use crate::model::{Change, Command, Model, Outcome, Refusal, decide};
use crate::store::{Store, StoreError};

/// Commands written with one fsync, at most.
const BATCH: usize = 64;

/// Quiet time after which the store is tidied.
const QUIET: Duration = Duration::from_secs(1);

/// Why a command had no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It does not fit the model.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The controller is closing.
    #[error("the controller is shutting down: nothing was changed")]
    Closed,
}

/// A command and where its answer goes.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) command: Command,
    pub(crate) answer: oneshot::Sender<Result<Outcome, Failure>>,
}

/// What the thread shows to everybody else.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    model: RwLock<Arc<Model>>,
    trouble: RwLock<Option<Arc<str>>>,
    waking: Mutex<HashSet<FunctionId>>,
}

impl Shown {
    /// The model as of the last commit.
    pub(crate) fn model(&self) -> Arc<Model> {
        self.model.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the store takes no changes.
    pub(crate) fn trouble(&self) -> Option<Arc<str>> {
        self.trouble.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that a wake-up is under way; `false`: one is already, and will be decided after this moment.
    pub(crate) fn note_wake(&self, id: &FunctionId) -> bool {
        self.waking.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone())
    }

    fn forget_wake(&self, id: &FunctionId) {
        self.waking.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    fn show(&self, model: Arc<Model>) {
        *self.model.write().unwrap_or_else(PoisonError::into_inner) = model;
    }

    fn show_trouble(&self, trouble: Option<Arc<str>>) {
        *self.trouble.write().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}

/// The thread's own state.
pub(crate) struct Writer {
    store: Store,
    model: Arc<Model>,
    shown: Arc<Shown>,
    fleet: Arc<dyn Fleet>,
}

/// A batch, decided but not written.
struct Batch {
    next: Model,
    changes: Vec<Change>,
    outcomes: Vec<Result<Outcome, Refusal>>,
}

impl Writer {
    /// Shows and applies what the store held.
    pub(crate) fn new(store: Store, model: Model, shown: Arc<Shown>, fleet: Arc<dyn Fleet>) -> Self {
        let mut writer = Self { store, model: Arc::default(), shown, fleet };
        writer.publish(model);
        writer
    }

    /// Works until every sender of orders is gone.
    pub(crate) fn run(mut self, orders: &Receiver<Order>) {
        while let Some(first) = self.wait(orders) {
            let batch = std::iter::once(first).chain(orders.try_iter().take(BATCH - 1)).collect();
            self.settle(batch);
        }
        self.tidy();
    }

    fn wait(&mut self, orders: &Receiver<Order>) -> Option<Order> {
        if self.store.is_untidy() {
            match orders.recv_timeout(QUIET) {
                Ok(order) => return Some(order),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => self.tidy(),
            }
        }
        orders.recv().ok()
    }

    fn tidy(&mut self) {
        if self.store.is_untidy() {
            self.store.tidy();
            self.show_trouble();
        }
    }

    fn settle(&mut self, orders: Vec<Order>) {
        let batch = self.decide(&orders);
        match self.write(&batch.changes) {
            Ok(()) => {
                self.publish_if_changed(batch.next, &batch.changes);
                for (order, outcome) in orders.into_iter().zip(batch.outcomes) {
                    let _ = order.answer.send(outcome.map_err(Failure::from)); // the caller may have gone
                }
            }
            Err(_) if orders.len() > 1 => orders.into_iter().for_each(|order| self.settle(vec![order])),
            Err(error) => self.fail(orders, batch, &error),
        }
    }

    fn decide(&self, orders: &[Order]) -> Batch {
        let now = SystemTime::now();
        let mut batch = Batch { next: Model::clone(&self.model), changes: Vec::new(), outcomes: Vec::new() };
        for order in orders {
            if let Command::Wake(id) = &order.command {
                self.shown.forget_wake(id); // before deciding: whoever rings from here on is heard again
            }
            let decided = decide(&batch.next, &order.command, now).map(|decision| {
                decision.changes.iter().cloned().for_each(|change| batch.next.apply(change));
                batch.changes.extend(decision.changes);
                decision.outcome
            });
            batch.outcomes.push(decided);
        }
        batch
    }

    fn write(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        let written = self.store.commit(changes);
        self.show_trouble();
        written
    }

    fn show_trouble(&self) {
        self.shown.show_trouble(self.store.broken().map(Arc::from));
    }

    /// A wake-up counts even when it cannot be written: nobody was promised anything, a call is waiting for it, and
    /// after a restart the next call wakes the function again.
    fn fail(&mut self, orders: Vec<Order>, batch: Batch, error: &StoreError) {
        let wakes = orders.iter().all(|order| matches!(order.command, Command::Wake(_)));
        tracing::error!(%error, kept_in_memory = wakes, "store: a change was not written");
        if wakes {
            self.publish(batch.next);
        }
        for order in orders {
            let _ = order.answer.send(Err(error.clone().into())); // the caller may have gone
        }
    }

    fn publish_if_changed(&mut self, next: Model, changes: &[Change]) {
        if !changes.is_empty() {
            self.publish(next);
        }
    }

    fn publish(&mut self, model: Model) {
        self.model = Arc::new(model);
        self.shown.show(self.model.clone());
        self.fleet.apply(self.model.desired());
    }
}
