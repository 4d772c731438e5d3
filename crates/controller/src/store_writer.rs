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
use crate::model::{
    CommandOutcome, CommandRefusal, ControllerCommand, ControllerModel, ModelChange, decide_command,
};
use crate::store::{ControllerStore, StoreError};

/// Commands written with one fsync, at most.
const MAX_BATCH_COMMANDS: usize = 64;

/// Quiet time after which the store is tidied.
const IDLE_CHECKPOINT_DELAY: Duration = Duration::from_secs(1);

/// Why a command had no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControllerError {
    /// It does not fit the model.
    #[error(transparent)]
    Refused(#[from] CommandRefusal),
    /// It could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The controller is closing.
    #[error("the controller is shutting down: nothing was changed")]
    Closed,
}

/// A command and where its answer goes.
#[derive(Debug)]
pub(crate) struct CommandRequest {
    pub(crate) command: ControllerCommand,
    pub(crate) reply: oneshot::Sender<Result<CommandOutcome, ControllerError>>,
}

/// What the thread shows to everybody else.
#[derive(Debug, Default)]
pub(crate) struct PublishedState {
    model: RwLock<Arc<ControllerModel>>,
    read_only_reason: RwLock<Option<Arc<str>>>,
    pending_wakes: Mutex<HashSet<FunctionId>>,
}

impl PublishedState {
    /// The model as of the last commit.
    pub(crate) fn model(&self) -> Arc<ControllerModel> {
        self.model
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Why the store takes no changes.
    pub(crate) fn read_only_reason(&self) -> Option<Arc<str>> {
        self.read_only_reason
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Notes that a wake-up is under way; `false`: one is already, and will be decided after this moment.
    pub(crate) fn begin_wake(&self, id: &FunctionId) -> bool {
        self.pending_wakes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id.clone())
    }

    fn end_wake(&self, id: &FunctionId) {
        self.pending_wakes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(id);
    }

    fn publish_model(&self, model: Arc<ControllerModel>) {
        *self.model.write().unwrap_or_else(PoisonError::into_inner) = model;
    }

    fn set_read_only_reason(&self, trouble: Option<Arc<str>>) {
        *self
            .read_only_reason
            .write()
            .unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}

/// The thread's own state.
pub(crate) struct StoreWriter {
    store: ControllerStore,
    model: Arc<ControllerModel>,
    published: Arc<PublishedState>,
    fleet: Arc<dyn Fleet>,
}

/// A batch, decided but not written.
struct DecidedBatch {
    next_model: ControllerModel,
    changes: Vec<ModelChange>,
    outcomes: Vec<Result<CommandOutcome, CommandRefusal>>,
}

impl StoreWriter {
    /// Shows and applies what the store held.
    pub(crate) fn new(
        store: ControllerStore,
        model: ControllerModel,
        published: Arc<PublishedState>,
        fleet: Arc<dyn Fleet>,
    ) -> Self {
        let mut writer = Self {
            store,
            model: Arc::default(),
            published,
            fleet,
        };
        writer.publish_and_apply(model);
        writer
    }

    /// Works until every sender of orders is gone.
    pub(crate) fn run_until_closed(mut self, requests: &Receiver<CommandRequest>) {
        while let Some(first_request) = self.next_request(requests) {
            let batch = std::iter::once(first_request)
                .chain(requests.try_iter().take(MAX_BATCH_COMMANDS - 1))
                .collect();
            self.process_batch(batch);
        }
        self.checkpoint_store();
    }

    fn next_request(&mut self, requests: &Receiver<CommandRequest>) -> Option<CommandRequest> {
        if self.store.needs_checkpoint() {
            match requests.recv_timeout(IDLE_CHECKPOINT_DELAY) {
                Ok(request) => return Some(request),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => self.checkpoint_store(),
            }
        }
        requests.recv().ok()
    }

    fn checkpoint_store(&mut self) {
        if self.store.needs_checkpoint() {
            self.store.checkpoint_log();
            self.publish_store_state();
        }
    }

    fn process_batch(&mut self, requests: Vec<CommandRequest>) {
        let batch = self.decide_batch(&requests);
        match self.write_changes(&batch.changes) {
            Ok(()) => {
                self.publish_if_changed(batch.next_model, &batch.changes);
                for (request, outcome) in requests.into_iter().zip(batch.outcomes) {
                    let _ = request.reply.send(outcome.map_err(ControllerError::from)); // the caller may have gone
                }
            }
            Err(_) if requests.len() > 1 => requests
                .into_iter()
                .for_each(|order| self.process_batch(vec![order])),
            Err(error) => self.reject_batch(requests, batch, &error),
        }
    }

    fn decide_batch(&self, requests: &[CommandRequest]) -> DecidedBatch {
        let now = SystemTime::now();
        let mut batch = DecidedBatch {
            next_model: ControllerModel::clone(&self.model),
            changes: Vec::new(),
            outcomes: Vec::new(),
        };
        for request in requests {
            if let ControllerCommand::Wake(id) = &request.command {
                self.published.end_wake(id); // before deciding: whoever rings from here on is heard again
            }
            let outcome =
                decide_command(&batch.next_model, &request.command, now).map(|decision| {
                    decision
                        .changes
                        .iter()
                        .cloned()
                        .for_each(|change| batch.next_model.apply_change(change));
                    batch.changes.extend(decision.changes);
                    decision.outcome
                });
            batch.outcomes.push(outcome);
        }
        batch
    }

    fn write_changes(&mut self, changes: &[ModelChange]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        let result = self.store.commit_changes(changes);
        self.publish_store_state();
        result
    }

    fn publish_store_state(&self) {
        self.published
            .set_read_only_reason(self.store.broken_reason().map(Arc::from));
    }

    /// A wake-up counts even when it cannot be written: nobody was promised anything, a call is waiting for it, and
    /// after a restart the next call wakes the function again.
    fn reject_batch(
        &mut self,
        requests: Vec<CommandRequest>,
        batch: DecidedBatch,
        error: &StoreError,
    ) {
        let only_wakes = requests
            .iter()
            .all(|order| matches!(order.command, ControllerCommand::Wake(_)));
        tracing::error!(%error, kept_in_memory = only_wakes, "store: a change was not written");
        if only_wakes {
            self.publish_and_apply(batch.next_model);
        }
        for request in requests {
            let _ = request.reply.send(Err(error.clone().into())); // the caller may have gone
        }
    }

    fn publish_if_changed(&mut self, next: ControllerModel, changes: &[ModelChange]) {
        if !changes.is_empty() {
            self.publish_and_apply(next);
        }
    }

    fn publish_and_apply(&mut self, model: ControllerModel) {
        self.model = Arc::new(model);
        self.published.publish_model(self.model.clone());
        self.fleet.apply_desired(self.model.desired_state());
    }
}
