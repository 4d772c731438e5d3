//! One function as the agent knows it.

use std::sync::Arc;
use std::time::Instant;

use nearpath_types::{DesiredFunction, FunctionRoute, Policy};

use super::record::Record;
use crate::instance::ending::Ending;
use crate::reconcile::{Backoff, Want};

/// What is wanted of a function, and what its starts have taught.
#[derive(Debug, Default)]
pub(super) struct Function {
    /// `None`: it was removed and waits for its last instance.
    pub(super) desired: Option<DesiredFunction>,
    policy: Arc<Policy>,
    /// Of the wanted revision.
    pub(super) backoff: Backoff,
    pub(super) trouble: Option<Arc<str>>,
}

impl Function {
    /// Takes a new wish over; a new revision starts with a clean slate.
    pub(super) fn wish(&mut self, desired: DesiredFunction) {
        if self.desired.as_ref().map(|old| old.revision) != Some(desired.revision) {
            (self.backoff, self.trouble) = (Backoff::default(), None);
        }
        match Policy::of(&desired.spec) {
            Ok(policy) if policy == *self.policy => {}
            Ok(policy) => self.policy = Arc::new(policy),
            Err(error) => self.trouble = Some(format!("a setting is ignored: {error}").into()),
        }
        self.desired = Some(desired);
    }

    pub(super) fn want(&self) -> Option<Want> {
        self.desired.as_ref().map(|desired| Want { revision: desired.revision, replicas: desired.replicas })
    }

    /// Its settings; a removed function keeps its last ones for the instances that finish.
    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// An instance became ready.
    pub(super) fn learn_ready(&mut self, record: &Record) {
        if self.is_wanted(record) {
            self.backoff.became_ready();
            self.trouble = None;
        }
    }

    /// An instance is gone.
    pub(super) fn learn_ending(&mut self, record: &Record, ending: &Ending, now: Instant) {
        if !self.is_wanted(record) {
            return;
        }
        let text = match (ending, record.ready) {
            (Ending::Stopped, _) => return,
            (Ending::Impossible(text), _) => {
                self.backoff.give_up();
                text
            }
            (Ending::FailedStart(text), _) | (Ending::Died(text), None) => {
                self.backoff.start_failed(record.started, now);
                text
            }
            (Ending::Died(text), Some(ready)) => {
                self.backoff.died(record.started, ready, now);
                text
            }
        };
        self.trouble = Some(text.as_str().into());
    }

    /// A start that did not even come to an instance.
    pub(super) fn learn_refusal(&mut self, text: String, now: Instant) {
        self.backoff.start_failed(now, now);
        self.trouble = Some(text.into());
    }

    fn is_wanted(&self, record: &Record) -> bool {
        self.want().is_some_and(|want| want.revision == record.revision)
    }

    /// What the data plane is told; `None` for a removed function.
    pub(super) fn route<'a>(&self, records: impl Iterator<Item = &'a Record>) -> Option<FunctionRoute> {
        let desired = self.desired.as_ref()?;
        let instances: Vec<_> = records.filter(|record| !record.exited).map(Record::instance).collect();
        let any_ready = instances.iter().any(|one| one.state == nearpath_types::InstanceState::Ready);
        let trouble = self.trouble.clone().filter(|_| desired.replicas > 0 && !any_ready);
        let (id, policy) = (desired.spec.id(), self.policy.clone());
        Some(FunctionRoute { id, policy, replicas: desired.replicas, instances, trouble })
    }
}
