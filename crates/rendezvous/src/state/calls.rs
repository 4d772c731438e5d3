//! Calls, and waiting ones.

use std::sync::Arc;
use std::time::Duration;

use super::types::{StateTimer, WaitingCall, WorkerName};
use super::{ClockReading, ControlConnectionId, RendezvousAction, RendezvousState, SecretRng};
use nearpath_p2p::message::{CallRefusal, MAX_ABOUT_BYTES, MAX_HELLO_BYTES, RendezvousMessage};

impl<C: SecretRng> RendezvousState<C> {
    pub(super) fn handle_call(
        &mut self,
        connection: ControlConnectionId,
        name: &Arc<WorkerName>,
        mut call: WaitingCall,
        now: ClockReading,
    ) {
        self.counts.calls += 1;
        if let Some(reason) = self.refusal_for(name, &call) {
            self.counts.refused += 1;
            self.actions.push(RendezvousAction::Send(
                connection,
                RendezvousMessage::Refused {
                    call: call.call,
                    reason,
                },
            ));
        } else if self.connection_of(&call.peer).is_some() {
            self.grant_session(call, now);
        } else {
            // The worker's own limit is bounded: waiting calls use memory.
            let within = Duration::from_millis(call.within.into()).min(self.limits.max_call_wait);
            call.deadline = Some(now.at + within);
            self.add_waiting(call);
        }
    }

    fn refusal_for(&self, name: &WorkerName, call: &WaitingCall) -> Option<CallRefusal> {
        let worker = self.workers.get(name)?;
        // Counted per peer as well: all workers of a job may call one that never connects.
        let calls_to_peer = self
            .workers
            .get(&*call.peer)
            .map_or(0, |peer| peer.calls_to_it.len());
        let is_over_limit = worker.sessions.len() >= self.limits.max_sessions
            || worker.own_calls.len() >= self.limits.max_waiting_calls
            || calls_to_peer >= self.limits.max_calls_to_peer;
        let hello = call.hello.as_ref().map_or(0, |hello| hello.0.len());
        match () {
            // Lengths first: an oversized call is refused for what it is.
            () if call.about.len() > MAX_ABOUT_BYTES || hello > MAX_HELLO_BYTES => {
                Some(CallRefusal::TooLong)
            }
            () if *call.peer == *name => Some(CallRefusal::SelfCall),
            () if is_over_limit => Some(CallRefusal::TooMany),
            () => None,
        }
    }

    fn add_waiting(&mut self, call: WaitingCall) {
        self.last_call += 1;
        let number = self.last_call;
        self.timers
            .extend(call.deadline.map(|until| (until, StateTimer::Call(number))));
        self.workers
            .entry(call.caller.clone())
            .or_default()
            .own_calls
            .insert(number);
        self.workers
            .entry(call.peer.clone())
            .or_default()
            .calls_to_it
            .insert(number);
        self.waiting.insert(number, call);
    }

    /// Removes a call from all indexes.
    pub(super) fn stop_waiting(&mut self, number: u64) -> Option<WaitingCall> {
        let call = self.waiting.remove(&number)?;
        self.timers
            .remove(&(call.deadline?, StateTimer::Call(number)));
        if let Some(caller) = self.workers.get_mut(&call.caller) {
            caller.own_calls.remove(&number);
        }
        if let Some(peer) = self.workers.get_mut(&call.peer) {
            peer.calls_to_it.remove(&number);
        }
        // The peer's entry may exist for this call only.
        self.remove_if_unused(&call.peer);
        Some(call)
    }

    /// Refuses a call whose peer did not connect in time.
    pub(super) fn expire_call(&mut self, number: u64) {
        if let Some(call) = self.stop_waiting(number) {
            self.counts.absent += 1;
            self.send_to_worker(
                &call.caller,
                RendezvousMessage::Refused {
                    call: call.call,
                    reason: CallRefusal::Absent,
                },
            );
        }
    }

    /// Grants waiting calls in the order of their numbers: first come, first served.
    pub(super) fn grant_waiting_calls(&mut self, name: &WorkerName, now: ClockReading) {
        // Numbers are copied: granting changes the set.
        let numbers = self
            .workers
            .get(name)
            .map(|worker| worker.calls_to_it.clone())
            .unwrap_or_default();
        for number in numbers {
            if let Some(call) = self.stop_waiting(number) {
                self.grant_session(call, now);
            }
        }
    }
}
