//! Calls: who wants to speak with whom, and who waits.

use std::sync::Arc;
use std::time::Duration;

use super::types::{Name, Timer, Waiting};
use super::{Action, Chance, Desk, LineNo, Moment};
use nearpath_p2p::message::{LONGEST_ABOUT, LONGEST_HELLO, Refusal, Told};

impl<C: Chance> Desk<C> {
    pub(super) fn call(&mut self, line: LineNo, name: &Arc<Name>, mut waiting: Waiting, now: Moment) {
        self.counts.called += 1;
        if let Some(why) = self.objection(name, &waiting) {
            self.counts.refused += 1;
            self.actions.push(Action::Tell(line, Told::Refused { call: waiting.call, why }));
        } else if self.line_of(&waiting.peer).is_some() {
            self.grant(waiting, now);
        } else {
            let within = Duration::from_millis(waiting.within.into()).min(self.limits.wait);
            waiting.until = Some(now.at + within);
            self.wait(waiting);
        }
    }

    fn objection(&self, name: &Name, call: &Waiting) -> Option<Refusal> {
        let worker = self.workers.get(name)?;
        let awaiting = self.workers.get(&*call.peer).map_or(0, |peer| peer.awaited.len());
        let busy = worker.sessions.len() >= self.limits.sessions
            || worker.calls.len() >= self.limits.waiting
            || awaiting >= self.limits.awaiting;
        let hello = call.hello.as_ref().map_or(0, |hello| hello.0.len());
        match () {
            () if call.about.len() > LONGEST_ABOUT || hello > LONGEST_HELLO => Some(Refusal::TooLong),
            () if *call.peer == *name => Some(Refusal::Oneself),
            () if busy => Some(Refusal::TooMany),
            () => None,
        }
    }

    fn wait(&mut self, waiting: Waiting) {
        self.last += 1;
        let number = self.last;
        self.timers.extend(waiting.until.map(|until| (until, Timer::Wait(number))));
        self.workers.entry(waiting.caller.clone()).or_default().calls.insert(number);
        self.workers.entry(waiting.peer.clone()).or_default().awaited.insert(number);
        self.waiting.insert(number, waiting);
    }

    /// Takes a call out of everywhere.
    pub(super) fn stop_waiting(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.waiting.remove(&number)?;
        self.timers.remove(&(waiting.until?, Timer::Wait(number)));
        if let Some(caller) = self.workers.get_mut(&waiting.caller) {
            caller.calls.remove(&number);
        }
        if let Some(peer) = self.workers.get_mut(&waiting.peer) {
            peer.awaited.remove(&number);
        }
        self.forget_if_done(&waiting.peer);
        Some(waiting)
    }

    /// The peer did not come in time.
    pub(super) fn give_up_waiting(&mut self, number: u64) {
        if let Some(waiting) = self.stop_waiting(number) {
            self.counts.absent += 1;
            self.tell_worker(&waiting.caller, Told::Refused { call: waiting.call, why: Refusal::Absent });
        }
    }

    /// First come, first served.
    pub(super) fn answer_those_who_waited(&mut self, name: &Name, now: Moment) {
        let numbers = self.workers.get(name).map(|worker| worker.awaited.clone()).unwrap_or_default();
        for number in numbers {
            if let Some(waiting) = self.stop_waiting(number) {
                self.grant(waiting, now);
            }
        }
    }
}
