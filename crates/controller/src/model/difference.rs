//! Decision on a declared state: its difference to the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use nearpath_types::{
    FunctionId, FunctionPolicy, FunctionSpec, Namespace, NodeAddresses, Revision,
};

use super::validation::{check_fields, check_secrets, normalize_shared};
use super::{
    CommandDecision, CommandOutcome, CommandRefusal, ControllerModel, DeclaredFunction,
    DeclaredState, DeployedFunction, FolderDigest, ModelChange, NamespaceEntry, SecretId,
    SecretValue,
};

/// Decides a declared state as a difference to the model. An unchanged function keeps revision and
/// replicas, and a sleeping one stays asleep.
pub(super) fn apply_declared(
    model: &ControllerModel,
    state: &DeclaredState,
    now: SystemTime,
) -> Result<CommandDecision, CommandRefusal> {
    let mut difference = Difference {
        next: model.clone(),
        changes: Vec::new(),
        named: BTreeSet::new(),
    };
    difference.replace_nodes(&state.nodes);
    difference.add_namespaces(state);
    // Before functions: their checks and their desired state need the new secrets.
    let changed_secrets = difference.put_secrets(&state.secrets);
    for (id, function) in &state.functions {
        difference
            .put_function(state, function, &changed_secrets, now)
            .map_err(|refusal| CommandRefusal::DeclaredFunction(id.clone(), Box::new(refusal)))?;
    }
    difference.remove_others(state);
    Ok(difference.into_decision(model))
}

/// Changes so far, and the model that they lead to.
struct Difference {
    next: ControllerModel,
    changes: Vec<ModelChange>,
    /// Names whose addresses changes of functions may concern.
    named: BTreeSet<FunctionId>,
}

impl Difference {
    fn push(&mut self, change: ModelChange) {
        self.next.apply_change(change.clone());
        self.changes.push(change);
    }

    fn into_decision(mut self, before: &ControllerModel) -> CommandDecision {
        if self.next.revision != before.revision {
            self.changes.push(ModelChange::Revision(self.next.revision));
        }
        let outcome = match self.changes.is_empty() {
            true => CommandOutcome::Unchanged,
            false => CommandOutcome::Updated,
        };
        // After all functions: a name that only moves from one caller to another keeps its address.
        let addresses = self.next.addresses.settle(self.named);
        CommandDecision::new(outcome, self.changes).with_addresses(addresses)
    }

    fn next_revision(&mut self) -> Revision {
        self.next.revision.0 += 1;
        self.next.revision
    }

    /// Puts a function, and notes the names whose addresses this may concern.
    fn push_function(&mut self, old: Option<&DeployedFunction>, new: DeployedFunction) {
        let both = old.into_iter().chain([&new]);
        self.named
            .extend(both.flat_map(DeployedFunction::named_functions));
        self.push(ModelChange::PutFunction(new));
    }

    fn replace_nodes(&mut self, nodes: &NodeAddresses) {
        for (name, address) in nodes {
            if self.next.nodes.get(name) != Some(address) {
                self.push(ModelChange::PutNode(name.clone(), address.clone()));
            }
        }
        for name in names_missing_in(self.next.nodes.keys(), |name| nodes.contains_key(name)) {
            self.push(ModelChange::DropNode(name));
        }
    }

    fn add_namespaces(&mut self, state: &DeclaredState) {
        for name in state.namespaces() {
            if !self.next.has_namespace(name) {
                let entry = NamespaceEntry::default();
                self.push(ModelChange::PutNamespace(name.clone(), entry));
            }
        }
    }

    /// Returns the secrets whose content is new: functions read one at their start only.
    fn put_secrets(&mut self, secrets: &BTreeMap<SecretId, SecretValue>) -> BTreeSet<SecretId> {
        let mut changed = BTreeSet::new();
        for (id, value) in secrets {
            if self.next.secrets.get(id) != Some(value) {
                self.push(ModelChange::PutSecret(id.clone(), value.clone()));
                changed.insert(id.clone());
            }
        }
        changed
    }

    fn put_function(
        &mut self,
        state: &DeclaredState,
        declared: &DeclaredFunction,
        changed_secrets: &BTreeSet<SecretId>,
        now: SystemTime,
    ) -> Result<(), CommandRefusal> {
        let spec = normalize_shared(&declared.spec);
        let policy = check_fields(&spec)?;
        let runs_here = policy.runs_on(&state.node);
        if runs_here {
            check_secrets(&self.next, &spec)?;
        }
        let old = self.next.functions.get(&spec.id()).cloned();
        let change = FunctionUpdate {
            spec,
            policy,
            folder: declared.folder.clone(),
            has_new_secret: runs_here && needs_any(&declared.spec, changed_secrets),
        };
        match old {
            Some(old) => self.update_function(&old, change),
            None => self.add_function(change, now),
        }
        Ok(())
    }

    fn add_function(&mut self, new: FunctionUpdate, now: SystemTime) {
        let function = DeployedFunction {
            revision: self.next_revision(),
            replicas: new.policy.scale_min,
            created_at: now,
            folder: new.folder,
            spec: new.spec,
        };
        self.push_function(None, function);
    }

    fn update_function(&mut self, old: &DeployedFunction, new: FunctionUpdate) {
        if new.is_equal(old) {
            return;
        }
        let keeps_revision = new.is_moved_copy(old);
        let function = DeployedFunction {
            revision: match keeps_revision {
                true => old.revision,
                false => self.next_revision(),
            },
            // The source says how many, and calls alone wake a function.
            replicas: match (keeps_revision, old.replicas) {
                (true, replicas) => replicas,
                (false, 0) => 0,
                (false, _) => new.policy.scale_min,
            },
            created_at: old.created_at,
            folder: new.folder,
            spec: new.spec,
        };
        self.push_function(Some(old), function);
    }

    /// Removes what the state does not have. Functions first: they use the others.
    fn remove_others(&mut self, state: &DeclaredState) {
        let is_declared = |id: &FunctionId| state.functions.contains_key(id);
        for id in names_missing_in(self.next.functions.keys(), is_declared) {
            let removed = self.next.functions.get(&id).into_iter();
            self.named
                .extend(removed.flat_map(DeployedFunction::named_functions));
            self.push(ModelChange::DropFunction(id));
        }
        let is_declared = |id: &SecretId| state.secrets.contains_key(id);
        for id in names_missing_in(self.next.secrets.keys(), is_declared) {
            self.push(ModelChange::DropSecret(id));
        }
        let declared: BTreeSet<_> = state.namespaces().collect();
        // The default one always exists; it is listed only when it has labels.
        let is_kept = |name: &Namespace| *name == Namespace::default() || declared.contains(name);
        for name in names_missing_in(self.next.namespaces.keys(), is_kept) {
            self.push(ModelChange::DropNamespace(name));
        }
    }
}

/// A declared function, normalized and checked.
struct FunctionUpdate {
    spec: Arc<FunctionSpec>,
    policy: FunctionPolicy,
    folder: Option<FolderDigest>,
    has_new_secret: bool,
}

impl FunctionUpdate {
    fn is_equal(&self, old: &DeployedFunction) -> bool {
        self.spec == old.spec && self.folder == old.folder && !self.has_new_secret
    }

    /// Returns whether only the path of the folder differs, as when the source is a link to the
    /// newest of several folders. Instances run from a copy, so they can go on.
    fn is_moved_copy(&self, old: &DeployedFunction) -> bool {
        let moved = FunctionSpec {
            image: self.spec.image.clone(),
            ..FunctionSpec::clone(&old.spec)
        };
        self.folder.is_some()
            && self.folder == old.folder
            && *self.spec == moved
            && !self.has_new_secret
    }
}

fn needs_any(spec: &FunctionSpec, secrets: &BTreeSet<SecretId>) -> bool {
    let needed = spec.needed_secrets();
    secrets
        .iter()
        .filter(|id| id.namespace == spec.namespace)
        .any(|id| needed.iter().any(|name| name == id.name.as_str()))
}

fn names_missing_in<'a, T: Clone + 'a>(
    present: impl Iterator<Item = &'a T>,
    is_kept: impl Fn(&T) -> bool,
) -> Vec<T> {
    present.filter(|name| !is_kept(name)).cloned().collect()
}
