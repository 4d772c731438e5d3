//! Decision at the start: what a store of an older version lacks for virtual addresses.

use super::{
    AddressPrefix, CommandDecision, CommandOutcome, ControllerModel, DeployedFunction, ModelChange,
};

/// Decides which addresses a model lacks. `new_prefix` is used when it has none. Functions without
/// an address get one in order of their names.
pub(crate) fn complete_addresses(
    model: &ControllerModel,
    new_prefix: AddressPrefix,
) -> CommandDecision {
    let mut decision = CommandDecision::unchanged();
    if model.address_prefix.is_none() {
        decision
            .changes
            .push(ModelChange::AddressPrefix(new_prefix));
    }
    let mut next = model.clone();
    let lacking = model.functions.values().filter(|one| one.address.is_none());
    for function in lacking {
        let Some(number) = next.addresses.allocate() else {
            decision.without_address.push(function.spec.id());
            continue;
        };
        let change = ModelChange::PutFunction(DeployedFunction {
            address: Some(number),
            ..function.clone()
        });
        next.apply_change(change.clone());
        decision.changes.push(change);
    }
    if next.addresses.last() != model.addresses.last() {
        let last = next.addresses.last().map(ModelChange::LastAddress);
        decision.changes.extend(last);
    }
    if !decision.changes.is_empty() {
        decision.outcome = CommandOutcome::Updated;
    }
    decision
}
