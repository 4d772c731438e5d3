//! State of one instance in the agent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nearpath_kernel::bpf::LoopbackRedirect;
use nearpath_types::log_limiter::LogLimiter;
use nearpath_types::policy::{CallTransport, LoopbackDelivery};
use nearpath_types::{
    DesiredFunction, FunctionId, FunctionPolicy, FunctionServer, InstanceId, InstanceLocality,
    InstanceRoute, InstanceState, ObservedInstance, Revision, StartPhase,
};
use tokio::sync::{mpsc, oneshot};

use super::allocations::InstanceAllocation;
use crate::instance::chain;
use crate::instance::notes::ServerNote;
use crate::instance::requests::{InstanceRequests, SleepRequest, StopRequest};
use crate::instance::variables;
use crate::machine::{InstanceProcess, ProcessNetwork};
use crate::reconcile::InstanceView;

/// An instance that is not gone.
pub(super) struct InstanceRecord {
    pub(super) id: InstanceId,
    pub(super) function: FunctionId,
    pub(super) revision: Revision,
    pub(super) allocation: InstanceAllocation,
    pub(super) state: InstanceState,
    pub(super) started: Instant,
    pub(super) ready: Option<Instant>,
    pub(super) pid: u32,
    /// Set once its processes have ended. It still counts until it is cleaned up, but is not
    /// called.
    pub(super) exited: bool,
    /// Name over QUIC, once it is known.
    pub(super) quic: Option<Arc<str>>,
    /// Protocol that its callers use.
    pub(super) transport: CallTransport,
    /// Delivery of bytes between the gateway and its own server, as its function asks for.
    pub(super) loopback_delivery: LoopbackDelivery,
    /// Its own server, which the gateway may call without the watchdog.
    pub(super) server: Option<Arc<FunctionServer>>,
    pub(super) phases: Vec<StartPhase>,
    pub(super) meter: Option<Arc<UsageMeter>>,
    /// Limits the lines of its remarks, which each of its calls may cause.
    pub(super) remark_lines: LogLimiter<()>,
    /// Maximum duration of a stop.
    pub(super) stop_timeout: Duration,
    /// Channel for the stop request; `None` once sent.
    pub(super) stop: Option<oneshot::Sender<StopRequest>>,
    /// Channel for requests to freeze and to thaw.
    pub(super) sleep: mpsc::UnboundedSender<SleepRequest>,
}

impl InstanceRecord {
    /// Creates the record of a starting instance, and the receivers of its requests.
    pub(super) fn new_starting(
        allocation: InstanceAllocation,
        desired: &DesiredFunction,
        policy: &FunctionPolicy,
        started: Instant,
    ) -> (Self, InstanceRequests) {
        let (stop, stop_requests) = oneshot::channel();
        let (sleep, sleep_requests) = mpsc::unbounded_channel();
        let record = Self {
            id: allocation.id,
            function: desired.spec.id(),
            revision: desired.revision,
            allocation,
            state: InstanceState::Starting,
            started,
            ready: None,
            pid: 0,
            exited: false,
            quic: None,
            transport: policy.transport,
            loopback_delivery: policy.loopback_delivery,
            server: None,
            phases: Vec::new(),
            meter: None,
            remark_lines: LogLimiter::default(),
            stop_timeout: variables::stop_timeout(&desired.spec, policy),
            stop: Some(stop),
            sleep,
        };
        let requests = InstanceRequests {
            stop: stop_requests,
            sleep: sleep_requests,
        };
        (record, requests)
    }

    pub(super) fn reconcile_view(&self) -> InstanceView {
        InstanceView {
            id: self.id,
            revision: self.revision,
            state: self.state,
        }
    }

    pub(super) fn routed_instance(&self) -> InstanceRoute {
        InstanceRoute {
            id: self.id,
            addr: self.allocation.addr,
            // A node records the instances that it has started itself.
            locality: InstanceLocality::SameNode,
            state: self.state,
            quic: self.quic.clone(),
            transport: self.transport,
            server: self.server.clone(),
        }
    }

    pub(super) fn observed_instance(&self) -> ObservedInstance {
        ObservedInstance {
            id: self.id,
            state: self.state,
            addr: self.allocation.addr,
            revision: self.revision,
            pid: self.pid,
            start: self.phases.clone(),
            ready_after: self
                .ready
                .map(|at| at.saturating_duration_since(self.started)),
        }
    }

    /// Opens access to its own server. Without it, calls go through the watchdog.
    pub(super) fn open_server(
        &mut self,
        note: ServerNote,
        redirect: Option<Arc<LoopbackRedirect>>,
    ) {
        let Some(meter) = &self.meter else { return };
        if note.addr.ip() == chain::LOCAL_GATEWAY_IP {
            return; // the gateway, which would call itself
        }
        if self.transport == CallTransport::Auto && note.addr.is_ipv4() && note.base_path.is_empty()
        {
            self.open_for_connections(&*meter.process(), note.addr.port());
        }
        match ProcessNetwork::open(&meter.process(), redirect) {
            Ok(network) => {
                self.server = network.map(|network| {
                    Arc::new(FunctionServer {
                        addr: note.addr,
                        base_path: note.base_path,
                        exec_timeout: note.exec_timeout,
                        network: Arc::new(network),
                    })
                });
            }
            Err(error) => {
                tracing::warn!(function = %self.function, instance = %self.id, %error, "network of the instance cannot be opened; calls go through its watchdog");
            }
        }
    }

    /// Lets callers connect to its own server. Without that, they call through the gateway.
    fn open_for_connections(&self, process: &dyn InstanceProcess, port: u16) {
        if let Err(error) = process.open_server(port) {
            tracing::warn!(function = %self.function, instance = %self.id, %error, "connections to the instance's own server are unavailable; its callers use the gateway");
        }
    }

    /// Adds a phase. The limit keeps an instance from filling the memory with invented phases.
    pub(super) fn add_phase(&mut self, phase: StartPhase) {
        // More than the ten known phases, and few enough for any number of instances.
        if self.phases.len() < 16 {
            self.phases.push(phase);
        }
    }
}

/// Measures the resource usage of an instance.
pub(super) struct UsageMeter {
    process: Arc<dyn InstanceProcess>,
    last: Mutex<(Instant, u64)>,
}

impl UsageMeter {
    pub(super) fn new(process: Arc<dyn InstanceProcess>, started: Instant) -> Self {
        Self {
            process,
            last: Mutex::new((started, 0)),
        }
    }

    /// Returns the measured process.
    pub(super) fn process(&self) -> Arc<dyn InstanceProcess> {
        Arc::clone(&self.process)
    }

    /// Returns thousandths of a core since the last reading, and bytes now. Reads files.
    pub(super) fn read_usage(&self, now: Instant) -> Option<(f64, f64)> {
        let usage = self.process.read_usage()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, before) = std::mem::replace(&mut *last, (now, usage.cpu_nanos));
        // Two readings in the same instant must not divide by zero.
        let nanos = now.saturating_duration_since(since).as_nanos().max(1) as f64;
        let cpu = usage.cpu_nanos.saturating_sub(before) as f64 * 1_000.0 / nanos;
        Some((cpu, usage.memory_bytes as f64))
    }
}
