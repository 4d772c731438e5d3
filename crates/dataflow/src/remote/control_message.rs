//! Control messages longer than a report: split into parts and reassembled. Pure.
//!
//! A part is the body of a [`JobReport::Other`]:
//! `{"message":NUMBER,"part":NUMBER,"of":NUMBER,"text":TEXT}` (`contract/dataflow.md`, "Control
//! messages"). A rendezvous keeps the order of one worker's reports, so the first part of a new
//! message ends the one before.

use nearpath_p2p::message::{JobReport, MAX_REPORT_BYTES};
use serde::{Deserialize, Serialize};

/// Largest control message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Upper bound on the JSON around the text of a part.
const PART_OVERHEAD_BYTES: usize = 128;

/// One part of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessagePart {
    message: u64,
    part: usize,
    of: usize,
    text: String,
}

/// A message that exceeds [`MAX_MESSAGE_BYTES`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("control message of {0} bytes exceeds {MAX_MESSAGE_BYTES}: send less, or use an edge")]
pub struct MessageTooLong(usize);

/// Splits a message into reports. `number` must differ from that of the message before.
///
/// # Errors
/// When the message is too long: [`MessageTooLong`].
pub fn split_message(number: u64, text: &str) -> Result<Vec<JobReport>, MessageTooLong> {
    if text.len() > MAX_MESSAGE_BYTES {
        return Err(MessageTooLong(text.len()));
    }
    let texts_of_parts = split_text(text, MAX_REPORT_BYTES - PART_OVERHEAD_BYTES);
    let of = texts_of_parts.len();
    let parts = texts_of_parts
        .into_iter()
        .enumerate()
        .map(|(part, text)| MessagePart {
            message: number,
            part,
            of,
            text: text.to_owned(),
        });
    Ok(parts
        .map(|part| JobReport::Other {
            body: serde_json::to_value(part).expect("text keys only"),
        })
        .collect())
}

/// Splits between characters, so that no part exceeds `max_bytes` as JSON. An empty text is one
/// part.
fn split_text(text: &str, max_bytes: usize) -> Vec<&str> {
    let (mut parts, mut rest, mut part_length, mut split_at_byte) = (Vec::new(), text, 0, 0);
    for character in text.chars() {
        let length = json_length(character);
        if part_length + length > max_bytes {
            let (part, left) = rest.split_at(split_at_byte);
            parts.push(part);
            (rest, part_length, split_at_byte) = (left, 0, 0);
        }
        (part_length, split_at_byte) = (part_length + length, split_at_byte + character.len_utf8());
    }
    parts.push(rest);
    parts
}

/// Bytes of a character in a JSON string (RFC 8259 section 7).
fn json_length(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        // Other control characters are written as `\u00XX`.
        '\0'..='\u{1f}' => 6,
        other => other.len_utf8(),
    }
}

impl MessagePart {
    /// Reads a part from a report; `None` when the report is something else.
    pub fn from_report(report: JobReport) -> Option<Self> {
        let JobReport::Other { body } = report else {
            return None;
        };
        serde_json::from_value(body).ok()
    }
}

/// Message of one worker that is being reassembled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageAssembly {
    message: u64,
    next_part: usize,
    text: String,
}

impl MessageAssembly {
    /// Bytes of memory in use.
    pub fn buffered_bytes(&self) -> usize {
        self.text.capacity()
    }

    /// Adds the next part, and returns the message after the last one. A message with a missing
    /// part, or a too long one, is dropped.
    pub fn add_part(&mut self, part: MessagePart) -> Option<String> {
        if part.part == 0 {
            *self = Self {
                message: part.message,
                ..Self::default()
            };
        }
        let follows =
            part.message == self.message && part.part == self.next_part && part.part < part.of;
        if !follows || self.text.len() + part.text.len() > MAX_MESSAGE_BYTES {
            *self = Self {
                // No part has this number, so the rest of the message is ignored until a first part
                // arrives.
                next_part: usize::MAX,
                ..Self::default()
            };
            return None;
        }
        // Exact: `push_str` alone would double the capacity.
        self.text.reserve_exact(part.text.len());
        self.text += &part.text;
        self.next_part += 1;
        (self.next_part == part.of).then(|| std::mem::take(self).text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message_parts(number: u64, text: &str) -> Vec<MessagePart> {
        split_message(number, text)
            .unwrap()
            .into_iter()
            .map(|report| MessagePart::from_report(report).unwrap())
            .collect()
    }

    fn reassemble(parts: Vec<MessagePart>) -> Vec<String> {
        let mut assembly = MessageAssembly::default();
        parts
            .into_iter()
            .filter_map(|part| assembly.add_part(part))
            .collect()
    }

    #[test]
    fn the_largest_message_arrives_and_a_larger_one_is_refused() {
        let text = "\u{1}".repeat(MAX_MESSAGE_BYTES);
        assert_eq!(
            reassemble(message_parts(1, &text)),
            std::slice::from_ref(&text)
        );
        assert_eq!(
            split_message(1, &(text + "x")),
            Err(MessageTooLong(MAX_MESSAGE_BYTES + 1))
        );
    }

    #[test]
    fn an_incomplete_message_is_dropped_and_the_next_one_arrives() {
        let long = "x".repeat(10_000);
        let mut sent = message_parts(1, &long);
        sent.pop();
        sent.extend(message_parts(2, &long));
        sent.extend(message_parts(3, "short"));
        assert_eq!(reassemble(sent), [long.clone(), "short".to_owned()]);
        let mut gap = message_parts(1, &long);
        gap.remove(1);
        assert!(reassemble(gap).is_empty());
        let mut mixed = message_parts(1, &long);
        mixed[1].message = 7;
        assert!(reassemble(mixed).is_empty());
    }

    #[test]
    fn a_sender_cannot_make_the_receiver_buffer_more_than_one_message() {
        let (mut assembly, text) = (MessageAssembly::default(), "x".repeat(4000));
        for part in 0..1000 {
            assert_eq!(
                assembly.add_part(MessagePart {
                    message: 1,
                    part,
                    of: usize::MAX,
                    text: text.clone()
                }),
                None
            );
            assert!(assembly.buffered_bytes() <= MAX_MESSAGE_BYTES);
        }
        assert_eq!(
            assembly.add_part(MessagePart {
                message: 0,
                part: 1,
                of: 2,
                text
            }),
            None
        );
    }

    proptest! {
        #[test]
        fn any_message_arrives_in_reports_that_fit(texts in prop::collection::vec("(?s).{0,3000}", 1..4)) {
            let mut all = Vec::new();
            for (message, text) in texts.iter().enumerate() {
                let reports = split_message(message as u64, text).unwrap();
                prop_assert!(reports.iter().all(JobReport::is_within_limit));
                all.extend(reports.into_iter().map(|report| MessagePart::from_report(report).unwrap()));
            }
            prop_assert_eq!(reassemble(all), texts);
        }

        #[test]
        fn any_parts_are_read_without_harm(parts in prop::collection::vec((0..3u64, 0..4usize, 0..4usize), 0..30)) {
            let parts = parts.into_iter().map(|(message, part, of)| MessagePart { message, part, of, text: "x".into() });
            for text in reassemble(parts.collect()) {
                prop_assert!((1..4).contains(&text.len()));
            }
        }
    }
}
