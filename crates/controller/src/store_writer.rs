//! The `store` thread. It takes commands in order, decides them on the model and writes the
//! changes. Only then it publishes the model and replies.
//!
//! Commands that arrive during a write are written together with a single fsync. They are decided
//! in order, each on the model that the one before leaves. If the write fails, each is tried alone,
//! so that a secret too large for the disk does not fail its neighbours.

use std::collections::HashSet;
use std::fs::File;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use nearpath_types::FunctionId;
use tokio::sync::oneshot;

use crate::fleet::Fleet;
use crate::model::{
    CommandOutcome, CommandRefusal, ControllerCommand, ControllerModel, ModelChange, decide_command,
};
use crate::store::{ControllerStore, StoreError, log_without_address};

/// Commands written with one fsync. A bound on the delay of the first command's reply.
const MAX_BATCH_COMMANDS: usize = 64;

/// Time without commands after which the log is copied into the database.
const IDLE_CHECKPOINT_DELAY: Duration = Duration::from_secs(1);

/// Reasons why a command had no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControllerError {
    /// The model does not allow it.
    #[error(transparent)]
    Refused(#[from] CommandRefusal),
    /// The store could not write it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The controller is closing.
    #[error("the controller is shutting down: nothing was changed")]
    Closed,
}

/// A command, and the channel for its reply.
#[derive(Debug)]
pub(crate) struct CommandRequest {
    pub(crate) command: ControllerCommand,
    pub(crate) reply: oneshot::Sender<Result<CommandOutcome, ControllerError>>,
}

/// Work for the thread.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all requests are commands: a box would cost each an allocation"
)]
pub(crate) enum StoreRequest {
    Command(CommandRequest),
    /// A copy of the database, with its model.
    Copy(oneshot::Sender<Result<DatabaseCopy, ControllerError>>),
}

/// A copy of the database, and the model that it holds.
#[derive(Debug)]
pub(crate) struct DatabaseCopy {
    pub(crate) file: File,
    pub(crate) model: Arc<ControllerModel>,
}

/// State that the thread publishes for readers.
#[derive(Debug, Default)]
pub(crate) struct PublishedState {
    model: RwLock<Arc<ControllerModel>>,
    read_only_reason: RwLock<Option<Arc<str>>>,
    pending_wakes: Mutex<HashSet<FunctionId>>,
}

impl PublishedState {
    /// Model as of the last commit.
    pub(crate) fn model(&self) -> Arc<ControllerModel> {
        // Poisoning is ignored: each write replaces the whole value, so no half-made state can be
        // seen.
        self.model
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Reason why the store accepts no changes.
    pub(crate) fn read_only_reason(&self) -> Option<Arc<str>> {
        self.read_only_reason
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Records that a wake-up is in progress. `false` when one is already: it will be decided after
    /// this call.
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

    fn set_read_only_reason(&self, reason: Option<Arc<str>>) {
        *self
            .read_only_reason
            .write()
            .unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

/// State of the thread.
pub(crate) struct StoreWriter {
    store: ControllerStore,
    model: Arc<ControllerModel>,
    published: Arc<PublishedState>,
    fleet: Arc<dyn Fleet>,
}

/// A batch that is decided but not written.
struct DecidedBatch {
    next_model: ControllerModel,
    changes: Vec<ModelChange>,
    outcomes: Vec<Result<CommandOutcome, CommandRefusal>>,
    without_address: Vec<FunctionId>,
}

impl StoreWriter {
    /// Publishes and applies the state that the store held.
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
        // The store may have failed to write already when it was opened.
        writer.publish_store_state();
        writer.publish_and_apply(model);
        writer
    }

    /// Runs until every sender of commands is dropped.
    pub(crate) fn run_until_closed(mut self, requests: &Receiver<StoreRequest>) {
        while let Some(first_request) = self.next_request(requests) {
            let more = requests.try_iter().take(MAX_BATCH_COMMANDS - 1);
            let mut batch = Vec::new();
            for request in std::iter::once(first_request).chain(more) {
                match request {
                    StoreRequest::Command(command) => batch.push(command),
                    StoreRequest::Copy(reply) => {
                        // A copy holds what was ordered before it.
                        self.process_batch(std::mem::take(&mut batch));
                        self.copy_database(reply);
                    }
                }
            }
            self.process_batch(batch);
        }
        self.checkpoint_store();
    }

    fn copy_database(&self, reply: oneshot::Sender<Result<DatabaseCopy, ControllerError>>) {
        let copied = self.store.copy_database().map(|file| DatabaseCopy {
            file,
            model: Arc::clone(&self.model),
        });
        // Fails when the caller has given up.
        let _ = reply.send(copied.map_err(ControllerError::from));
    }

    fn next_request(&mut self, requests: &Receiver<StoreRequest>) -> Option<StoreRequest> {
        // A timeout only while there is a log to copy: an idle controller does not wake up every
        // second.
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
                // After the write: a batch that fails is decided again.
                log_without_address(&batch.without_address);
                for (request, outcome) in requests.into_iter().zip(batch.outcomes) {
                    // Fails when the caller has given up.
                    let _ = request.reply.send(outcome.map_err(ControllerError::from));
                }
            }
            // One at a time: on a nearly full disk, small changes still succeed.
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
            without_address: Vec::new(),
        };
        for request in requests {
            if let ControllerCommand::Wake(id) = &request.command {
                self.published.end_wake(id); // before deciding: a later wake-up is not lost
            }
            let outcome =
                decide_command(&batch.next_model, &request.command, now).map(|decision| {
                    decision
                        .changes
                        .iter()
                        .cloned()
                        .for_each(|change| batch.next_model.apply_change(change));
                    batch.changes.extend(decision.changes);
                    batch.without_address.extend(decision.without_address);
                    decision.outcome
                });
            batch.outcomes.push(outcome);
        }
        batch
    }

    fn write_changes(&mut self, changes: &[ModelChange]) -> Result<(), StoreError> {
        // No commit without changes: an fsync would cost milliseconds for nothing.
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

    /// Replies with the error. A wake-up takes effect even when it cannot be written: a call waits
    /// for it, no caller was promised durability, and after a restart the next call wakes the
    /// function again.
    fn reject_batch(
        &mut self,
        requests: Vec<CommandRequest>,
        batch: DecidedBatch,
        error: &StoreError,
    ) {
        let only_wakes = requests
            .iter()
            .all(|order| matches!(order.command, ControllerCommand::Wake(_)));
        tracing::error!(%error, kept_in_memory = only_wakes, "store: change not written");
        if only_wakes {
            self.publish_and_apply(batch.next_model);
        }
        for request in requests {
            // Fails when the caller has given up.
            let _ = request.reply.send(Err(error.clone().into()));
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
        // Before the replies: when a caller gets its reply, calls are already routed by the change.
        self.fleet.apply_desired(self.model.desired_state());
    }
}
