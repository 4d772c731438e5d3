//! Those who wait: in line for room, then for the connection that is being opened for them.

use std::time::Instant;

use super::PoolState;
use super::key_state::SocketPhase;
use super::timers::TimerEntry;
use super::types::{
    KeyId, RefusalReason, RequestOutcome, RequesterId, SocketId, StateAction, WaitTicket,
};

/// Most waiters in line of one function at one place: what asks faster than that has lost its senses.
const MAX_WAITERS_PER_FUNCTION: usize = 1_024;

/// One who waits.
#[derive(Debug)]
pub(super) struct WaitingClient {
    pub(super) key: KeyId,
    requester: RequesterId,
    deadline: Instant,
}

impl PoolState {
    /// A waiter does not want a connection any more. False: it has been given one, or was refused.
    pub fn cancel_wait(&mut self, now: Instant, ticket: WaitTicket) -> bool {
        let Some(waiter) = self.remove_waiter(ticket) else {
            return false;
        };
        let at = self.key_state(waiter.key).group;
        self.serve_waiters(now, at);
        true
    }

    /// A newcomer that finds nothing warm: a connection is opened for it if there is room, else it waits until there is.
    pub(super) fn request_new(
        &mut self,
        now: Instant,
        key: KeyId,
        asker: RequesterId,
        deadline: Instant,
    ) -> RequestOutcome {
        let rack = self.key_state(key);
        let (max, spare, at) = (rack.terms.max, rack.unassigned_connects() > 0, rack.group);
        let place = self.limit_group(at);
        let passes = place.queue.next_servable(|other| other == key).is_some();
        let joins = spare && !passes && !place.is_failing();
        let has_room = place.open_count < max;
        let (open, failing) = (place.open_count, place.is_failing());
        if !joins && !has_room && deadline <= now {
            self.key_state_mut(key).refused += 1;
            return RequestOutcome::Refused(RefusalReason::TimedOut { open, failing });
        }
        if !joins && !has_room && place.queue.count_waiting(asker) >= MAX_WAITERS_PER_FUNCTION {
            self.key_state_mut(key).refused += 1;
            return RequestOutcome::Refused(RefusalReason::QueueFull);
        }
        let ticket = self.add_waiter(key, asker, deadline);
        match (joins, has_room) {
            (true, _) => drop(self.key_state_mut(key).granted.insert(ticket)),
            (false, true) => {
                self.limit_group_mut(at).queue.record_turn(asker);
                self.grant_connect(now, ticket);
            }
            (false, false) => self.queue_waiter(now, at, ticket),
        }
        RequestOutcome::Wait(ticket)
    }

    fn add_waiter(&mut self, key: KeyId, asker: RequesterId, deadline: Instant) -> WaitTicket {
        self.last_ticket += 1;
        let ticket = WaitTicket(self.last_ticket);
        self.waiters.insert(
            ticket,
            WaitingClient {
                key,
                requester: asker,
                deadline,
            },
        );
        self.key_state_mut(key).waiting += 1;
        ticket
    }

    fn queue_waiter(&mut self, now: Instant, at: u64, ticket: WaitTicket) {
        let WaitingClient {
            key,
            requester: asker,
            deadline,
        } = self.waiters[&ticket];
        self.key_state_mut(key).waits += 1;
        self.limit_group_mut(at).queue.join((asker, ticket, key));
        self.timers
            .schedule(TimerEntry::Waiter(ticket), None, deadline);
        self.serve_waiters(now, at);
        self.request_reclaim(at);
    }

    /// Opens a connection for a waiter that is in no line any more. From here on its opening decides how long it takes.
    pub(super) fn grant_connect(&mut self, now: Instant, ticket: WaitTicket) {
        let WaitingClient { key, deadline, .. } = self.waiters[&ticket];
        self.timers
            .cancel_timer(TimerEntry::Waiter(ticket), Some(deadline));
        self.key_state_mut(key).granted.insert(ticket);
        self.start_connect(now, key);
    }

    /// An open connection is this waiter's.
    pub(super) fn give_socket(&mut self, now: Instant, ticket: WaitTicket, socket: SocketId) {
        let Some(waiter) = self.remove_waiter(ticket) else {
            return;
        };
        self.key_state_mut(waiter.key).misses += 1;
        self.set_phase(now, socket, SocketPhase::InUse);
        self.actions.push_back(StateAction::Give(ticket, socket));
    }

    pub(super) fn refuse_waiter(&mut self, ticket: WaitTicket, why: RefusalReason) {
        let Some(waiter) = self.remove_waiter(ticket) else {
            return;
        };
        self.key_state_mut(waiter.key).refused += 1;
        self.actions.push_back(StateAction::Refuse(ticket, why));
    }

    /// A waiter's deadline has passed.
    pub(super) fn expire_waiter(&mut self, now: Instant, ticket: WaitTicket) {
        let Some(waiter) = self.waiters.get(&ticket) else {
            return;
        };
        let at = self.key_state(waiter.key).group;
        let place = self.limit_group(at);
        let why = RefusalReason::TimedOut {
            open: place.open_count,
            failing: place.is_failing(),
        };
        self.refuse_waiter(ticket, why);
        self.serve_waiters(now, at);
    }

    /// Strikes a waiter from all lists.
    fn remove_waiter(&mut self, ticket: WaitTicket) -> Option<WaitingClient> {
        let waiter = self.waiters.remove(&ticket)?;
        self.timers
            .cancel_timer(TimerEntry::Waiter(ticket), Some(waiter.deadline));
        let rack = self.key_state_mut(waiter.key);
        rack.waiting -= 1;
        rack.granted.remove(&ticket);
        let at = rack.group;
        self.limit_group_mut(at)
            .queue
            .leave((waiter.requester, ticket, waiter.key));
        Some(waiter)
    }
}
