//! Commands of the node's handle.

use std::os::fd::OwnedFd;

use nearpath_types::status::UsageStatus;
use nearpath_types::{DesiredState, FunctionId};
use tokio::sync::{mpsc, oneshot, watch};

use super::NodeAgent;

/// A command of the node's handle.
pub(crate) enum AgentCommand {
    /// Measures the usage of a function.
    Usage(FunctionId, oneshot::Sender<UsageStatus>),
    /// Returns the version of the snapshot that reflects the last desired state.
    WaitPublished(oneshot::Sender<u64>),
    /// Adds a gateway thread, which gets a socket for every domain.
    AddGatewayThread(mpsc::UnboundedSender<OwnedFd>),
    /// Drains everything; answered when nothing is left.
    Stop(oneshot::Sender<()>),
}

impl NodeAgent {
    pub(super) fn handle_command(
        &mut self,
        command: AgentCommand,
        desired: &mut watch::Receiver<DesiredState>,
    ) {
        match command {
            AgentCommand::Usage(id, reply) => self.measure_usage(&id, reply),
            AgentCommand::WaitPublished(reply) => {
                // the desired state was sent before this command, on another channel
                self.apply_desired(desired);
                self.version_waiters.push(reply);
            }
            AgentCommand::AddGatewayThread(sockets) => {
                self.factory.domains.add_gateway_thread(sockets)
            }
            // The next plan withdraws everything; the answer follows when the table is empty.
            AgentCommand::Stop(done) => {
                self.stopping = Some(done);
                self.changed.extend(self.functions.keys().cloned());
            }
        }
    }

    /// Sums the usage of a function's instances, on a blocking thread because it reads files.
    fn measure_usage(&self, id: &FunctionId, reply: oneshot::Sender<UsageStatus>) {
        // Cloned handles, because the blocking thread cannot borrow the agent.
        let meters: Vec<_> = self
            .instances
            .instances_of(id)
            .filter_map(|record| record.meter.clone())
            .collect();
        let now = tokio::time::Instant::now().into_std();
        tokio::task::spawn_blocking(move || {
            let mut usage = UsageStatus::default();
            for (cpu, memory) in meters.iter().filter_map(|meter| meter.read_usage(now)) {
                usage.cpu += cpu;
                usage.total_memory_bytes += memory;
            }
            let _ = reply.send(usage); // the caller may have left
        });
    }
}
