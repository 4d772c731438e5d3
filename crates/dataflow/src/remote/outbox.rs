//! What is to be said and is not yet: for each worker the newest. Pure, but for the time that it is told.
//!
//! The rendezvous reads so many messages a second of a line and no more. Control messages are states that are repeated, so one
//! that still waits when the next one comes is not worth sending; and what waits is bounded by who is spoken to.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use nearpath_p2p::message::Report;

use crate::remote::control_message::{TooLong, cut};

/// Reports a second, and how many at once: a seventh of what a rendezvous reads by default; what edges say goes over the same line.
const PACE: Duration = Duration::from_micros(6667);
const AT_ONCE: u32 = 1500;

/// See the module's text. `W` is whom a letter is for.
#[derive(Debug)]
pub struct Outbox<W> {
    /// Whose turn it is; each once.
    turns: VecDeque<W>,
    waiting: HashMap<W, Vec<Report>>,
    /// The rest of the letter that has begun: it is not given up for a newer one, or none would arrive.
    begun: Option<(W, VecDeque<Report>)>,
    letter: u64,
    /// When all that was said would have been said at the pace; see GCRA (ITU-T I.371).
    paid: Option<Instant>,
}

impl<W> Default for Outbox<W> {
    fn default() -> Self {
        Self { turns: VecDeque::new(), waiting: HashMap::new(), begun: None, letter: 0, paid: None }
    }
}

impl<W: Clone + Eq + std::hash::Hash> Outbox<W> {
    /// Says this, instead of what still waits for the same worker.
    ///
    /// # Errors
    /// When it is too long.
    pub fn put(&mut self, to: W, text: &str) -> Result<(), TooLong> {
        self.letter += 1;
        if self.waiting.insert(to.clone(), cut(self.letter, text)?).is_none() {
            self.turns.push_back(to);
        }
        Ok(())
    }

    /// The next report; when to come back for it; or nothing to say.
    pub fn next(&mut self, now: Instant) -> Turn<W> {
        let paid = self.paid.map_or(now, |paid| paid.max(now));
        let since = paid - now;
        if since > PACE * AT_ONCE {
            return if self.is_empty() { Turn::Nothing } else { Turn::Later(paid - PACE * AT_ONCE) };
        }
        let Some((to, report)) = self.report() else { return Turn::Nothing };
        self.paid = Some(paid + PACE);
        Turn::Say(to, report)
    }

    fn report(&mut self) -> Option<(W, Report)> {
        if self.begun.is_none() {
            let to = self.turns.pop_front()?;
            let reports = self.waiting.remove(&to)?;
            self.begun = Some((to, reports.into()));
        }
        let (to, reports) = self.begun.as_mut()?;
        let (to, report) = (to.clone(), reports.pop_front()?);
        if reports.is_empty() {
            self.begun = None;
        }
        Some((to, report))
    }

    /// Whether all is said.
    pub fn is_empty(&self) -> bool {
        self.begun.is_none() && self.turns.is_empty()
    }
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn<W> {
    /// Say this.
    Say(W, Report),
    /// Not before then.
    Later(Instant),
    /// Until there is something.
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::control_message::{Opened, Part};

    /// All that goes out now, by worker.
    fn all(outbox: &mut Outbox<u8>, now: Instant) -> Vec<(u8, String)> {
        let (mut opened, mut said) = (HashMap::<u8, Opened>::new(), Vec::new());
        while let Turn::Say(to, report) = outbox.next(now) {
            let text = opened.entry(to).or_default().take(Part::read(report).unwrap());
            said.extend(text.map(|text| (to, text)));
        }
        said
    }

    #[test]
    fn the_newest_goes_and_each_has_its_turn() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        for (to, text) in [(1, "old"), (2, "two"), (1, "new")] {
            outbox.put(to, text).unwrap();
        }
        assert_eq!(all(&mut outbox, now), [(1, "new".to_owned()), (2, "two".to_owned())]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_letter_that_has_begun_is_finished() {
        let (mut outbox, now, mut opened) = (Outbox::default(), Instant::now(), Opened::default());
        let long = "x".repeat(9000);
        outbox.put(1, &long).unwrap();
        let mut said = Vec::new();
        while let Turn::Say(_, report) = outbox.next(now) {
            if said.is_empty() {
                outbox.put(1, "newer").unwrap();
            }
            said.extend(opened.take(Part::read(report).unwrap()));
            if said.is_empty() {
                outbox.put(1, "newest").unwrap();
            }
        }
        assert_eq!(said, [long, "newer".to_owned()]);
    }

    #[test]
    fn a_line_is_not_made_to_say_more_than_it_may() {
        let (mut outbox, begin) = (Outbox::default(), Instant::now());
        let mut said = 0;
        for tick in 0..100 {
            let now = begin + Duration::from_millis(100) * tick;
            for to in 0..=255 {
                outbox.put(to, "state").unwrap();
            }
            said += all(&mut outbox, now).len();
            assert!(matches!(outbox.next(now), Turn::Nothing | Turn::Later(_)));
        }
        let most = AT_ONCE as usize + 10 * 150;
        assert!((most - 20..=most + 20).contains(&said), "{said}");
    }
}
