//! Where instances are made: draws a lot, then the blueprint, and sets the instance's task going.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use nearpath_types::{DesiredFunction, Egress, Eip, FunctionSpec, Policy, quantity};

use super::lots::{Lot, Lots};
use super::record::Record;
use crate::domains::Domains;
use crate::instance::life::{Life, Tools};
use crate::instance::{chain, variables};
use crate::machine::{Blueprint, Limits, Outside};

/// Processes and threads of an instance whose tenant set no limit: enough for any server, too few for a fork bomb.
const DEFAULT_PIDS: u64 = 4_096;

pub(crate) struct Workshop {
    pub(super) tools: Tools,
    premises: Premises,
    lots: Lots,
    pub(super) domains: Domains,
}

/// What instances find around them.
pub(crate) struct Premises {
    /// Where the gateway answers them.
    pub(crate) gateway_url: String,
    /// The same, for instances with a network of their own.
    pub(crate) gateway: SocketAddr,
    /// Below it each instance without a private `/tmp` gets a folder.
    pub(crate) tmp: PathBuf,
}

impl Workshop {
    pub(crate) fn new(tools: Tools, premises: Premises, lots: Lots, domains: Domains) -> Self {
        Self { tools, premises, lots, domains }
    }

    /// Starts an instance; how it goes is told by events.
    ///
    /// # Errors
    /// When there is no instance to tell of; the text is for the tenant.
    pub(super) fn start(&mut self, desired: &DesiredFunction, now: Instant) -> Result<Record, String> {
        let limits = limits(&desired.spec)?;
        let lot = self.lots.draw(self.tools.machine.has_network())?;
        let mut blueprint = self.blueprint(&lot, desired, limits).inspect_err(|_| self.lots.give_back(lot))?;
        let policy = Policy::of(&desired.spec).unwrap_or_default(); // one that cannot be read is told elsewhere
        blueprint.outside = outside(desired, &policy);
        self.open_door(&mut blueprint, &desired.spec, &policy);
        if self.tools.identities.serve(policy.transport) {
            self.introduce(&mut blueprint, &desired.spec, &policy);
        }
        let (record, order) = Record::starting(lot, desired, policy.transport, now);
        tokio::spawn(Life::new(blueprint, desired, self.tools.clone()).live(order));
        Ok(record)
    }

    /// Where there is no door, the instance is called over HTTP alone.
    fn open_door(&mut self, blueprint: &mut Blueprint, spec: &FunctionSpec, policy: &Policy) {
        match self.domains.admit(blueprint.id, &blueprint.function, policy) {
            Ok(door) => blueprint.dispatch = door,
            Err(error) => {
                tracing::warn!(function = %blueprint.function, %error, "no door to the chain's shared memory")
            }
        }
        let Some(door) = &blueprint.dispatch else { return };
        let network = self.network(blueprint);
        blueprint.pickup = network.filter(|_| chain::takes_part(spec)).map(|_| chain::PICKUP);
        blueprint.environment.extend(chain::variables(spec, policy, door, network));
    }

    /// Has it told who it is. Its calls are picked up then, if it declares any: they may go straight to whom they are for.
    fn introduce(&self, blueprint: &mut Blueprint, spec: &FunctionSpec, policy: &Policy) {
        blueprint.environment.extend(variables::identity(policy.transport));
        blueprint.environment.extend(chain::limited(spec, policy));
        if let Some(network) = self.network(blueprint).filter(|_| !policy.calls.is_empty()) {
            blueprint.pickup = Some(chain::PICKUP);
            blueprint.environment.extend(chain::picked_up(network));
        }
    }

    /// The instance's own address and the gateway's, where it has a network of its own.
    fn network(&self, blueprint: &Blueprint) -> Option<(Eip, SocketAddr)> {
        blueprint.eip.map(|eip| (eip, self.premises.gateway))
    }

    fn blueprint(&self, lot: &Lot, desired: &DesiredFunction, limits: Limits) -> Result<Blueprint, String> {
        let spec = &desired.spec;
        let tmp = self.premises.tmp.join(lot.id.to_string());
        let shown = if lot.eip.is_some() { "/tmp".into() } else { tmp.to_string_lossy() };
        let environment = variables::environment(spec, lot.ports, &shown, &self.premises.gateway_url)?;
        Ok(Blueprint {
            id: lot.id,
            function: spec.id(),
            eip: lot.eip,
            uid: lot.uid,
            folder: PathBuf::new(), // known when the artifact is there
            tmp,
            dispatch: None,
            pickup: None,
            environment,
            secrets: of(desired, |name| spec.secrets.iter().any(|own| own == name)),
            outside: Outside::default(),
            limits,
            read_only_root: spec.read_only_root_filesystem,
        })
    }

    /// Takes the lot of an instance back of which nothing is left.
    pub(super) fn take_back(&mut self, record: &Record) {
        self.domains.gone(record.lot.id);
        self.lots.give_back(record.lot);
    }
}

/// Where its instances may go, with the secrets for that.
fn outside(desired: &DesiredFunction, policy: &Policy) -> Outside {
    let secrets = of(desired, |name| policy.egress.iter().flat_map(Egress::secrets).any(|named| named == name));
    Outside { chain: policy.chain.clone(), egress: policy.egress.clone(), secrets }
}

/// Some of a function's secrets.
fn of(desired: &DesiredFunction, wanted: impl Fn(&str) -> bool) -> BTreeMap<String, Vec<u8>> {
    let wanted = desired.secrets.iter().filter(|(name, _)| wanted(name));
    wanted.map(|(name, content)| (name.clone(), content.clone())).collect()
}

/// Hard limits. `requests` are for placing functions on machines; one machine has nothing to place.
fn limits(spec: &FunctionSpec) -> Result<Limits, String> {
    let limits = spec.limits.clone().unwrap_or_default();
    let named = |name: &str, error: quantity::InvalidQuantity| format!("limits.{name}: {error}");
    Ok(Limits {
        memory: limits.memory.map(|t| quantity::memory(&t)).transpose().map_err(|e| named("memory", e))?,
        cpu: limits.cpu.map(|t| quantity::cpu(&t)).transpose().map_err(|e| named("cpu", e))?,
        pids: Some(limits.pids.unwrap_or(DEFAULT_PIDS)),
    })
}
