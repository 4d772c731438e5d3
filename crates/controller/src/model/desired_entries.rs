//! Entries of the desired state. They follow from the model, and changes renew those that they
//! concern.

use nearpath_types::{DesiredFunction, DesiredState, FunctionId, VirtualAddress};

use super::{ControllerModel, DeployedFunction, SecretId};

impl ControllerModel {
    /// Desired state of all functions, for the node. Shares all entries with the model.
    pub fn desired_state(&self) -> DesiredState {
        self.desired.clone()
    }

    pub(super) fn renew_desired(&mut self, id: &FunctionId) {
        match self.functions.get(id) {
            Some(function) => {
                let desired = self.desired_function(function);
                self.desired.functions.insert(id.clone(), desired);
            }
            None => drop(self.desired.functions.remove(id)),
        }
    }

    pub(super) fn renew_address(&mut self, id: &FunctionId) {
        match self.desired_address(id) {
            Some((id, address)) => drop(self.desired.addresses.insert(id, address)),
            None => drop(self.desired.addresses.remove(id)),
        }
    }

    pub(super) fn renew_addresses(&mut self) {
        let names: Vec<_> = self.addresses.numbers.keys().cloned().collect();
        names.iter().for_each(|id| self.renew_address(id));
    }

    /// Entry of a name's address, whose key shares its text with the model.
    pub(super) fn desired_address(&self, id: &FunctionId) -> Option<(FunctionId, VirtualAddress)> {
        let (id, number) = self.addresses.numbers.get_key_value(id)?;
        Some((id.clone(), self.address_prefix?.address(*number)))
    }

    pub(super) fn renew_nodes(&mut self) {
        self.desired.nodes = self.nodes.keys().cloned().collect();
    }

    pub(super) fn renew_users(&mut self, secret: &SecretId) {
        let users: Vec<_> = self
            .functions_using(secret)
            .map(|function| function.spec.id())
            .collect();
        users.iter().for_each(|id| self.renew_desired(id));
    }

    pub(super) fn desired_function(&self, function: &DeployedFunction) -> DesiredFunction {
        // A deploy refuses missing secrets; a spec that an older version accepted may still name
        // one.
        let secret_content = |name: String| {
            let id = SecretId {
                namespace: function.spec.namespace.clone(),
                name: name.parse().ok()?,
            };
            self.secrets
                .get(&id)
                .map(|secret| (name, secret.0.to_vec()))
        };
        DesiredFunction {
            spec: function.spec.clone(),
            revision: function.revision,
            replicas: function.replicas,
            secrets: function
                .spec
                .needed_secrets()
                .into_iter()
                .filter_map(secret_content)
                .collect(),
        }
    }
}
