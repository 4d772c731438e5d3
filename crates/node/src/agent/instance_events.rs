//! Events of instances, and their effects on the agent's state.

use std::sync::Arc;

use nearpath_kernel::bpf::LoopbackRedirect;
use nearpath_types::instance_label::label_instance;
use nearpath_types::policy::{LOOPBACK, LoopbackDelivery};
use nearpath_types::{InstanceId, InstanceState, StartFailureCause, StartPhase};

use super::NodeAgent;
use super::instance_record::{InstanceRecord, UsageMeter};
use crate::instance::ending::{EndReport, InstanceEnding};
use crate::instance::lifecycle::InstanceEvent;
use crate::instance::notes::ServerNote;
use crate::machine::InstanceProcess;

impl NodeAgent {
    pub(super) fn handle_event(&mut self, event: InstanceEvent) {
        if let Some(record) = self.instances.get(event.instance()) {
            self.changed.insert(record.function.clone());
        }
        match event {
            InstanceEvent::Launched { id, pid, process } => self.handle_launched(id, pid, process),
            InstanceEvent::Named(id, name) => {
                if let Some(record) = self.instances.get_mut(id) {
                    record.quic = Some(name);
                }
            }
            InstanceEvent::Phase(id, phase) => self.handle_phase(id, phase),
            InstanceEvent::Server(id, note) => self.handle_server(id, note),
            InstanceEvent::Ready(id) => self.handle_ready(id),
            InstanceEvent::OomKill(id) => {
                if let Some(record) = self.instances.get_mut(id) {
                    self.metrics.count_oom_kill(&record.function);
                }
            }
            InstanceEvent::Remark(id, text) => self.handle_remark(id, &text),
            InstanceEvent::Thawed(id) => self.handle_thawed(id),
            InstanceEvent::NotFrozen(id) => drop(self.set_state(id, InstanceState::Draining)),
            InstanceEvent::Exited(id) => {
                if let Some(record) = self.instances.get_mut(id) {
                    // Routes leave it out from the next publication on, before its cleanup ends.
                    record.exited = true;
                }
            }
            InstanceEvent::Removed(id, ending) => self.handle_removed(id, &ending),
        }
    }

    fn handle_launched(&mut self, id: InstanceId, pid: u32, process: Arc<dyn InstanceProcess>) {
        let Some(record) = self.instances.get_mut(id) else {
            return;
        };
        record.pid = pid;
        self.factory.domains.accept_endpoints(id, pid);
        record.meter = Some(Arc::new(UsageMeter::new(process, record.started)));
    }

    fn handle_phase(&mut self, id: InstanceId, phase: StartPhase) {
        self.metrics.observe_phase(&phase.name, phase.took);
        if let Some(record) = self.instances.get_mut(id) {
            record.add_phase(phase);
        }
    }

    /// Opens access to an instance's own server, with the delivery that its function asks for.
    fn handle_server(&mut self, id: InstanceId, note: ServerNote) {
        let redirect = self.loopback_redirect_of(id);
        if let Some(record) = self.instances.get_mut(id) {
            record.open_server(note, redirect);
        }
    }

    /// Returns the redirection of an instance's connections; `None`: they use TCP. A remark tells why.
    fn loopback_redirect_of(&mut self, id: InstanceId) -> Option<Arc<LoopbackRedirect>> {
        let record = self.instances.get_mut(id)?;
        if record.loopback_delivery == LoopbackDelivery::Tcp {
            return None;
        }
        let redirect = self.factory.context.machine.loopback_redirect();
        redirect
            .inspect_err(|error| {
                let text = format!(
                    "`{LOOPBACK}: sockmap` is unavailable, so this instance uses TCP; run `nearpath doctor`, then deploy again after 10 s: {error}"
                );
                self.handle_remark(id, &text);
            })
            .ok()
    }

    /// Shows what is wrong with an instance that goes on, in logs and `describe`.
    fn handle_remark(&mut self, id: InstanceId, text: &str) {
        let Some(record) = self.instances.get_mut(id) else {
            return;
        };
        let now = tokio::time::Instant::now().into_std();
        if let Some(suppressed) = record.remark_lines.take_due((), now) {
            let instance = label_instance(self.member_name.as_ref(), id);
            tracing::warn!(function = %record.function, instance, suppressed, "{text}");
            let logs = &self.factory.context.logs;
            logs.push_line(&record.function, id, format!("nearpath: {text}"));
        }
        if let Some(function) = self.functions.get_mut(&record.function) {
            function.record_remark(record, text);
        }
    }

    fn handle_ready(&mut self, id: InstanceId) {
        let Some(record) = self.instances.get_mut(id) else {
            return;
        };
        if record.state != InstanceState::Starting {
            return; // withdrawn in the meantime
        }
        let now = tokio::time::Instant::now().into_std();
        (record.state, record.ready) = (InstanceState::Ready, Some(now));
        tracing::debug!(function = %record.function, instance = %id, "instance is ready");
        self.metrics.count_start(true);
        self.metrics
            .observe_phase("total", now.saturating_duration_since(record.started));
        if let Some(function) = self.functions.get_mut(&record.function) {
            function.record_ready(record);
        }
        self.place_ready(id);
    }

    /// Places a new instance at once: until the next interval it would run elsewhere for 2 s.
    fn place_ready(&mut self, id: InstanceId) {
        let record = self.instances.get(id);
        let chain = record.map(|record| self.chain_of(record));
        if let Some(chain) = chain.filter(|chain| !chain.is_empty()) {
            self.placer.apply_policies(chain);
        }
    }

    fn handle_removed(&mut self, id: InstanceId, ending: &InstanceEnding) {
        let Some(record) = self.instances.remove(id) else {
            return;
        };
        // Only now that nothing of the instance is left: the next one may get its address at once.
        self.factory.release_instance(&record);
        if let Some(report) = ending.report() {
            self.report_failure(&record, report);
        }
        if let InstanceEnding::FailedStart(_) | InstanceEnding::Impossible(_) = ending {
            self.metrics.count_start(false);
        }
        if let Some(function) = self.functions.get_mut(&record.function) {
            function.record_ending(&record, ending, tokio::time::Instant::now().into_std());
        }
    }

    /// Counts and logs the end of an instance that the node did not ask for.
    fn report_failure(&self, record: &InstanceRecord, EndReport { cause, text }: &EndReport) {
        if *cause == StartFailureCause::OutOfMemory {
            self.metrics.count_oom_kill(&record.function);
        }
        let instance = label_instance(self.member_name.as_ref(), record.id);
        tracing::warn!(function = %record.function, instance, revision = %record.revision, "{text}");
        let logs = &self.factory.context.logs;
        logs.push_line(&record.function, record.id, format!("nearpath: {text}"));
    }
}
