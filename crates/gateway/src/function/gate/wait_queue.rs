//! Bounded queue of waiting requests: the source with the fewest places is next, and equal ones take
//! turns; each source's requests go in order.
//!
//! One source that sends more than others, or slower requests, waits behind itself alone. When the
//! queue is full, a source with few waiting requests displaces the newest request of the source with
//! the most (longest queue drop: Suter et al., INFOCOM 1998).

use std::collections::{HashMap, VecDeque};

use nearpath_types::SourceNetwork;

/// Turns that a source gives to others for each place that its callers were too slow for.
const TURNS_PER_LOST_PLACE: u32 = 64;
/// Maximum turns that a source owes.
const MAX_OWED_TURNS: u32 = 512;
/// Maximum sources that owe turns. Beyond it all are forgiven.
const MAX_OWING_SOURCES: usize = 4_096;

/// Position of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueTicket {
    number: u64,
    /// `None`: admitted before, and in front of all sources.
    source: Option<SourceNetwork>,
}

/// Waiting requests of a source in order of their numbers. `T` notifies a request.
type WaitingList<T> = VecDeque<(u64, T)>;

/// Result of adding a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PushResult<T> {
    /// The request waits.
    Queued(QueueTicket),
    /// The request waits in place of another one.
    Displaced(QueueTicket, T),
    /// The queue is full, and no source has more waiting requests than this one.
    Full,
}

/// Queue of waiting requests.
#[derive(Debug)]
pub(super) struct AdmissionQueue<T> {
    /// Requests that were admitted before, with their sources.
    returned: VecDeque<(u64, SourceNetwork, T)>,
    /// Waiting requests of each source; no list is empty.
    by_source: HashMap<SourceNetwork, WaitingList<T>>,
    /// Sources with waiting requests, in the order of turns of those with equal places.
    turns: VecDeque<SourceNetwork>,
    /// Turns that sources give to others.
    owed_turns: HashMap<SourceNetwork, u32>,
    /// Waiting requests in `by_source`.
    source_count: usize,
    /// Places that slow callers lost and that have not come back yet.
    claimed_places: usize,
    last_number: u64,
    max_waiting: usize,
    is_closed: bool,
}

impl<T> AdmissionQueue<T> {
    /// Creates an empty queue.
    pub(super) fn new(max_waiting: u32) -> Self {
        Self {
            returned: VecDeque::new(),
            by_source: HashMap::new(),
            turns: VecDeque::new(),
            owed_turns: HashMap::new(),
            source_count: 0,
            claimed_places: 0,
            last_number: 0,
            max_waiting: max_waiting as usize,
            is_closed: false,
        }
    }

    /// Sets the maximum number of waiting requests. Those that wait already stay.
    pub(super) fn set_max_waiting(&mut self, max_waiting: u32) {
        self.max_waiting = max_waiting as usize;
    }

    /// Returns whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of waiting requests.
    pub(super) fn len(&self) -> usize {
        self.returned.len() + self.source_count
    }

    /// Returns whether the queue was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Adds a request as the last one of its source.
    pub(super) fn push_last(&mut self, source: SourceNetwork, waiter: T) -> PushResult<T> {
        if self.is_closed {
            return PushResult::Full;
        }
        let displaced = if self.len() < self.max_waiting {
            None
        } else {
            let Some(longest) = self.max_source_above(source) else {
                return PushResult::Full;
            };
            self.pop_newest(longest)
        };
        self.forget_unused_claims();
        let number = self.next_number();
        let list = self.by_source.entry(source).or_default();
        if list.is_empty() {
            self.turns.push_back(source);
        }
        list.push_back((number, waiter));
        self.source_count += 1;
        let ticket = QueueTicket {
            number,
            source: Some(source),
        };
        match displaced {
            Some(displaced) => PushResult::Displaced(ticket, displaced),
            None => PushResult::Queued(ticket),
        }
    }

    /// Adds a request in front, for one that was admitted before. The limit does not apply.
    pub(super) fn push_first(&mut self, source: SourceNetwork, waiter: T) -> Option<QueueTicket> {
        if self.is_closed {
            return None;
        }
        self.forget_unused_claims();
        let number = self.next_number();
        self.returned.push_front((number, source, waiter));
        Some(QueueTicket {
            number,
            source: None,
        })
    }

    /// Takes the next request to admit, with its source. Passes over sources for which
    /// `places_of` returns `None`: they hold as many places as they may.
    pub(super) fn pop_first(
        &mut self,
        places_of: impl Fn(SourceNetwork) -> Option<u32>,
    ) -> Option<(SourceNetwork, T)> {
        if let Some((_, source, waiter)) = self.returned.pop_front() {
            return Some((source, waiter));
        }
        let source = self.pop_source(places_of)?;
        let list = self.by_source.get_mut(&source)?;
        let next = list.pop_front();
        if list.is_empty() {
            self.by_source.remove(&source);
        } else {
            self.turns.push_back(source);
        }
        self.source_count -= 1;
        next.map(|(_, waiter)| (source, waiter))
    }

    /// Returns whether a request of a source waits.
    pub(super) fn has_request_of(&self, source: SourceNetwork) -> bool {
        self.by_source.contains_key(&source)
    }

    /// Claims the place of a slow caller for a waiting request, and makes its source give some turns
    /// to others. False: this caller keeps its own, because a place is claimed for each waiting
    /// request whose source `has_room`.
    pub(super) fn claim_place(
        &mut self,
        source: SourceNetwork,
        has_room: impl Fn(SourceNetwork) -> bool,
    ) -> bool {
        let with_room = self
            .by_source
            .iter()
            .filter(|(source, _)| has_room(**source));
        let awaited: usize = with_room.map(|(_, list)| list.len()).sum();
        let is_wanted = self.claimed_places < awaited + self.returned.len();
        if is_wanted {
            self.claimed_places += 1;
            self.charge_source(source);
        }
        is_wanted
    }

    /// Counts places that came back, claimed or not.
    pub(super) fn note_returned(&mut self, places: usize) {
        self.claimed_places = self.claimed_places.saturating_sub(places);
    }

    /// Forgets claims on places that came back while no request waited: the queue was not told.
    fn forget_unused_claims(&mut self) {
        if self.is_empty() {
            self.claimed_places = 0;
        }
    }

    fn charge_source(&mut self, source: SourceNetwork) {
        if self.owed_turns.len() >= MAX_OWING_SOURCES {
            self.owed_turns.clear();
        }
        let owed = self.owed_turns.entry(source).or_insert(0);
        *owed = (*owed + TURNS_PER_LOST_PLACE).min(MAX_OWED_TURNS);
    }

    /// Takes the source whose turn it is: one that owes none before those that do, then the one with
    /// the fewest places, then the first. A search over all: the queue is bounded.
    fn pop_source(
        &mut self,
        places_of: impl Fn(SourceNetwork) -> Option<u32>,
    ) -> Option<SourceNetwork> {
        let waiting = self.turns.iter().enumerate();
        let rank = |(position, source): (usize, &SourceNetwork)| {
            let places = places_of(*source)?;
            Some((self.owed_turns.contains_key(source), places, position))
        };
        let mut best = None;
        for ranked in waiting.filter_map(rank) {
            if best.is_none_or(|best| ranked < best) {
                best = Some(ranked);
            }
            if matches!(best, Some((false, 0, _))) {
                break; // no other comes before it
            }
        }
        let (owes, _, position) = best?;
        let next = self.turns.remove(position);
        if !owes && !self.owed_turns.is_empty() {
            self.settle_turns();
        }
        next
    }

    /// Counts a turn that the waiting sources gave to another one.
    fn settle_turns(&mut self) {
        for source in &self.turns {
            if let Some(owed) = self.owed_turns.get_mut(source) {
                *owed -= 1;
                if *owed == 0 {
                    self.owed_turns.remove(source);
                }
            }
        }
    }

    /// Removes a request. False: it was admitted or displaced before.
    pub(super) fn remove_ticket(&mut self, ticket: QueueTicket) -> bool {
        let Some(source) = ticket.source else {
            let position = self.returned.iter().position(|one| one.0 == ticket.number);
            return position.is_some_and(|position| self.returned.remove(position).is_some());
        };
        let position = self
            .by_source
            .get(&source)
            .and_then(|list| list.binary_search_by_key(&ticket.number, |one| one.0).ok());
        position.is_some_and(|position| self.remove_at(source, position).is_some())
    }

    /// Closes the queue and returns all waiting requests.
    pub(super) fn close_queue(&mut self) -> Vec<T> {
        self.is_closed = true;
        let returned = self.returned.drain(..).map(|(_, _, waiter)| waiter);
        let lists = self.by_source.drain().flat_map(|(_, list)| list);
        let all = returned.chain(lists.map(|(_, waiter)| waiter)).collect();
        self.turns.clear();
        self.source_count = 0;
        all
    }

    /// Returns the source with the most waiting requests, if those are more than `source` would
    /// have with another one.
    fn max_source_above(&self, source: SourceNetwork) -> Option<SourceNetwork> {
        let own_count = self.by_source.get(&source).map_or(0, VecDeque::len);
        // A search over all sources: the queue is full only under attack, and bounded.
        let (longest, list) = self.by_source.iter().max_by_key(|(_, list)| list.len())?;
        (list.len() > own_count + 1).then_some(*longest)
    }

    fn pop_newest(&mut self, source: SourceNetwork) -> Option<T> {
        let last = self.by_source.get(&source)?.len().checked_sub(1)?;
        self.remove_at(source, last)
    }

    fn remove_at(&mut self, source: SourceNetwork, position: usize) -> Option<T> {
        let list = self.by_source.get_mut(&source)?;
        let (_, waiter) = list.remove(position)?;
        self.source_count -= 1;
        if list.is_empty() {
            self.by_source.remove(&source);
            // Now, not at its turn: strangers' entries would pile up while nothing is admitted.
            self.turns.retain(|waiting| *waiting != source);
        }
        Some(waiter)
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn source(host: u8) -> SourceNetwork {
        SourceNetwork::of([192, 0, 2, host].into())
    }

    fn push(queue: &mut AdmissionQueue<u32>, host: u8, waiter: u32) -> PushResult<u32> {
        queue.push_last(source(host), waiter)
    }

    /// Takes all; each place comes back at once.
    fn pop_all(queue: &mut AdmissionQueue<u32>) -> Vec<u32> {
        let next = || queue.pop_first(|_| Some(0)).map(|(_, waiter)| waiter);
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn sources_take_turns_after_requests_that_were_admitted_before() {
        let mut queue = AdmissionQueue::new(100);
        for waiter in 0..4 {
            push(&mut queue, 1, waiter);
        }
        push(&mut queue, 2, 10);
        push(&mut queue, 3, 20);
        push(&mut queue, 2, 11);
        queue.push_first(source(1), 30);
        assert_eq!(pop_all(&mut queue), [30, 0, 10, 20, 1, 11, 2, 3]);
    }

    #[test]
    fn a_source_that_keeps_its_places_waits_for_those_with_fewer() {
        let (mut queue, mut held) = (AdmissionQueue::new(100), HashMap::new());
        for waiter in 0..4 {
            push(&mut queue, 1, waiter);
            push(&mut queue, 2, 10 + waiter);
        }
        held.insert(source(1), 2);
        let mut order = Vec::new();
        while let Some((source, waiter)) =
            queue.pop_first(|source| held.get(&source).copied().or(Some(0)))
        {
            *held.entry(source).or_insert(0) += 1;
            order.push(waiter);
        }
        assert_eq!(order, [10, 11, 0, 12, 1, 13, 2, 3]);
    }

    #[test]
    fn a_source_without_room_is_passed_over() {
        let mut queue = AdmissionQueue::new(100);
        push(&mut queue, 1, 1);
        push(&mut queue, 2, 2);
        let only_second = |one: SourceNetwork| (one == source(2)).then_some(0);
        assert_eq!(queue.pop_first(only_second), Some((source(2), 2)));
        assert_eq!(queue.pop_first(only_second), None);
        assert_eq!(pop_all(&mut queue), [1], "it still waits");
    }

    #[test]
    fn a_charged_source_gives_turns_to_others_and_waits_for_none() {
        let mut queue = AdmissionQueue::new(1_000);
        queue.charge_source(source(1));
        for waiter in 0..3 {
            push(&mut queue, 1, waiter);
        }
        for waiter in 100..166 {
            push(&mut queue, 2, waiter);
        }
        let order = pop_all(&mut queue);
        assert_eq!(order[..64], Vec::from_iter(100..164));
        assert_eq!(order[64..], [0, 164, 1, 165, 2]);
        queue.charge_source(source(1));
        push(&mut queue, 1, 7);
        assert_eq!(pop_all(&mut queue), [7], "no other source waits");
    }

    #[test]
    fn a_full_queue_displaces_the_newest_request_of_the_longest_source() {
        let mut queue = AdmissionQueue::new(4);
        for waiter in 0..4 {
            push(&mut queue, 1, waiter);
        }
        assert_eq!(push(&mut queue, 1, 4), PushResult::Full);
        assert!(matches!(
            push(&mut queue, 2, 10),
            PushResult::Displaced(_, 3)
        ));
        assert!(matches!(
            push(&mut queue, 2, 11),
            PushResult::Displaced(_, 2)
        ));
        assert_eq!(push(&mut queue, 2, 12), PushResult::Full, "equal shares");
        assert_eq!(pop_all(&mut queue), [0, 10, 1, 11]);
    }

    proptest! {
        #[test]
        fn every_request_leaves_once(max in 0u32..8, steps in proptest::collection::vec((0u8..6, 0u8..4), 0..100)) {
            let mut queue = AdmissionQueue::new(max);
            let (mut tickets, mut waiting, mut next) = (Vec::new(), std::collections::BTreeSet::new(), 0);
            for (step, host) in steps {
                match step {
                    0..3 => {
                        next += 1;
                        match push(&mut queue, host, next) {
                            PushResult::Queued(ticket) => tickets.push((ticket, next)),
                            PushResult::Displaced(ticket, other) => {
                                tickets.push((ticket, next));
                                prop_assert!(waiting.remove(&other));
                            }
                            PushResult::Full => {
                                prop_assert_eq!(queue.len(), max as usize);
                                continue;
                            }
                        }
                        waiting.insert(next);
                    }
                    3 => match queue.pop_first(|_| Some(0)) {
                        Some((_, waiter)) => prop_assert!(waiting.remove(&waiter)),
                        None => prop_assert!(waiting.is_empty()),
                    },
                    _ => {
                        let Some((ticket, waiter)) = tickets.pop() else { continue };
                        prop_assert_eq!(queue.remove_ticket(ticket), waiting.remove(&waiter));
                    }
                }
                prop_assert_eq!(queue.len(), waiting.len());
                prop_assert_eq!(queue.turns.len(), queue.by_source.len());
                prop_assert!(queue.by_source.values().all(|list| !list.is_empty()));
            }
            prop_assert_eq!(queue.close_queue().len(), waiting.len());
        }
    }
}
