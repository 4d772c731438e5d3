//! Withdrawn instances: they stop, or they are frozen and may go on.

use futures_util::future::BoxFuture;
use nearpath_types::{InstanceId, InstanceState};

use super::NodeAgent;
use crate::instance::requests::{SleepRequest, StopRequest};

/// Purpose of taking an instance from its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WithdrawalPurpose {
    /// It ends.
    Stop {
        /// Calls may be on their way to it.
        may_have_calls: bool,
    },
    /// It is frozen.
    Freeze,
}

impl NodeAgent {
    /// Changes the state of an instance; returns the one before.
    pub(super) fn set_state(
        &mut self,
        id: InstanceId,
        state: InstanceState,
    ) -> Option<InstanceState> {
        let record = self.instances.get_mut(id)?;
        Some(std::mem::replace(&mut record.state, state))
    }

    /// Asks a withdrawn instance to stop or to freeze. One that was never ready is unknown to the
    /// gateway, so nothing has to settle.
    pub(super) fn request_end(&mut self, id: InstanceId, purpose: WithdrawalPurpose, version: u64) {
        let Some(timeout) = self.instances.get(id).map(|record| record.stop_timeout) else {
            return;
        };
        let withdrawn = match purpose {
            WithdrawalPurpose::Stop {
                may_have_calls: false,
            } => Box::pin(std::future::ready(())),
            _ => self.wait_withdrawn(id, version),
        };
        let request = StopRequest { withdrawn, timeout };
        let Some(record) = self.instances.get_mut(id) else {
            return;
        };
        match purpose {
            WithdrawalPurpose::Freeze => drop(record.sleep.send(SleepRequest::Freeze(request))),
            WithdrawalPurpose::Stop { .. } => {
                drop(record.stop.take().map(|stop| stop.send(request)));
            }
        }
    }

    /// Asks a frozen instance to go on. It counts as starting until it does.
    pub(super) fn thaw_instance(&mut self, id: InstanceId) {
        if let Some(record) = self.instances.get_mut(id) {
            // Not ready yet: callers must not reach it while it is still frozen.
            record.state = InstanceState::Starting;
            let _ = record.sleep.send(SleepRequest::Thaw); // it may just have ended
        }
    }

    /// Gives a thawed instance back to its callers.
    pub(super) fn handle_thawed(&mut self, id: InstanceId) {
        let Some(record) = self.instances.get_mut(id) else {
            return;
        };
        if record.state == InstanceState::Starting {
            record.state = InstanceState::Ready;
            self.factory.domains.readmit_instance(id);
            self.metrics.count_thaw();
        }
    }

    /// Waits until neither the gateway nor an endpoint in memory has a call on its way to an
    /// instance.
    fn wait_withdrawn(&self, id: InstanceId, version: u64) -> BoxFuture<'static, ()> {
        let (gateway_settled, domain_withdrawn) = (
            self.settle.wait_settled(version, id),
            self.factory.domains.withdraw_instance(id),
        );
        Box::pin(async move {
            gateway_settled.await;
            domain_withdrawn.await;
        })
    }
}
