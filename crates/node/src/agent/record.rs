//! One instance as the agent knows it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nearpath_types::policy::Transport;
use nearpath_types::{
    DesiredFunction, FunctionId, Instance, InstanceId, InstanceState, ObservedInstance, Revision, StartPhase,
};
use tokio::sync::oneshot;

use super::lots::Lot;
use crate::instance::life::StopOrder;
use crate::instance::variables;
use crate::machine::Process;
use crate::reconcile::Seen;

/// Everything about an instance that is not gone.
pub(super) struct Record {
    pub(super) id: InstanceId,
    pub(super) function: FunctionId,
    pub(super) revision: Revision,
    pub(super) lot: Lot,
    pub(super) state: InstanceState,
    pub(super) started: Instant,
    pub(super) ready: Option<Instant>,
    pub(super) pid: u32,
    /// Its processes have ended; it counts until nothing is left of it, but nobody is to call it.
    pub(super) exited: bool,
    /// What it is called over QUIC, once it knows.
    pub(super) quic: Option<Arc<str>>,
    /// What it was told that its callers speak.
    pub(super) transport: Transport,
    pub(super) phases: Vec<StartPhase>,
    pub(super) meter: Option<Arc<Meter>>,
    /// How long it may take to stop.
    pub(super) stop_limit: Duration,
    /// `None` once it was told.
    pub(super) stop: Option<oneshot::Sender<StopOrder>>,
}

impl Record {
    /// An instance that starts now, and where its task waits for the order to stop.
    pub(super) fn starting(
        lot: Lot,
        desired: &DesiredFunction,
        transport: Transport,
        started: Instant,
    ) -> (Self, oneshot::Receiver<StopOrder>) {
        let (stop, order) = oneshot::channel();
        let record = Self {
            id: lot.id,
            function: desired.spec.id(),
            revision: desired.revision,
            lot,
            state: InstanceState::Starting,
            started,
            ready: None,
            pid: 0,
            exited: false,
            quic: None,
            transport,
            phases: Vec::new(),
            meter: None,
            stop_limit: variables::stop_limit(&desired.spec),
            stop: Some(stop),
        };
        (record, order)
    }

    pub(super) fn seen(&self) -> Seen {
        Seen { id: self.id, revision: self.revision, state: self.state }
    }

    pub(super) fn instance(&self) -> Instance {
        Instance {
            id: self.id,
            addr: self.lot.addr,
            state: self.state,
            quic: self.quic.clone(),
            transport: self.transport,
        }
    }

    pub(super) fn observed(&self) -> ObservedInstance {
        ObservedInstance {
            id: self.id,
            state: self.state,
            addr: self.lot.addr,
            revision: self.revision,
            pid: self.pid,
            start: self.phases.clone(),
        }
    }

    /// Adds a phase; an instance cannot fill the memory with phases that it makes up.
    pub(super) fn add_phase(&mut self, phase: StartPhase) {
        if self.phases.len() < 16 {
            self.phases.push(phase);
        }
    }
}

/// Measures what an instance uses.
pub(super) struct Meter {
    process: Arc<dyn Process>,
    last: Mutex<(Instant, u64)>,
}

impl Meter {
    pub(super) fn new(process: Arc<dyn Process>, started: Instant) -> Self {
        Self { process, last: Mutex::new((started, 0)) }
    }

    /// What is measured.
    pub(super) fn process(&self) -> Arc<dyn Process> {
        Arc::clone(&self.process)
    }

    /// Thousandths of a core since the last look, and bytes now. Reads files.
    pub(super) fn read(&self, now: Instant) -> Option<(f64, f64)> {
        let consumed = self.process.consumed()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, before) = std::mem::replace(&mut *last, (now, consumed.cpu_nanos));
        let nanos = now.saturating_duration_since(since).as_nanos().max(1) as f64;
        let cpu = consumed.cpu_nanos.saturating_sub(before) as f64 * 1_000.0 / nanos;
        Some((cpu, consumed.memory_bytes as f64))
    }
}
