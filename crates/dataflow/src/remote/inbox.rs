//! What was heard and not read yet, of each worker no more than a megabyte. Pure.

use std::collections::{HashMap, VecDeque};

use crate::remote::control_message::{LONGEST, Opened, Part};

/// What a letter takes beside its text.
const AROUND: usize = 256;
/// What may be kept of one worker: the letter that comes in, and those that wait.
pub const MOST: usize = LONGEST + AROUND;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Inbox {
    opened: HashMap<String, Opened>,
    letters: VecDeque<(String, String)>,
    waiting: HashMap<String, usize>,
}

impl Inbox {
    /// A part came. Letters are states, of which the newest counts: where there is no room, the oldest of the same worker go.
    pub fn take(&mut self, from: &str, part: Part) {
        let opened = self.opened.entry(from.to_owned()).or_default();
        let letter = opened.take(part);
        let kept = opened.kept();
        if kept == 0 {
            self.opened.remove(from);
        }
        if let Some(text) = letter {
            *self.waiting.entry(from.to_owned()).or_default() += text.len() + AROUND;
            self.letters.push_back((from.to_owned(), text));
        }
        while self.waiting.get(from).is_some_and(|waiting| waiting + kept > MOST) {
            self.forget_oldest(from);
        }
    }

    fn forget_oldest(&mut self, from: &str) {
        let at = self.letters.iter().position(|(who, _)| who == from);
        let forgotten = at.and_then(|at| self.letters.remove(at)).map_or(0, |(_, text)| text.len() + AROUND);
        let left = self.waiting.get(from).map_or(0, |waiting| waiting.saturating_sub(forgotten));
        if at.is_none() || left == 0 {
            self.waiting.remove(from);
        } else {
            self.waiting.insert(from.to_owned(), left);
        }
    }

    /// All letters, in the order in which they came: who said it, and what.
    pub fn read(&mut self) -> Vec<(String, String)> {
        self.waiting.clear();
        self.letters.drain(..).collect()
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::control_message::cut;

    fn hear(inbox: &mut Inbox, from: &str, letter: u64, text: &str) {
        for report in cut(letter, text).unwrap() {
            inbox.take(from, Part::read(report).unwrap());
        }
    }

    fn kept(inbox: &Inbox, from: &str) -> usize {
        let letters =
            inbox.letters.iter().filter(|(who, _)| who == from).map(|(_, text)| text.len() + AROUND).sum::<usize>();
        letters + inbox.opened.get(from).map_or(0, Opened::kept)
    }

    #[test]
    fn letters_are_read_once_and_in_order() {
        let mut inbox = Inbox::default();
        hear(&mut inbox, "a", 1, "one");
        hear(&mut inbox, "b", 1, &"x".repeat(9000));
        hear(&mut inbox, "a", 2, "");
        let read = inbox.read();
        let sizes: Vec<(&str, usize)> = read.iter().map(|(who, text)| (&**who, text.len())).collect();
        assert_eq!(sizes, [("a", 3), ("b", 9000), ("a", 0)]);
        assert!(inbox.is_empty() && inbox.read().is_empty() && inbox.opened.is_empty() && inbox.waiting.is_empty());
    }

    #[test]
    fn of_each_worker_the_newest_megabyte_is_kept() {
        let mut inbox = Inbox::default();
        hear(&mut inbox, "b", 1, "stays");
        for letter in 0..40 {
            hear(&mut inbox, "a", letter, &format!("{letter:02}{}", "x".repeat(100_000)));
            assert!(kept(&inbox, "a") <= MOST, "{}", kept(&inbox, "a"));
        }
        let read = inbox.read();
        assert_eq!(read[0], ("b".to_owned(), "stays".to_owned()));
        assert!(read.len() >= 10 && read.last().unwrap().1.starts_with("39"), "{}", read.len());
        hear(&mut inbox, "a", 50, &"y".repeat(LONGEST));
        assert_eq!(inbox.read()[0].1.len(), LONGEST, "the longest letter has room");
        (0..10_000).for_each(|letter| hear(&mut inbox, "a", letter, ""));
        assert!(inbox.read().len() <= MOST / AROUND, "nothing takes room, too");
    }
}
