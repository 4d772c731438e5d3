//! Virtual addresses of names, and the functions that need them.
//!
//! An address belongs to a name. A caller's `/etc/hosts` is written when its instance starts, so the
//! address of a callee exists before the callee is deployed, and outlives its removal.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use nearpath_types::FunctionId;
use nearpath_types::policy::CALLS;

use super::address_pool::AddressPool;
use super::{AddressNumber, CommandDecision, DeployedFunction, ModelChange};

/// Numbers of virtual addresses by name. Clones share all entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct VirtualAddressTable {
    pub(super) numbers: OrdMap<FunctionId, AddressNumber>,
    /// References to a name: one while it is deployed, and one of each deployed function that
    /// declares it as a callee. Follows from the functions.
    pub(super) references: OrdMap<FunctionId, u32>,
    pub(super) pool: AddressPool,
}

/// Changes of addresses that a command leads to.
#[derive(Debug, Default)]
pub(super) struct AddressChanges {
    pub(super) changes: Vec<ModelChange>,
    /// Names that need an address, while none is free.
    pub(super) without_address: Vec<FunctionId>,
}

impl VirtualAddressTable {
    /// Sets the address of a name.
    pub(super) fn put(&mut self, id: FunctionId, number: AddressNumber) {
        // The text of a name exists once in the model, wherever the caller has it from.
        let known = self.references.get_key_value(&id);
        let id = known.map_or(id, |(known, _)| known.clone());
        let old = self.numbers.insert(id, number);
        self.pool.replace(old, Some(number));
    }

    /// Removes the address of a name.
    pub(super) fn remove(&mut self, id: &FunctionId) {
        let old = self.numbers.remove(id);
        self.pool.replace(old, None);
    }

    /// Replaces the references of a function by those of its successor; `None`: it is not deployed.
    pub(super) fn replace_function(
        &mut self,
        old: Option<&DeployedFunction>,
        new: Option<&DeployedFunction>,
    ) {
        if let (Some(old), Some(new)) = (old, new)
            && Arc::ptr_eq(&old.spec, &new.spec)
        {
            return; // scaled only: reading the settings twice costs more than the change
        }
        if let Some(new) = new {
            self.add_deployed(new.spec.id());
            new.callees().into_iter().for_each(|id| self.add_callee(id));
        }
        let released = old.into_iter().flat_map(DeployedFunction::named_functions);
        released.for_each(|id| self.remove_reference(&id));
    }

    fn add_deployed(&mut self, id: FunctionId) {
        let others = self.references.get(&id).copied().unwrap_or_default();
        // Replaces the key, too: the function's own spec shares its text.
        self.references.insert(id, others + 1);
    }

    fn add_callee(&mut self, id: FunctionId) {
        *self.references.entry(id).or_insert(0) += 1;
    }

    fn remove_reference(&mut self, id: &FunctionId) {
        match self.references.get_mut(id) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.references.remove(id)),
        }
    }

    /// Returns the changes that follow when a function replaces another of its name. Costs what the
    /// names of both cost, however many functions there are.
    pub(super) fn changes_after(
        &self,
        old: Option<&DeployedFunction>,
        new: Option<&DeployedFunction>,
    ) -> AddressChanges {
        let mut next = self.clone();
        next.replace_function(old, new);
        let both = [old, new].into_iter().flatten();
        next.settle(both.flat_map(DeployedFunction::named_functions).collect())
    }

    /// Returns the changes for a table of an older version, or of one with other rules for settings.
    pub(super) fn changes_at_start(&self) -> AddressChanges {
        let all = self.references.keys().chain(self.numbers.keys());
        self.clone().settle(all.cloned().collect())
    }

    /// Draws addresses for those of `names` that functions refer to, and releases those of the others.
    /// In this order: a number that is released now is not reused at once.
    pub(super) fn settle(mut self, names: BTreeSet<FunctionId>) -> AddressChanges {
        let is_needed = |id: &FunctionId| self.references.contains_key(id);
        let (needed, unneeded): (Vec<_>, Vec<_>) = names.into_iter().partition(is_needed);
        let mut result = self.draw(needed);
        let released = unneeded
            .into_iter()
            .filter(|id| self.numbers.contains_key(id));
        result
            .changes
            .extend(released.map(ModelChange::DropAddress));
        result
    }

    fn draw(&mut self, names: Vec<FunctionId>) -> AddressChanges {
        let mut result = AddressChanges::default();
        let last = self.pool.last();
        for id in names {
            if self.numbers.contains_key(&id) {
                continue;
            }
            match self.pool.allocate() {
                Some(number) => result.changes.push(ModelChange::PutAddress(id, number)),
                None => result.without_address.push(id),
            }
        }
        if self.pool.last() != last {
            let last = self.pool.last().map(ModelChange::LastAddress);
            result.changes.extend(last);
        }
        result
    }
}

impl CommandDecision {
    /// Adds changes of addresses, which follow from the others.
    pub(super) fn with_addresses(mut self, addresses: AddressChanges) -> Self {
        self.changes.extend(addresses.changes);
        self.without_address = addresses.without_address;
        self
    }
}

impl DeployedFunction {
    /// Functions that it declares as callees; none while its settings are invalid.
    fn callees(&self) -> Vec<FunctionId> {
        // Most functions declare none, and reading all settings costs more than a look.
        match self.spec.annotations.contains_key(CALLS) {
            true => self.policy().calls,
            false => Vec::new(),
        }
    }

    /// Names whose addresses it needs: its own, and those of its callees.
    pub(super) fn named_functions(&self) -> impl Iterator<Item = FunctionId> {
        std::iter::once(self.spec.id()).chain(self.callees())
    }
}
