//! Waiting clients: queued for a slot, then for the connection that is being opened for them.

use std::time::Instant;

use super::PoolState;
use super::key_state::SocketPhase;
use super::timers::TimerEntry;
use super::types::{
    KeyId, RefusalReason, RequestOutcome, RequesterId, SocketId, StateAction, WaitTicket,
};

/// Maximum queued clients of one function in one limit group, far above what a working function
/// needs. Bounds memory.
const MAX_WAITERS_PER_FUNCTION: usize = 1_024;

/// A waiting client.
#[derive(Debug)]
pub(super) struct WaitingClient {
    pub(super) key: KeyId,
    requester: RequesterId,
    deadline: Instant,
}

impl PoolState {
    /// Cancels a waiter. Returns false if it has already been given a connection or refused.
    pub fn cancel_wait(&mut self, now: Instant, ticket: WaitTicket) -> bool {
        let Some(waiter) = self.remove_waiter(ticket) else {
            return false;
        };
        let group_id = self.key_state(waiter.key).group;
        self.serve_waiters(now, group_id);
        true
    }

    /// Serves a client that found nothing warm: opens a connection if a slot is free, otherwise
    /// queues it.
    pub(super) fn request_new(
        &mut self,
        now: Instant,
        key: KeyId,
        requester: RequesterId,
        deadline: Instant,
    ) -> RequestOutcome {
        let key_state = self.key_state(key);
        let (max, spare, group_id) = (
            key_state.terms.max,
            key_state.unassigned_connects() > 0,
            key_state.group,
        );
        let group = self.limit_group(group_id);
        let others_wait = group.queue.next_servable(|other| other == key).is_some();
        // A surplus connect serves this client, unless others of its key wait already or connects
        // fail now.
        let takes_surplus = spare && !others_wait && !group.is_failing();
        let has_room = group.open_count < max;
        let (open, failing) = (group.open_count, group.is_failing());
        // A client without time to wait is refused instead of queued.
        if !takes_surplus && !has_room && deadline <= now {
            self.key_state_mut(key).refused += 1;
            return RequestOutcome::Refused(RefusalReason::TimedOut { open, failing });
        }
        if !takes_surplus
            && !has_room
            && group.queue.count_waiting(requester) >= MAX_WAITERS_PER_FUNCTION
        {
            self.key_state_mut(key).refused += 1;
            return RequestOutcome::Refused(RefusalReason::QueueFull);
        }
        let ticket = self.add_waiter(key, requester, deadline);
        match (takes_surplus, has_room) {
            (true, _) => drop(self.key_state_mut(key).granted.insert(ticket)),
            (false, true) => {
                // Counts as a turn of the function, although it was not queued.
                self.limit_group_mut(group_id).queue.record_turn(requester);
                self.grant_connect(now, ticket);
            }
            (false, false) => self.queue_waiter(now, group_id, ticket),
        }
        RequestOutcome::Wait(ticket)
    }

    fn add_waiter(&mut self, key: KeyId, requester: RequesterId, deadline: Instant) -> WaitTicket {
        self.last_ticket += 1;
        let ticket = WaitTicket(self.last_ticket);
        self.waiters.insert(
            ticket,
            WaitingClient {
                key,
                requester,
                deadline,
            },
        );
        self.key_state_mut(key).waiting += 1;
        ticket
    }

    fn queue_waiter(&mut self, now: Instant, group_id: u64, ticket: WaitTicket) {
        let WaitingClient {
            key,
            requester,
            deadline,
        } = self.waiters[&ticket];
        self.key_state_mut(key).waits += 1;
        self.limit_group_mut(group_id)
            .queue
            .join((requester, ticket, key));
        // Only the queue needs a deadline; a running connect has its own.
        self.timers
            .schedule(TimerEntry::Waiter(ticket), None, deadline);
        // Warm connections close first; adapters are asked only for what is still missing.
        self.serve_waiters(now, group_id);
        self.request_reclaim(group_id);
    }

    /// Opens a connection for a waiter that is not queued any more. From here on the dialler bounds
    /// its time.
    pub(super) fn grant_connect(&mut self, now: Instant, ticket: WaitTicket) {
        let WaitingClient { key, deadline, .. } = self.waiters[&ticket];
        self.timers
            .cancel_timer(TimerEntry::Waiter(ticket), Some(deadline));
        self.key_state_mut(key).granted.insert(ticket);
        self.start_connect(now, key);
    }

    /// Gives an open connection to a waiter.
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

    /// Refuses a waiter whose deadline has passed.
    pub(super) fn expire_waiter(&mut self, now: Instant, ticket: WaitTicket) {
        let Some(waiter) = self.waiters.get(&ticket) else {
            return;
        };
        let group_id = self.key_state(waiter.key).group;
        let group = self.limit_group(group_id);
        let why = RefusalReason::TimedOut {
            open: group.open_count,
            failing: group.is_failing(),
        };
        self.refuse_waiter(ticket, why);
        self.serve_waiters(now, group_id);
    }

    /// Removes a waiter from all lists.
    fn remove_waiter(&mut self, ticket: WaitTicket) -> Option<WaitingClient> {
        let waiter = self.waiters.remove(&ticket)?;
        self.timers
            .cancel_timer(TimerEntry::Waiter(ticket), Some(waiter.deadline));
        let key_state = self.key_state_mut(waiter.key);
        key_state.waiting -= 1;
        key_state.granted.remove(&ticket);
        let group_id = key_state.group;
        self.limit_group_mut(group_id)
            .queue
            .leave((waiter.requester, ticket, waiter.key));
        Some(waiter)
    }
}
