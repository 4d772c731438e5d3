//! End of channels: withdrawn, orphaned, broken and drained.

use nearpath_shm::EndpointId;
use nearpath_types::InstanceId;

use crate::clock::MonotonicNanos;
use crate::protocol::ChannelEnding;

use super::{
    ChannelEntry, ChannelNumber, ChannelPhase, CloseCause, DRAIN_TIMEOUT, DomainTopology,
    TopologyAction, UnexpectedReport,
};

impl DomainTopology {
    pub(super) fn withdraw_unwanted(&mut self) -> Vec<TopologyAction> {
        let stale = |line: &ChannelEntry| {
            line.phase == ChannelPhase::Open && !self.is_wanted(line.caller, line.callee)
        };
        let stale: Vec<ChannelNumber> = self
            .channels
            .iter()
            .filter(|(_, line)| stale(line))
            .map(|(&c, _)| c)
            .collect();
        stale
            .into_iter()
            .flat_map(|channel| self.withdraw_channel(channel))
            .collect()
    }

    /// Stops new calls to an instance. [`TopologyAction::Quiet`] follows when its open calls have
    /// ended, and at once for an instance that has none, withdrawn before or not.
    pub fn withdraw_instance(&mut self, instance: InstanceId) -> Vec<TopologyAction> {
        if !self.withdrawn.insert(instance) {
            // The caller may have come after the action of the first withdrawal.
            return self.quiet_instance(instance).into_iter().collect();
        }
        let lines = self.channels.iter().filter(|(_, line)| {
            line.phase == ChannelPhase::Open && self.belongs_to(line.callee, instance)
        });
        let lines: Vec<ChannelNumber> = lines.map(|(&channel, _)| channel).collect();
        let mut actions: Vec<TopologyAction> = lines
            .into_iter()
            .flat_map(|channel| self.withdraw_channel(channel))
            .collect();
        actions.extend(self.quiet_instance(instance));
        actions
    }

    /// Lets calls to a withdrawn instance go on.
    pub fn readmit_instance(&mut self, instance: InstanceId) -> Vec<TopologyAction> {
        match self.withdrawn.remove(&instance) {
            true => self.open_missing(),
            false => Vec::new(),
        }
    }

    fn withdraw_channel(&mut self, channel: ChannelNumber) -> Vec<TopologyAction> {
        let Some(line) = self.channels.get_mut(&channel) else {
            return Vec::new();
        };
        line.phase = ChannelPhase::Finishing;
        let notify = TopologyAction::Notify {
            endpoint: line.caller,
            channel,
            state: ChannelEnding::Withdrawn,
        };
        vec![
            TopologyAction::Close {
                channel,
                cause: CloseCause::Withdrawn,
            },
            notify,
        ]
    }

    /// Removes an endpoint that left or died.
    pub fn remove_endpoint(
        &mut self,
        endpoint: EndpointId,
        now: MonotonicNanos,
    ) -> Vec<TopologyAction> {
        let Some(member) = self.endpoints.remove(&endpoint) else {
            return Vec::new();
        };
        // Not free yet: slots and channels may contain the id.
        self.resting_ids.insert(endpoint);
        self.backoffs
            // Backoffs belong to living pairs: a new endpoint starts without one.
            .retain(|&(caller, callee), _| caller != endpoint && callee != endpoint);
        let (mut actions, lines) = (Vec::new(), self.channels_of(endpoint));
        let called: Vec<EndpointId> = lines
            .iter()
            .filter_map(|channel| Some(self.channels.get(channel)?.callee))
            .collect();
        for channel in lines {
            actions.extend(self.orphan_channel(channel, endpoint, now));
        }
        actions.extend(
            called
                .into_iter()
                .filter_map(|callee| self.quiet_endpoint(callee)),
        ); // they waited for its calls
        actions.push(TopologyAction::Sweep);
        // A standby endpoint of the instance may take over, or another one of the gateway.
        actions.extend(self.open_missing());
        if let Some(instance) = member.owner.instance() {
            actions.extend(self.quiet_instance(instance));
        }
        actions
    }

    /// Handles the loss of one side of a channel: the other side must drain.
    fn orphan_channel(
        &mut self,
        channel: ChannelNumber,
        gone: EndpointId,
        now: MonotonicNanos,
    ) -> Vec<TopologyAction> {
        let Some(line) = self.channels.get_mut(&channel) else {
            return Vec::new();
        };
        let holder = if line.caller == gone {
            line.callee
        } else {
            line.caller
        };
        let alive = self.endpoints.contains_key(&holder);
        let waits = match line.phase {
            // The other side has drained already when the last holder dies.
            ChannelPhase::Ending { holder: last, .. } => last != gone && alive,
            _ => alive,
        };
        if !waits {
            self.channels.remove(&channel);
            return vec![TopologyAction::Forget { channel }];
        }
        if matches!(line.phase, ChannelPhase::Ending { .. }) {
            return Vec::new(); // the other side was notified before
        }
        let how = if line.caller == gone {
            CloseCause::Caller
        } else {
            CloseCause::Callee
        };
        line.phase = ChannelPhase::Ending {
            holder,
            until: now + DRAIN_TIMEOUT,
            overdue: false,
        };
        vec![
            TopologyAction::Close {
                channel,
                cause: how,
            },
            TopologyAction::Notify {
                endpoint: holder,
                channel,
                state: ChannelEnding::Dead,
            },
        ]
    }

    /// Handles an endpoint's report of a broken channel, which it no longer uses. The other side
    /// must drain; then both get a new channel. A channel that is ending already is left alone.
    pub fn handle_broken(
        &mut self,
        endpoint: EndpointId,
        channel: ChannelNumber,
        now: MonotonicNanos,
    ) -> Result<Vec<TopologyAction>, UnexpectedReport> {
        let Some(line) = self.channels.get(&channel) else {
            return Ok(Vec::new());
        };
        if line.caller != endpoint && line.callee != endpoint {
            return Err(UnexpectedReport);
        }
        let other = if line.caller == endpoint {
            line.callee
        } else {
            line.caller
        };
        Ok(self.break_channel(channel, Some(other), now))
    }

    /// Handles the failed creation of a channel. `informed` learned of it nevertheless, and must
    /// drain.
    pub fn handle_failed(
        &mut self,
        channel: ChannelNumber,
        informed: Option<EndpointId>,
        now: MonotonicNanos,
    ) -> Vec<TopologyAction> {
        self.break_channel(channel, informed, now)
    }

    fn break_channel(
        &mut self,
        channel: ChannelNumber,
        holder: Option<EndpointId>,
        now: MonotonicNanos,
    ) -> Vec<TopologyAction> {
        let Some(line) = self
            .channels
            .get_mut(&channel)
            .filter(|line| line.phase == ChannelPhase::Open)
        else {
            return Vec::new();
        };
        self.backoffs
            .entry((line.caller, line.callee))
            .or_default()
            // Also for a failed creation: a node short of descriptors must not retry in a loop.
            .record_failure(now);
        let Some(holder) = holder else {
            self.channels.remove(&channel);
            return vec![TopologyAction::Forget { channel }];
        };
        line.phase = ChannelPhase::Ending {
            holder,
            until: now + DRAIN_TIMEOUT,
            overdue: false,
        };
        let mut actions = vec![
            TopologyAction::Close {
                channel,
                cause: CloseCause::Broken,
            },
            TopologyAction::Notify {
                endpoint: holder,
                channel,
                state: ChannelEnding::Dead,
            },
        ];
        if let Some(callee) = self.channels.get(&channel).map(|line| line.callee) {
            actions.extend(self.quiet_endpoint(callee));
        }
        actions
    }

    /// Handles an endpoint's report that it drained a channel. Fails when it was not asked to: the
    /// endpoint is faulty.
    pub fn handle_drained(
        &mut self,
        endpoint: EndpointId,
        channel: ChannelNumber,
        now: MonotonicNanos,
    ) -> Result<Vec<TopologyAction>, UnexpectedReport> {
        let Some(line) = self.channels.get_mut(&channel) else {
            return Err(UnexpectedReport);
        };
        match line.phase {
            ChannelPhase::Finishing if line.caller == endpoint => {
                let callee = line.callee;
                line.phase = ChannelPhase::Ending {
                    holder: callee,
                    until: now + DRAIN_TIMEOUT,
                    overdue: false,
                };
                let mut actions = vec![
                    TopologyAction::Close {
                        channel,
                        cause: CloseCause::Caller,
                    },
                    TopologyAction::Notify {
                        endpoint: callee,
                        channel,
                        state: ChannelEnding::Dead,
                    },
                ];
                actions.extend(self.quiet_endpoint(callee));
                Ok(actions)
            }
            ChannelPhase::Ending { holder, .. } if holder == endpoint => {
                self.channels.remove(&channel);
                let mut actions = vec![TopologyAction::Forget { channel }, TopologyAction::Sweep];
                actions.extend(self.open_missing()); // may have been declared again meanwhile
                Ok(actions)
            }
            // Reported twice, or before the request. A report about a channel of others is a
            // violation.
            _ if line.caller == endpoint || line.callee == endpoint => Ok(Vec::new()),
            _ => Err(UnexpectedReport),
        }
    }

    fn quiet_endpoint(&self, endpoint: EndpointId) -> Option<TopologyAction> {
        self.quiet_instance(self.owner_of(endpoint)?.instance()?)
    }

    /// Returns the quiet action of a withdrawn instance without open calls.
    fn quiet_instance(&self, instance: InstanceId) -> Option<TopologyAction> {
        let accepts_calls = |line: &ChannelEntry| {
            matches!(line.phase, ChannelPhase::Open | ChannelPhase::Finishing)
                && self.belongs_to(line.callee, instance)
        };
        let quiet =
            self.withdrawn.contains(&instance) && !self.channels.values().any(accepts_calls);
        quiet.then_some(TopologyAction::Quiet { instance })
    }
}
