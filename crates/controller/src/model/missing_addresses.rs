//! Decision at the start: what a store of an older version lacks for virtual addresses.

use super::{AddressPrefix, CommandDecision, CommandOutcome, ControllerModel, ModelChange};

/// Decides which addresses a model lacks. `new_prefix` is used when it has none. Names without an
/// address get one in order. Names that functions no longer need lose theirs: another version may
/// read their settings in another way.
pub(crate) fn complete_addresses(
    model: &ControllerModel,
    new_prefix: AddressPrefix,
) -> CommandDecision {
    let prefix = match model.address_prefix {
        Some(_) => None,
        None => Some(ModelChange::AddressPrefix(new_prefix)),
    };
    let changes = prefix.into_iter().collect();
    let addresses = model.addresses.changes_at_start();
    let mut decision =
        CommandDecision::new(CommandOutcome::Unchanged, changes).with_addresses(addresses);
    if !decision.changes.is_empty() {
        decision.outcome = CommandOutcome::Updated;
    }
    decision
}
