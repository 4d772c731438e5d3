//! Where instances are made: takes numbers and addresses, draws the blueprint, sets the instance's task going.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::{DesiredFunction, Eip, FunctionSpec, InstanceAddr, InstanceId, InstanceState, quantity};
use tokio::sync::{mpsc, oneshot};

use super::record::Record;
use crate::artifact::Artifacts;
use crate::ids::{self, Eips, Ids, Ring};
use crate::instance::life::{Event, Life};
use crate::instance::variables::{self, LoopbackPorts};
use crate::logs::Logs;
use crate::machine::{Blueprint, Limits, Machine};

/// Processes and threads of an instance whose tenant set no limit: enough for any server, too few for a fork bomb.
const DEFAULT_PIDS: u64 = 4_096;
/// Instances on one node; the user ids are reserved for so many.
const MOST_INSTANCES: u32 = 65_536;

pub(crate) struct Workshop {
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) artifacts: Arc<Artifacts>,
    pub(crate) logs: Logs,
    pub(crate) events: mpsc::UnboundedSender<Event>,
    premises: Premises,
    ids: Ids,
    eips: Eips,
    uids: Ring,
}

/// What instances find around them.
pub(crate) struct Premises {
    /// Where the gateway answers them.
    pub(crate) gateway_url: String,
    /// Below it each instance without a private `/tmp` gets a folder.
    pub(crate) tmp: PathBuf,
}

/// Where an instance is reached.
struct Place {
    eip: Option<Eip>,
    addr: InstanceAddr,
    ports: Option<LoopbackPorts>,
}

impl Workshop {
    pub(crate) fn new(
        machine: Arc<dyn Machine>,
        artifacts: Arc<Artifacts>,
        (logs, events): (Logs, mpsc::UnboundedSender<Event>),
        premises: Premises,
        (ids, eips): (Ids, Eips),
    ) -> Self {
        let uids = Ring::new(ids::FIRST_UID, MOST_INSTANCES);
        Self { machine, artifacts, logs, events, premises, ids, eips, uids }
    }

    /// Starts an instance; how it goes is told by events.
    ///
    /// # Errors
    /// When there is no instance to tell of; the text is for the tenant.
    pub(super) fn start(&mut self, desired: &DesiredFunction, now: Instant) -> Result<Record, String> {
        let limits = limits(&desired.spec)?;
        let id = self.ids.take().map_err(|error| format!("the node cannot number the instance: {error}"))?;
        let uid = self.uids.take().ok_or("this node has no room for another instance: scale something down")?;
        let place = self.place().inspect_err(|_| self.uids.give_back(uid))?;
        let blueprint = self.blueprint(id, uid, desired, (&place, limits)).inspect_err(|_| {
            self.uids.give_back(uid);
            place.eip.into_iter().for_each(|eip| self.eips.give_back(eip));
        })?;
        Ok(self.set_going(blueprint, &place, desired, now))
    }

    fn place(&mut self) -> Result<Place, String> {
        if self.machine.has_network() {
            let eip = self.eips.take().ok_or("the node's network has no free address: scale something down")?;
            let addr = InstanceAddr(SocketAddr::from((eip.0, variables::PORT)));
            return Ok(Place { eip: Some(eip), addr, ports: None });
        }
        let port = || ids::free_port().map_err(|error| format!("the machine has no free port: {error}"));
        let ports = LoopbackPorts { watchdog: port()?, upstream: port()? };
        let addr = InstanceAddr(SocketAddr::from((Ipv4Addr::LOCALHOST, ports.watchdog)));
        Ok(Place { eip: None, addr, ports: Some(ports) })
    }

    fn blueprint(
        &self,
        id: InstanceId,
        uid: u32,
        desired: &DesiredFunction,
        (place, limits): (&Place, Limits),
    ) -> Result<Blueprint, String> {
        let spec = &desired.spec;
        let tmp = self.premises.tmp.join(id.to_string());
        let shown = if place.eip.is_some() { "/tmp".into() } else { tmp.to_string_lossy() };
        let environment = variables::environment(spec, place.ports, (&shown, &self.premises.gateway_url))?;
        Ok(Blueprint {
            id,
            function: spec.id(),
            eip: place.eip,
            uid,
            folder: PathBuf::new(), // known when the artifact is there
            tmp,
            environment,
            secrets: desired.secrets.clone(),
            limits,
            read_only_root: spec.read_only_root_filesystem,
        })
    }

    fn set_going(&self, blueprint: Blueprint, place: &Place, desired: &DesiredFunction, now: Instant) -> Record {
        let (spec, (stop, order)) = (&desired.spec, oneshot::channel());
        let record = Record {
            id: blueprint.id,
            function: blueprint.function.clone(),
            revision: desired.revision,
            eip: place.eip,
            uid: blueprint.uid,
            addr: place.addr,
            state: InstanceState::Starting,
            started: now,
            ready: None,
            pid: 0,
            phases: Vec::new(),
            meter: None,
            stop_limit: variables::stop_limit(spec),
            stop: Some(stop),
        };
        let life = Life {
            artifact: (spec.id(), desired.revision),
            image: spec.image.clone(),
            start_limit: variables::start_limit(spec),
            memory_limit: spec.limits.as_ref().and_then(|limits| limits.memory.clone()),
            machine: self.machine.clone(),
            artifacts: self.artifacts.clone(),
            logs: self.logs.clone(),
            events: self.events.clone(),
            blueprint,
        };
        tokio::spawn(life.live(order));
        record
    }

    /// Takes the numbers of an instance back of which nothing is left.
    pub(super) fn take_back(&mut self, record: &Record) {
        self.uids.give_back(record.uid);
        record.eip.into_iter().for_each(|eip| self.eips.give_back(eip));
    }
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
