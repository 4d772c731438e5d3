//! Creation of instances: allocates resources, builds the spec, and spawns the instance's task.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::policy::{ChainPlacement, FROZEN};
use nearpath_types::{
    DesiredFunction, EgressSpec, Eip, FunctionMap, FunctionPolicy, FunctionSpec, InstanceResources,
    VirtualAddress, quantity,
};

use super::allocations::{Allocations, InstanceAllocation};
use super::instance_record::InstanceRecord;
use crate::domains::DomainRegistry;
use crate::instance::lifecycle::{Lifecycle, LifecycleContext};
use crate::instance::{chain, variables};
use crate::machine::{EgressAccess, InstanceLimits, InstanceSpec};
use crate::virtual_switch::host_entries;

pub(crate) struct InstanceFactory {
    pub(super) context: LifecycleContext,
    defaults: InstanceDefaults,
    allocations: Allocations,
    pub(super) domains: DomainRegistry,
}

/// Settings that all instances share.
pub(crate) struct InstanceDefaults {
    /// URL of the gateway.
    pub(crate) gateway_url: String,
    /// Address of the gateway, for instances with a network of their own.
    pub(crate) gateway: SocketAddr,
    /// Parent of the temporary folders of instances without a private `/tmp`.
    pub(crate) tmp_dir: PathBuf,
    /// Limits of functions that declare none.
    pub(crate) limits: InstanceResources,
}

impl InstanceFactory {
    pub(crate) fn new(
        context: LifecycleContext,
        defaults: InstanceDefaults,
        allocations: Allocations,
        domains: DomainRegistry,
    ) -> Self {
        Self {
            context,
            defaults,
            allocations,
            domains,
        }
    }

    /// Starts an instance with the function's last valid policy; events report its progress.
    ///
    /// # Errors
    /// Fails before an instance exists. The text is for the tenant.
    pub(super) fn start_instance(
        &mut self,
        desired: &DesiredFunction,
        policy: &FunctionPolicy,
        addresses: &FunctionMap<VirtualAddress>,
        now: Instant,
    ) -> Result<InstanceRecord, String> {
        let desired = &self.with_default_limits(desired);
        // Before anything is allocated: a wrong text then leaves nothing to release.
        let limits = parse_limits(&desired.spec)?;
        let allocation = self
            .allocations
            .allocate(self.context.machine.has_network())?;
        // Without an instance nothing else would release it.
        let mut instance = self
            .instance_spec(&allocation, desired, policy, limits)
            .inspect_err(|_| self.allocations.release(allocation))?;
        instance.egress = egress_access(desired, policy);
        let own_address = addresses.get(&instance.function);
        instance.virtual_address = own_address.map(|address| address.v4);
        instance.callees = host_entries(&instance.function, policy, addresses);
        self.admit_to_domain(&mut instance, &desired.spec, policy);
        let has_identity = self.context.identities.serves_transport(policy.transport);
        self.add_local_gateway(&mut instance, policy, has_identity);
        if has_identity {
            add_identity(&mut instance, &desired.spec, policy);
        }
        if !policy.frozen.is_zero() && !self.context.machine.can_freeze() {
            let text = format!(
                "nearpath: {FROZEN} has no effect on this node: it needs virtual addresses; `nearpath doctor` explains why"
            );
            let logs = &self.context.logs;
            logs.push_line(&instance.function, instance.id, text);
        }
        let (record, requests) = InstanceRecord::new_starting(allocation, desired, policy, now);
        tokio::spawn(Lifecycle::new(instance, desired, self.context.clone()).run(requests));
        Ok(record)
    }

    /// Opens the instance's socket to its domain. Without one it is called over HTTP only.
    fn admit_to_domain(
        &mut self,
        instance: &mut InstanceSpec,
        spec: &FunctionSpec,
        policy: &FunctionPolicy,
    ) {
        match self
            .domains
            .admit_instance((instance.id, instance.uid), &instance.function, policy)
        {
            Ok(socket) => instance.dispatch_socket = socket,
            Err(error) => {
                tracing::warn!(function = %instance.function, %error, "socket to the chain's shared memory could not be opened; calls go over HTTP")
            }
        }
        let Some(socket) = &instance.dispatch_socket else {
            return;
        };
        let has_network = instance.eip.is_some();
        instance
            .environment
            .extend(chain::chain_variables(spec, policy, socket, has_network));
    }

    /// Gives an instance that calls others a local gateway: the gateway itself, or the watchdog, which
    /// calls others over QUIC with its identity. Without a network of its own the loopback address is
    /// shared, and the gateway is called at its own.
    fn add_local_gateway(
        &self,
        instance: &mut InstanceSpec,
        policy: &FunctionPolicy,
        has_identity: bool,
    ) {
        let Some(network) = self
            .network_of(instance)
            .filter(|_| !policy.calls.is_empty())
        else {
            return;
        };
        instance.local_gateway = Some(chain::LOCAL_GATEWAY_IP);
        let environment = &mut instance.environment;
        if has_identity {
            environment.extend(chain::watchdog_gateway_variables(network));
        } else {
            let listener = chain::gateway_listener(network.1);
            instance.gateway_listener = Some(listener);
            environment.extend(chain::gateway_listener_variable(listener));
        }
    }

    /// Returns the instance's own address and the gateway's, if it has a network of its own.
    fn network_of(&self, instance: &InstanceSpec) -> Option<(Eip, SocketAddr)> {
        instance.eip.map(|eip| (eip, self.defaults.gateway))
    }

    /// Returns the function with the node's limits where it declares none, as far as the machine
    /// enforces them: it would warn of others, although no author declared them.
    fn with_default_limits(&self, desired: &DesiredFunction) -> DesiredFunction {
        let any = InstanceLimits {
            memory: Some(1),
            cpu: Some(1),
            pids: None,
        };
        let unenforced = self.context.machine.unenforced_limits(&any);
        let is_enforced = |name: &&str| !unenforced.contains(name);
        let defaults = &self.defaults.limits;
        let mut limits = desired.spec.limits.clone().unwrap_or_default();
        if let Some(memory) = defaults
            .memory
            .as_ref()
            .filter(|_| is_enforced(&"limits.memory"))
        {
            limits.memory.get_or_insert_with(|| memory.clone());
        }
        if let Some(cpu) = defaults.cpu.as_ref().filter(|_| is_enforced(&"limits.cpu")) {
            limits.cpu.get_or_insert_with(|| cpu.clone());
        }
        limits.pids = limits.pids.or(defaults.pids);
        DesiredFunction {
            spec: Arc::new(FunctionSpec {
                limits: Some(limits),
                ..FunctionSpec::clone(&desired.spec)
            }),
            ..desired.clone()
        }
    }

    fn instance_spec(
        &self,
        allocation: &InstanceAllocation,
        desired: &DesiredFunction,
        policy: &FunctionPolicy,
        limits: InstanceLimits,
    ) -> Result<InstanceSpec, String> {
        let spec = &desired.spec;
        let tmp = self.defaults.tmp_dir.join(allocation.id.to_string());
        // A network of its own comes with a mount namespace, hence a private /tmp.
        let tmp_text = if allocation.eip.is_some() {
            "/tmp".into()
        } else {
            tmp.to_string_lossy()
        };
        let environment = variables::build_environment(
            (spec, policy),
            allocation.ports,
            &tmp_text,
            &self.defaults.gateway_url,
        )?;
        Ok(InstanceSpec {
            id: allocation.id,
            function: spec.id(),
            eip: allocation.eip,
            uid: allocation.uid,
            folder: PathBuf::new(), // set once the artifact exists
            tmp_dir: tmp,
            dispatch_socket: None,
            placed_domain: policy
                .domain(&spec.id())
                .filter(|_| policy.placement != ChainPlacement::Spread),
            local_gateway: None,
            gateway_listener: None,
            environment,
            secrets: select_secrets(desired, |name| spec.secrets.iter().any(|own| own == name)),
            egress: EgressAccess::default(),
            virtual_address: None,
            callees: Vec::new(),
            limits,
            read_only_root: spec.read_only_root_filesystem,
        })
    }

    /// Releases the resources of an instance that is gone.
    pub(super) fn release_instance(&mut self, record: &InstanceRecord) {
        // Before the address is released: the next instance may get it at once.
        self.domains.remove_instance(record.allocation.id);
        self.allocations.release(record.allocation);
    }
}

/// Requests an identity for the instance.
fn add_identity(instance: &mut InstanceSpec, spec: &FunctionSpec, policy: &FunctionPolicy) {
    let environment = &mut instance.environment;
    environment.extend(variables::identity_variables(policy.transport));
    environment.extend(chain::limit_variables(spec, policy));
}

/// Returns the egress destinations of the instances, with the secrets for them.
fn egress_access(desired: &DesiredFunction, policy: &FunctionPolicy) -> EgressAccess {
    let secrets = select_secrets(desired, |name| {
        policy
            .egress
            .iter()
            .flat_map(EgressSpec::secret_names)
            .any(|named| named == name)
    });
    EgressAccess {
        chain: policy.chain.clone(),
        destinations: policy.egress.clone(),
        secrets,
    }
}

/// Selects some of a function's secrets.
fn select_secrets(
    desired: &DesiredFunction,
    wanted: impl Fn(&str) -> bool,
) -> BTreeMap<String, Vec<u8>> {
    let wanted = desired.secrets.iter().filter(|(name, _)| wanted(name));
    wanted
        .map(|(name, content)| (name.clone(), content.clone()))
        .collect()
}

/// Parses hard limits. `requests` guide placement on machines, and one machine has no choice.
fn parse_limits(spec: &FunctionSpec) -> Result<InstanceLimits, String> {
    let limits = spec.limits.clone().unwrap_or_default();
    let named = |name: &str, error: quantity::InvalidQuantity| format!("limits.{name}: {error}");
    Ok(InstanceLimits {
        memory: limits
            .memory
            .map(|t| quantity::parse_memory(&t))
            .transpose()
            .map_err(|e| named("memory", e))?,
        cpu: limits
            .cpu
            .map(|t| quantity::parse_cpu(&t))
            .transpose()
            .map_err(|e| named("cpu", e))?,
        pids: limits.pids,
    })
}
