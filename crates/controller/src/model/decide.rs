//! Command × model → changes, or a refusal.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use nearpath_types::{FunctionId, FunctionSpec, Namespace, Revision};

use super::check::check;
use super::{Change, Command, Decision, Function, Model, NamespaceEntry, Outcome, Refusal, Secret, SecretId};

type Decided = Result<Decision, Refusal>;

/// Decides a command. `now` becomes the creation time of what is new.
///
/// # Errors
/// When the command does not fit the model; nothing is to be changed then.
pub fn decide(model: &Model, command: &Command, now: SystemTime) -> Decided {
    match command {
        Command::Deploy(spec) => deploy(model, spec, now),
        Command::Update(spec) => match model.functions.contains_key(&spec.id()) {
            true => deploy(model, spec, now),
            false if !model.has_namespace(&spec.namespace) => Err(Refusal::NamespaceMissing(spec.namespace.clone())),
            false => Err(Refusal::NoFunction(spec.id())),
        },
        Command::Remove(id) => existing(model, id).map(|_| removed(Change::DropFunction(id.clone()))),
        Command::Scale(id, replicas) => scale(model, id, *replicas),
        Command::Wake(id) => wake(model, id),
        Command::CreateSecret(id, value) => create_secret(model, id, value),
        Command::UpdateSecret(id, value) => update_secret(model, id, value),
        Command::RemoveSecret(id) => remove_secret(model, id),
        Command::CreateNamespace(name, entry) => create_namespace(model, name, entry),
        Command::UpdateNamespace(name, entry) => update_namespace(model, name, entry),
        Command::RemoveNamespace(name) => remove_namespace(model, name),
    }
}

/// An equal spec gets a new revision too: what its folder holds may have changed, and a deploy is how one asks for that
/// to be picked up. A deploy wakes a sleeping function, so that its author sees whether it starts.
fn deploy(model: &Model, spec: &FunctionSpec, now: SystemTime) -> Decided {
    let spec = tidied(spec);
    let policy = check(model, &spec)?;
    let old = model.functions.get(&spec.id());
    let revision = Revision(model.revision.0 + 1);
    let outcome = if old.is_some() { Outcome::Updated } else { Outcome::Created };
    let replicas = old.map_or(0, |old| old.replicas).clamp(policy.scale_min, policy.scale_max);
    let created_at = old.map_or(now, |old| old.created_at);
    let function = Function { spec: Arc::new(spec), revision, replicas, created_at };
    Ok(Decision { outcome, changes: vec![Change::Revision(revision), Change::PutFunction(function)] })
}

/// Without what says nothing: empty quantities, which some clients send for none, and secrets named twice.
fn tidied(spec: &FunctionSpec) -> FunctionSpec {
    let mut spec = spec.clone();
    for resources in [&mut spec.limits, &mut spec.requests].into_iter().flatten() {
        resources.memory.take_if(|text| text.is_empty());
        resources.cpu.take_if(|text| text.is_empty());
    }
    let mut seen = BTreeSet::new();
    spec.secrets.retain(|name| seen.insert(name.clone()));
    spec
}

fn scale(model: &Model, id: &FunctionId, replicas: u64) -> Decided {
    let function = existing(model, id)?;
    let most = function.policy().scale_max;
    Ok(with_replicas(function, u32::try_from(replicas).unwrap_or(u32::MAX).min(most)))
}

fn wake(model: &Model, id: &FunctionId) -> Decided {
    let function = existing(model, id)?;
    match function.replicas {
        0 => Ok(with_replicas(function, function.policy().scale_min)),
        _ => Ok(unchanged()),
    }
}

fn with_replicas(function: &Function, replicas: u32) -> Decision {
    match function.replicas == replicas {
        true => unchanged(),
        false => put(Outcome::Updated, Change::PutFunction(Function { replicas, ..function.clone() })),
    }
}

fn create_secret(model: &Model, id: &SecretId, value: &Secret) -> Decided {
    if !model.has_namespace(&id.namespace) {
        return Err(Refusal::NamespaceMissing(id.namespace.clone()));
    }
    match model.secrets.contains_key(id) {
        true => Err(Refusal::SecretExists(id.clone())),
        false => Ok(put(Outcome::Created, Change::PutSecret(id.clone(), value.clone()))),
    }
}

fn update_secret(model: &Model, id: &SecretId, value: &Secret) -> Decided {
    let old = model.secrets.get(id).ok_or_else(|| Refusal::NoSecret(id.clone()))?;
    if old == value {
        return Ok(unchanged());
    }
    let mut revision = model.revision;
    let mut changes = vec![Change::PutSecret(id.clone(), value.clone())];
    for function in model.users_of(id) {
        revision.0 += 1;
        changes.push(Change::PutFunction(Function { revision, ..function.clone() }));
    }
    changes.push(Change::Revision(revision));
    Ok(Decision { outcome: Outcome::Updated, changes })
}

fn remove_secret(model: &Model, id: &SecretId) -> Decided {
    if !model.secrets.contains_key(id) {
        return Err(Refusal::NoSecret(id.clone()));
    }
    let users = list(model.users_of(id).map(|function| function.spec.service.to_string()));
    match users.is_empty() {
        true => Ok(removed(Change::DropSecret(id.clone()))),
        false => Err(Refusal::SecretInUse(id.clone(), users)),
    }
}

fn create_namespace(model: &Model, name: &Namespace, entry: &NamespaceEntry) -> Decided {
    match model.has_namespace(name) {
        true => Err(Refusal::NamespaceExists(name.clone())),
        false => Ok(put(Outcome::Created, Change::PutNamespace(name.clone(), entry.clone()))),
    }
}

fn update_namespace(model: &Model, name: &Namespace, entry: &NamespaceEntry) -> Decided {
    match model.namespace(name) {
        None => Err(Refusal::NoNamespace(name.clone())),
        Some(old) if old == *entry => Ok(unchanged()),
        Some(_) => Ok(put(Outcome::Updated, Change::PutNamespace(name.clone(), entry.clone()))),
    }
}

/// Only an empty one goes: removing functions and secrets by the way would be a surprise that nothing can undo.
fn remove_namespace(model: &Model, name: &Namespace) -> Decided {
    if *name == Namespace::default() {
        return Err(Refusal::NamespaceIsDefault(name.clone()));
    }
    if !model.has_namespace(name) {
        return Err(Refusal::NoNamespace(name.clone()));
    }
    let functions = model.functions_in(name).map(|function| format!("function {}", function.spec.service));
    let secrets = model.secrets.keys().filter(|id| id.namespace == *name).map(|id| format!("secret {}", id.name));
    let held = list(functions.chain(secrets));
    match held.is_empty() {
        true => Ok(removed(Change::DropNamespace(name.clone()))),
        false => Err(Refusal::NamespaceNotEmpty(name.clone(), held)),
    }
}

/// The first few of a list, and how many more there are.
fn list(items: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = items.collect();
    match all.len().checked_sub(5) {
        None | Some(0) => all.join(", "),
        Some(more) => format!("{} and {more} more", all[..5].join(", ")),
    }
}

fn existing<'a>(model: &'a Model, id: &FunctionId) -> Result<&'a Function, Refusal> {
    model.functions.get(id).ok_or_else(|| Refusal::NoFunction(id.clone()))
}

fn put(outcome: Outcome, change: Change) -> Decision {
    Decision { outcome, changes: vec![change] }
}

fn removed(change: Change) -> Decision {
    put(Outcome::Removed, change)
}

fn unchanged() -> Decision {
    Decision { outcome: Outcome::Unchanged, changes: Vec::new() }
}
