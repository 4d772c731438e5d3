//! Control messages that wait to be sent: the newest for each worker. Pure; time is an argument.
//!
//! The rendezvous limits the messages per second of a connection. Control messages are repeated
//! states, so a message that still waits when the next one comes need not be sent. The number of
//! recipients bounds the memory.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use nearpath_p2p::message::JobReport;

use crate::remote::control_message::{MessageTooLong, split_message};

/// Interval between reports: a seventh of what a rendezvous reads by default, because calls of
/// edges use the same connection.
const REPORT_INTERVAL: Duration = Duration::from_micros(6667);
// A message of 1 MiB takes about 265 reports, so a few of them are sent at once.
const MAX_BURST_REPORTS: u32 = 1500;

/// Waiting messages, as in the module's text. `W` identifies a recipient.
#[derive(Debug)]
pub struct MessageOutbox<W> {
    /// Recipients in turn, each once.
    recipients: VecDeque<W>,
    pending: HashMap<W, Vec<JobReport>>,
    /// Rest of the message that has begun. A newer message does not replace it, else none would
    /// ever arrive.
    current: Option<(W, VecDeque<JobReport>)>,
    last_number: u64,
    /// Theoretical arrival time of GCRA (ITU-T I.371): when all sent reports would have been sent
    /// at the interval.
    theoretical_arrival: Option<Instant>,
}

impl<W> Default for MessageOutbox<W> {
    fn default() -> Self {
        Self {
            recipients: VecDeque::new(),
            pending: HashMap::new(),
            current: None,
            last_number: 0,
            theoretical_arrival: None,
        }
    }
}

impl<W: Clone + Eq + std::hash::Hash> MessageOutbox<W> {
    /// Queues a message, in place of a waiting one for the same worker.
    ///
    /// # Errors
    /// When the message is too long.
    pub fn put_message(&mut self, to: W, text: &str) -> Result<(), MessageTooLong> {
        self.last_number += 1;
        if self
            .pending
            .insert(to.clone(), split_message(self.last_number, text)?)
            .is_none()
        {
            self.recipients.push_back(to);
        }
        Ok(())
    }

    /// Returns the next report, the time of the next one, or nothing.
    pub fn next_report(&mut self, now: Instant) -> OutboxStep<W> {
        let arrival = self.theoretical_arrival.map_or(now, |paid| paid.max(now));
        let lead = arrival - now;
        // GCRA: ahead of the interval by more than the burst, so the next report has to wait.
        if lead > REPORT_INTERVAL * MAX_BURST_REPORTS {
            return if self.is_empty() {
                OutboxStep::Idle
            } else {
                OutboxStep::WaitUntil(arrival - REPORT_INTERVAL * MAX_BURST_REPORTS)
            };
        }
        let Some((to, report)) = self.take_report() else {
            return OutboxStep::Idle;
        };
        self.theoretical_arrival = Some(arrival + REPORT_INTERVAL);
        OutboxStep::Send(to, report)
    }

    fn take_report(&mut self) -> Option<(W, JobReport)> {
        if self.current.is_none() {
            let to = self.recipients.pop_front()?;
            let reports = self.pending.remove(&to)?;
            self.current = Some((to, reports.into()));
        }
        let (to, reports) = self.current.as_mut()?;
        let (to, report) = (to.clone(), reports.pop_front()?);
        if reports.is_empty() {
            self.current = None;
        }
        Some((to, report))
    }

    /// True when everything is sent.
    pub fn is_empty(&self) -> bool {
        self.current.is_none() && self.recipients.is_empty()
    }
}

/// Next step of the sender.
#[derive(Debug, PartialEq, Eq)]
pub enum OutboxStep<W> {
    /// Send this report.
    Send(W, JobReport),
    /// Nothing before this time.
    WaitUntil(Instant),
    /// Nothing until a message is queued.
    Idle,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::control_message::{MessageAssembly, MessagePart};

    /// Messages that are sent now, with their recipients.
    fn drain_messages(outbox: &mut MessageOutbox<u8>, now: Instant) -> Vec<(u8, String)> {
        let (mut assemblies, mut sent) = (HashMap::<u8, MessageAssembly>::new(), Vec::new());
        while let OutboxStep::Send(to, report) = outbox.next_report(now) {
            let text = assemblies
                .entry(to)
                .or_default()
                .add_part(MessagePart::from_report(report).unwrap());
            sent.extend(text.map(|text| (to, text)));
        }
        sent
    }

    #[test]
    fn the_newest_message_is_sent_and_recipients_take_turns() {
        let (mut outbox, now) = (MessageOutbox::default(), Instant::now());
        for (to, text) in [(1, "old"), (2, "two"), (1, "new")] {
            outbox.put_message(to, text).unwrap();
        }
        assert_eq!(
            drain_messages(&mut outbox, now),
            [(1, "new".to_owned()), (2, "two".to_owned())]
        );
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_message_that_has_begun_is_finished() {
        let (mut outbox, now, mut assembly) = (
            MessageOutbox::default(),
            Instant::now(),
            MessageAssembly::default(),
        );
        let long = "x".repeat(9000);
        outbox.put_message(1, &long).unwrap();
        let mut sent = Vec::new();
        while let OutboxStep::Send(_, report) = outbox.next_report(now) {
            if sent.is_empty() {
                outbox.put_message(1, "newer").unwrap();
            }
            sent.extend(assembly.add_part(MessagePart::from_report(report).unwrap()));
            if sent.is_empty() {
                outbox.put_message(1, "newest").unwrap();
            }
        }
        assert_eq!(sent, [long, "newer".to_owned()]);
    }

    #[test]
    fn reports_are_paced() {
        let (mut outbox, begin) = (MessageOutbox::default(), Instant::now());
        let mut sent = 0;
        for tick in 0..100 {
            let now = begin + Duration::from_millis(100) * tick;
            for to in 0..=255 {
                outbox.put_message(to, "state").unwrap();
            }
            sent += drain_messages(&mut outbox, now).len();
            assert!(matches!(
                outbox.next_report(now),
                OutboxStep::Idle | OutboxStep::WaitUntil(_)
            ));
        }
        let max_sent = MAX_BURST_REPORTS as usize + 10 * 150;
        assert!((max_sent - 20..=max_sent + 20).contains(&sent), "{sent}");
    }
}
