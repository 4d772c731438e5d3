//! Control messages that were received and not read, at most a megabyte per worker. Pure.

use std::collections::{HashMap, VecDeque};

use crate::remote::control_message::{MAX_MESSAGE_BYTES, MessageAssembly, MessagePart};

/// Memory of a message beside its text.
const MESSAGE_OVERHEAD_BYTES: usize = 256;
/// Memory per worker: the message that is arriving, and those that wait.
pub const MAX_BYTES_PER_SENDER: usize = MAX_MESSAGE_BYTES + MESSAGE_OVERHEAD_BYTES;

/// Waiting messages, as in the module's text.
#[derive(Debug, Default)]
pub struct MessageInbox {
    assemblies: HashMap<String, MessageAssembly>,
    messages: VecDeque<(String, String)>,
    waiting_bytes: HashMap<String, usize>,
}

impl MessageInbox {
    /// Adds a part. Messages are states, of which the newest counts: without room, the oldest of
    /// the same worker are dropped.
    pub fn add_part(&mut self, from: &str, part: MessagePart) {
        let assembly = self.assemblies.entry(from.to_owned()).or_default();
        let message = assembly.add_part(part);
        let buffered = assembly.buffered_bytes();
        // No empty assemblies stay: else every name that ever sent a part would take memory.
        if buffered == 0 {
            self.assemblies.remove(from);
        }
        if let Some(text) = message {
            *self.waiting_bytes.entry(from.to_owned()).or_default() +=
                text.len() + MESSAGE_OVERHEAD_BYTES;
            self.messages.push_back((from.to_owned(), text));
        }
        while self
            .waiting_bytes
            .get(from)
            .is_some_and(|waiting| waiting + buffered > MAX_BYTES_PER_SENDER)
        {
            self.drop_oldest(from);
        }
    }

    fn drop_oldest(&mut self, from: &str) {
        let at = self.messages.iter().position(|(who, _)| who == from);
        let dropped = at
            .and_then(|at| self.messages.remove(at))
            .map_or(0, |(_, text)| text.len() + MESSAGE_OVERHEAD_BYTES);
        let left = self
            .waiting_bytes
            .get(from)
            .map_or(0, |waiting| waiting.saturating_sub(dropped));
        if at.is_none() || left == 0 {
            self.waiting_bytes.remove(from);
        } else {
            self.waiting_bytes.insert(from.to_owned(), left);
        }
    }

    /// Takes all messages in order of arrival, each with its sender.
    pub fn take_messages(&mut self) -> Vec<(String, String)> {
        self.waiting_bytes.clear();
        self.messages.drain(..).collect()
    }

    /// True when no message waits.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::control_message::split_message;

    fn receive_message(inbox: &mut MessageInbox, from: &str, number: u64, text: &str) {
        for report in split_message(number, text).unwrap() {
            inbox.add_part(from, MessagePart::from_report(report).unwrap());
        }
    }

    fn kept_bytes(inbox: &MessageInbox, from: &str) -> usize {
        let messages = inbox
            .messages
            .iter()
            .filter(|(who, _)| who == from)
            .map(|(_, text)| text.len() + MESSAGE_OVERHEAD_BYTES)
            .sum::<usize>();
        messages
            + inbox
                .assemblies
                .get(from)
                .map_or(0, MessageAssembly::buffered_bytes)
    }

    #[test]
    fn messages_are_read_once_and_in_order() {
        let mut inbox = MessageInbox::default();
        receive_message(&mut inbox, "a", 1, "one");
        receive_message(&mut inbox, "b", 1, &"x".repeat(9000));
        receive_message(&mut inbox, "a", 2, "");
        let read = inbox.take_messages();
        let sizes: Vec<(&str, usize)> = read
            .iter()
            .map(|(who, text)| (&**who, text.len()))
            .collect();
        assert_eq!(sizes, [("a", 3), ("b", 9000), ("a", 0)]);
        assert!(
            inbox.is_empty()
                && inbox.take_messages().is_empty()
                && inbox.assemblies.is_empty()
                && inbox.waiting_bytes.is_empty()
        );
    }

    #[test]
    fn the_newest_megabyte_of_each_worker_is_kept() {
        let mut inbox = MessageInbox::default();
        receive_message(&mut inbox, "b", 1, "stays");
        for letter in 0..40 {
            receive_message(
                &mut inbox,
                "a",
                letter,
                &format!("{letter:02}{}", "x".repeat(100_000)),
            );
            assert!(
                kept_bytes(&inbox, "a") <= MAX_BYTES_PER_SENDER,
                "{}",
                kept_bytes(&inbox, "a")
            );
        }
        let read = inbox.take_messages();
        assert_eq!(read[0], ("b".to_owned(), "stays".to_owned()));
        assert!(
            read.len() >= 10 && read.last().unwrap().1.starts_with("39"),
            "{}",
            read.len()
        );
        receive_message(&mut inbox, "a", 50, &"y".repeat(MAX_MESSAGE_BYTES));
        assert_eq!(
            inbox.take_messages()[0].1.len(),
            MAX_MESSAGE_BYTES,
            "the largest message fits"
        );
        (0..10_000).for_each(|letter| receive_message(&mut inbox, "a", letter, ""));
        assert!(
            inbox.take_messages().len() <= MAX_BYTES_PER_SENDER / MESSAGE_OVERHEAD_BYTES,
            "empty messages use memory too"
        );
    }
}
