//! What waits to be minted: in the order in which it came, bounded, taken out when nobody wants it any more. No thread and no clock: time
//! is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What became of the orders so far. `waiting + running + done + failed + cancelled` is the number of those that were taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Not begun.
    pub waiting: usize,
    /// Being worked on.
    pub running: usize,
    /// Worked on, with what was wanted as the result.
    pub done: u64,
    /// Worked on in vain.
    pub failed: u64,
    /// Not wanted any more before they were begun.
    pub cancelled: u64,
    /// Not taken, because so many waited already.
    pub refused: u64,
    /// Time on a processor, all orders together.
    pub cpu: Duration,
    /// What the order that waited longest has waited before it was begun.
    pub longest_wait: Duration,
}

/// As many wait as may wait: whoever asks goes without a session, which costs its first call a round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} orders wait to be minted, which is as many as may: the first call waits for a handshake instead")]
pub struct Full(pub usize);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Queue<W> {
    room: usize,
    next: u64,
    /// By their numbers, which are in the order of coming.
    waiting: BTreeMap<u64, (Instant, W)>,
    numbers: Numbers,
}

impl<W> Queue<W> {
    /// `room`: how many wait at the most.
    pub(super) fn new(room: usize) -> Self {
        Self { room, next: 0, waiting: BTreeMap::new(), numbers: Numbers::default() }
    }

    /// Takes an order; its number.
    pub(super) fn push(&mut self, work: W, now: Instant) -> Result<u64, Full> {
        if self.waiting.len() >= self.room {
            self.numbers.refused += 1;
            return Err(Full(self.room));
        }
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, (now, work));
        Ok(number)
    }

    /// The order that came first; it is running from now on.
    pub(super) fn take(&mut self, now: Instant) -> Option<W> {
        let (_, (came, work)) = self.waiting.pop_first()?;
        self.numbers.running += 1;
        self.numbers.longest_wait = self.numbers.longest_wait.max(now.saturating_duration_since(came));
        Some(work)
    }

    /// An order that was running has ended.
    pub(super) fn ended(&mut self, well: bool, cpu: Duration) {
        self.numbers.running -= 1;
        self.numbers.cpu += cpu;
        match well {
            true => self.numbers.done += 1,
            false => self.numbers.failed += 1,
        }
    }

    /// Takes an order out, if it has not begun.
    pub(super) fn cancel(&mut self, number: u64) -> Option<W> {
        let (_, work) = self.waiting.remove(&number)?;
        self.numbers.cancelled += 1;
        Some(work)
    }

    /// Takes out the order that came first, for nobody will begin it.
    pub(super) fn drop_first(&mut self) -> Option<W> {
        let number = *self.waiting.first_key_value()?.0;
        self.cancel(number)
    }

    /// See [`Numbers`].
    pub(super) fn numbers(&self) -> Numbers {
        Numbers { waiting: self.waiting.len(), ..self.numbers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Debug, Clone)]
    enum Step {
        Push,
        Take,
        /// Ends one of those that run.
        End(bool),
        /// The order of that age among all that ever came.
        Cancel(usize),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Push),
            2 => Just(Step::Take),
            1 => any::<bool>().prop_map(Step::End),
            1 => (0usize..40).prop_map(Step::Cancel),
            1 => (0u64..1000).prop_map(Step::Pass),
        ]
    }

    /// The same without numbers: a list that is searched.
    #[derive(Default)]
    struct Model {
        waiting: VecDeque<u64>,
        came: u64,
        begun: usize,
        running: usize,
        refused: u64,
        cancelled: u64,
    }

    proptest! {
        #[test]
        fn first_come_first_served_and_each_once(steps in proptest::collection::vec(step(), 0..200), room in 0usize..12) {
            let (mut queue, mut model, mut now) = (Queue::new(room), Model::default(), Instant::now());
            for step in steps {
                match step {
                    Step::Push if model.waiting.len() < room => {
                        prop_assert_eq!(queue.push(model.came, now), Ok(model.came));
                        model.waiting.push_back(model.came);
                        model.came += 1;
                    }
                    Step::Push => {
                        prop_assert_eq!(queue.push(999, now), Err(Full(room)));
                        model.refused += 1;
                    }
                    Step::Take => {
                        let wanted = model.waiting.pop_front();
                        prop_assert_eq!(queue.take(now), wanted);
                        model.running += usize::from(wanted.is_some());
                        model.begun += usize::from(wanted.is_some());
                    }
                    Step::End(well) if model.running > 0 => {
                        queue.ended(well, Duration::from_millis(1));
                        model.running -= 1;
                    }
                    Step::End(_) => {}
                    Step::Cancel(back) => {
                        let Some(number) = model.came.checked_sub(1 + back as u64) else { continue };
                        let place = model.waiting.iter().position(|one| *one == number);
                        prop_assert_eq!(queue.cancel(number), place.and_then(|place| model.waiting.remove(place)));
                        model.cancelled += u64::from(place.is_some());
                    }
                    Step::Pass(milliseconds) => now += Duration::from_millis(milliseconds),
                }
                let numbers = queue.numbers();
                prop_assert_eq!(numbers.waiting, model.waiting.len());
                prop_assert_eq!((numbers.running, numbers.refused), (model.running, model.refused));
                prop_assert_eq!(numbers.cancelled, model.cancelled);
                let ended = numbers.done + numbers.failed;
                prop_assert_eq!(ended, (model.begun - model.running) as u64);
                prop_assert_eq!(numbers.cpu, Duration::from_millis(ended));
                prop_assert_eq!(numbers.waiting as u64 + numbers.running as u64 + ended + numbers.cancelled, model.came);
            }
        }
    }

    #[test]
    fn the_longest_wait_is_told() {
        let (mut queue, begin) = (Queue::new(2), Instant::now());
        queue.push("one", begin).unwrap();
        queue.push("two", begin + Duration::from_secs(2)).unwrap();
        assert_eq!(queue.take(begin + Duration::from_secs(5)), Some("one"));
        assert_eq!(queue.take(begin + Duration::from_secs(5)), Some("two"));
        assert_eq!(queue.numbers().longest_wait, Duration::from_secs(5));
    }
}
