//! Rows of the virtual switch, from functions and their instances.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use nearpath_types::{FunctionId, FunctionMap, FunctionPolicy, InstanceState, VirtualAddress};

use super::NodeAgent;
use crate::virtual_switch::FunctionRows;

impl NodeAgent {
    /// Brings the virtual switch up to date with these functions.
    pub(super) fn update_switch(&mut self, changed: &BTreeSet<FunctionId>) {
        for id in changed {
            let changes = self.switch.replace(id, self.rows_of(id));
            if !changes.is_empty() {
                self.factory.context.machine.apply_switch_changes(&changes);
            }
        }
    }

    /// Returns the rows of a function; `None` without one. It has rows from its first instance here on,
    /// so that counters outlive its instances.
    fn rows_of(&self, id: &FunctionId) -> Option<FunctionRows> {
        let function = self.functions.get(id)?;
        let known = self.switch.get(id);
        if known.is_none() && !self.instances.has_instances(id) {
            return None;
        }
        // A removed function keeps its address for its draining instances.
        let address = self.address_of(id).or(known.map(|rows| rows.address))?;
        let addresses = |list: fn(&FunctionPolicy) -> &Vec<FunctionId>| {
            let policy = function.policy().into_iter();
            let callees = policy.flat_map(list);
            callees
                .filter_map(|callee| self.address_of(callee))
                .collect()
        };
        let ready = self.instances.instances_of(id).filter(|record| {
            // Nothing answers there any more, though its cleanup may take seconds.
            record.state == InstanceState::Ready && !record.exited
        });
        Some(FunctionRows {
            address,
            callees: addresses(|policy| &policy.calls),
            connection_balanced: addresses(|policy| &policy.connection_balanced),
            backends: ready.filter_map(|record| record.allocation.eip).collect(),
        })
    }

    fn address_of(&self, id: &FunctionId) -> Option<Ipv4Addr> {
        let addresses = &self.applied.as_ref()?.addresses;
        addresses.get(id).map(|address| address.v4)
    }

    /// Returns the addresses of all functions. A copy costs nothing.
    pub(super) fn addresses(&self) -> FunctionMap<VirtualAddress> {
        let applied = self.applied.as_ref();
        applied.map_or_else(FunctionMap::default, |desired| desired.addresses.clone())
    }
}
