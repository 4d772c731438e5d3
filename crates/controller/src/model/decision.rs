//! Decision on a command: changes of the model, or a refusal.

use std::sync::Arc;
use std::time::SystemTime;

use nearpath_types::{FunctionId, FunctionSpec, Namespace, Revision};

use super::difference::apply_declared;
use super::validation::{normalize_spec, validate_spec};
use super::{
    CommandDecision, CommandOutcome, CommandRefusal, ControllerCommand, ControllerModel,
    DeployedFunction, ModelChange, NamespaceEntry, SecretId, SecretValue,
};

type DecisionResult = Result<CommandDecision, CommandRefusal>;

/// Decides a command. `now` becomes the creation time of new functions.
///
/// # Errors
/// When the command does not fit the model; nothing changes then.
pub fn decide_command(
    model: &ControllerModel,
    command: &ControllerCommand,
    now: SystemTime,
) -> DecisionResult {
    match command {
        ControllerCommand::Deploy(spec) => deploy_function(model, spec, now),
        ControllerCommand::Update(spec) => match model.functions.contains_key(&spec.id()) {
            true => deploy_function(model, spec, now),
            false if !model.has_namespace(&spec.namespace) => {
                Err(CommandRefusal::UnknownNamespace(spec.namespace.clone()))
            }
            false => Err(CommandRefusal::NoFunction(spec.id())),
        },
        ControllerCommand::Remove(id) => remove_function(model, id),
        ControllerCommand::Scale(id, replicas) => scale_function(model, id, *replicas),
        ControllerCommand::Wake(id) => wake_function(model, id),
        ControllerCommand::CreateSecret(id, value) => create_secret(model, id, value),
        ControllerCommand::UpdateSecret(id, value) => update_secret(model, id, value),
        ControllerCommand::RemoveSecret(id) => remove_secret(model, id),
        ControllerCommand::CreateNamespace(name, entry) => create_namespace(model, name, entry),
        ControllerCommand::UpdateNamespace(name, entry) => update_namespace(model, name, entry),
        ControllerCommand::RemoveNamespace(name) => remove_namespace(model, name),
        ControllerCommand::ApplyDeclared(state) => apply_declared(model, state, now),
    }
}

/// Deploys or replaces a function. An equal spec gets a new revision too: the content of its folder
/// may have changed, and a deploy is how a user applies that. A deploy wakes a sleeping function,
/// so that its author sees whether it starts.
fn deploy_function(
    model: &ControllerModel,
    spec: &FunctionSpec,
    now: SystemTime,
) -> DecisionResult {
    let spec = normalize_spec(spec);
    let policy = validate_spec(model, &spec)?;
    let old = model.functions.get(&spec.id());
    let revision = Revision(model.revision.0 + 1);
    let outcome = if old.is_some() {
        CommandOutcome::Updated
    } else {
        CommandOutcome::Created
    };
    let replicas = old
        .map_or(0, |old| old.replicas)
        .clamp(policy.scale_min, policy.scale_max);
    // An update keeps the creation time and the replicas: scaling and deploying are separate
    // operations.
    let created_at = old.map_or(now, |old| old.created_at);
    let function = DeployedFunction {
        spec: Arc::new(spec),
        revision,
        replicas,
        created_at,
        folder: None,
    };
    let addresses = model.addresses.changes_after(old, Some(&function));
    let changes = vec![
        ModelChange::Revision(revision),
        ModelChange::PutFunction(function),
    ];
    Ok(CommandDecision::new(outcome, changes).with_addresses(addresses))
}

fn remove_function(model: &ControllerModel, id: &FunctionId) -> DecisionResult {
    let old = find_function(model, id)?;
    let addresses = model.addresses.changes_after(Some(old), None);
    Ok(removal_decision(ModelChange::DropFunction(id.clone())).with_addresses(addresses))
}

fn scale_function(model: &ControllerModel, id: &FunctionId, replicas: u64) -> DecisionResult {
    let function = find_function(model, id)?;
    let max_replicas = function.policy().scale_max;
    // Cut to the maximum instead of refused: autoscalers and users may ask for any number.
    Ok(with_replicas(
        function,
        u32::try_from(replicas)
            .unwrap_or(u32::MAX)
            .min(max_replicas),
    ))
}

fn wake_function(model: &ControllerModel, id: &FunctionId) -> DecisionResult {
    let function = find_function(model, id)?;
    match function.replicas {
        0 => Ok(with_replicas(function, function.policy().scale_min)),
        _ => Ok(CommandDecision::unchanged()),
    }
}

fn with_replicas(function: &DeployedFunction, replicas: u32) -> CommandDecision {
    match function.replicas == replicas {
        true => CommandDecision::unchanged(),
        false => decision_with(
            CommandOutcome::Updated,
            ModelChange::PutFunction(DeployedFunction {
                replicas,
                ..function.clone()
            }),
        ),
    }
}

fn create_secret(model: &ControllerModel, id: &SecretId, value: &SecretValue) -> DecisionResult {
    if !model.has_namespace(&id.namespace) {
        return Err(CommandRefusal::UnknownNamespace(id.namespace.clone()));
    }
    match model.secrets.contains_key(id) {
        true => Err(CommandRefusal::SecretExists(id.clone())),
        false => Ok(decision_with(
            CommandOutcome::Created,
            ModelChange::PutSecret(id.clone(), value.clone()),
        )),
    }
}

fn update_secret(model: &ControllerModel, id: &SecretId, value: &SecretValue) -> DecisionResult {
    let old = model
        .secrets
        .get(id)
        .ok_or_else(|| CommandRefusal::NoSecret(id.clone()))?;
    if old == value {
        return Ok(CommandDecision::unchanged());
    }
    let mut revision = model.revision;
    let mut changes = vec![ModelChange::PutSecret(id.clone(), value.clone())];
    // A new revision restarts the instances: a secret is copied into an instance at its start.
    for function in model.functions_using(id) {
        revision.0 += 1;
        changes.push(ModelChange::PutFunction(DeployedFunction {
            revision,
            ..function.clone()
        }));
    }
    changes.push(ModelChange::Revision(revision));
    Ok(CommandDecision::new(CommandOutcome::Updated, changes))
}

fn remove_secret(model: &ControllerModel, id: &SecretId) -> DecisionResult {
    if !model.secrets.contains_key(id) {
        return Err(CommandRefusal::NoSecret(id.clone()));
    }
    let users = summarize_list(
        model
            .functions_using(id)
            .map(|function| function.spec.service.to_string()),
    );
    match users.is_empty() {
        true => Ok(removal_decision(ModelChange::DropSecret(id.clone()))),
        false => Err(CommandRefusal::SecretInUse(id.clone(), users)),
    }
}

fn create_namespace(
    model: &ControllerModel,
    name: &Namespace,
    entry: &NamespaceEntry,
) -> DecisionResult {
    match model.has_namespace(name) {
        true => Err(CommandRefusal::NamespaceExists(name.clone())),
        false => Ok(decision_with(
            CommandOutcome::Created,
            ModelChange::PutNamespace(name.clone(), entry.clone()),
        )),
    }
}

fn update_namespace(
    model: &ControllerModel,
    name: &Namespace,
    entry: &NamespaceEntry,
) -> DecisionResult {
    match model.namespace_entry(name) {
        None => Err(CommandRefusal::NoNamespace(name.clone())),
        Some(old) if old == *entry => Ok(CommandDecision::unchanged()),
        Some(_) => Ok(decision_with(
            CommandOutcome::Updated,
            ModelChange::PutNamespace(name.clone(), entry.clone()),
        )),
    }
}

/// Removes an empty namespace. Removing its functions and secrets too would be a surprise that
/// nothing can undo.
fn remove_namespace(model: &ControllerModel, name: &Namespace) -> DecisionResult {
    if *name == Namespace::default() {
        return Err(CommandRefusal::DefaultNamespace(name.clone()));
    }
    if !model.has_namespace(name) {
        return Err(CommandRefusal::NoNamespace(name.clone()));
    }
    let functions = model
        .functions_in(name)
        .map(|function| format!("function {}", function.spec.service));
    let secrets = model
        .secrets
        .keys()
        .filter(|id| id.namespace == *name)
        .map(|id| format!("secret {}", id.name));
    let contents = summarize_list(functions.chain(secrets));
    match contents.is_empty() {
        true => Ok(removal_decision(ModelChange::DropNamespace(name.clone()))),
        false => Err(CommandRefusal::NamespaceNotEmpty(name.clone(), contents)),
    }
}

/// The first five items, and the number of the others.
fn summarize_list(items: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = items.collect();
    match all.len().checked_sub(5) {
        None | Some(0) => all.join(", "),
        Some(more) => format!("{} and {more} more", all[..5].join(", ")),
    }
}

fn find_function<'a>(
    model: &'a ControllerModel,
    id: &FunctionId,
) -> Result<&'a DeployedFunction, CommandRefusal> {
    model
        .functions
        .get(id)
        .ok_or_else(|| CommandRefusal::NoFunction(id.clone()))
}

fn decision_with(outcome: CommandOutcome, change: ModelChange) -> CommandDecision {
    CommandDecision::new(outcome, vec![change])
}

fn removal_decision(change: ModelChange) -> CommandDecision {
    decision_with(CommandOutcome::Removed, change)
}
