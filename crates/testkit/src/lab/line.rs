//! One direction of a link: which packet leaves when. Decisions only: no device, no clock; time is an argument.
//!
//! A packet passes five stations, and all is decided when it comes: it vanishes if it is too long; waits in the sender's queue
//! until those before it have been sent at the link's rate; may be lost on the way; travels for delay and jitter; and may be
//! held back, or arrive twice. Packets keep their order but for those that are held back.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::chance::Draw;
use super::link::{Counts, Link};

/// How many octets are underway at the most where no rate limits them: more than any window of a test, and less than memory.
const UNDERWAY: usize = 256 * 1024 * 1024;

/// The state of one direction. Times are counted from whatever moment its owner likes.
#[derive(Debug)]
pub(super) struct Line<P> {
    link: Link,
    seed: u64,
    cut: bool,
    /// The number of the next packet.
    number: u64,
    /// Those that wait for the rate, or are being sent: when each has been sent, and its octets.
    queue: VecDeque<(Duration, usize)>,
    queued: usize,
    underway: BinaryHeap<Reverse<Underway<P>>>,
    underway_octets: usize,
    /// When all in the queue have been sent.
    idle: Duration,
    /// The latest arrival of those that keep their order.
    last: Duration,
    counts: Counts,
}

/// What becomes of a packet at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It arrives now, and none is before it: the owner delivers it.
    Arrives,
    /// It comes out of [`Line::due`] later.
    Underway,
    /// It is no more.
    Gone,
}

#[derive(Debug)]
struct Underway<P> {
    arrival: Duration,
    /// In the order of sending where two arrive at the same time.
    number: u64,
    length: usize,
    packet: P,
}

impl<P> Line<P> {
    pub(super) fn new(link: Link, seed: u64) -> Self {
        Self {
            link,
            seed,
            cut: false,
            number: 0,
            queue: VecDeque::new(),
            queued: 0,
            underway: BinaryHeap::new(),
            underway_octets: 0,
            idle: Duration::ZERO,
            last: Duration::ZERO,
            counts: Counts::default(),
        }
    }

    /// Takes a packet of `length` octets; `packet` makes what comes out again, once for each copy.
    pub(super) fn offer(&mut self, now: Duration, length: usize, mut packet: impl FnMut() -> P) -> Fate {
        let draw = Draw::of(self.seed, self.number);
        self.number += 1;
        self.counts.offered += 1;
        if !self.accepts(now, length) {
            return Fate::Gone;
        }
        let sent = self.send(now, length);
        if draw.loss < self.link.loss {
            self.counts.lost += 1;
            return Fate::Gone;
        }
        let arrival = self.arrival(sent, draw);
        let copies = 1 + u64::from(draw.duplicate < self.link.duplicate);
        self.counts.duplicated += copies - 1;
        if copies == 1 && arrival <= now && self.next().is_none_or(|next| next > now) {
            self.delivered(length);
            return Fate::Arrives;
        }
        for _ in 0..copies {
            self.hold(arrival, length, packet());
        }
        Fate::Underway
    }

    /// The next packet that has arrived by `now`.
    pub(super) fn due(&mut self, now: Duration) -> Option<P> {
        if self.next()? > now {
            return None;
        }
        let Reverse(found) = self.underway.pop()?;
        self.underway_octets -= found.length;
        self.delivered(found.length);
        Some(found.packet)
    }

    /// When the next packet arrives.
    pub(super) fn next(&self) -> Option<Duration> {
        self.underway.peek().map(|Reverse(first)| first.arrival)
    }

    /// Gives the line other properties, for packets that come from now on; those underway arrive as they would have.
    pub(super) fn change(&mut self, link: Link, seed: u64) {
        self.link = link;
        self.seed = seed;
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// Cuts the line, with all that is underway in it, or mends it.
    pub(super) fn cut(&mut self, cut: bool) {
        self.cut = cut;
        if cut {
            self.counts.cut += self.underway.len() as u64;
            self.underway.clear();
            self.queue.clear();
            (self.queued, self.underway_octets) = (0, 0);
            (self.idle, self.last) = (Duration::ZERO, Duration::ZERO);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { underway: self.underway.len() as u64, ..self.counts }
    }

    fn accepts(&mut self, now: Duration, length: usize) -> bool {
        self.forget_sent(now);
        let refused = if self.cut {
            &mut self.counts.cut
        } else if self.link.largest.is_some_and(|largest| length > largest) {
            &mut self.counts.swallowed
        } else if !self.fits(length) {
            &mut self.counts.overflowed
        } else {
            return true;
        };
        *refused += 1;
        false
    }

    fn fits(&self, length: usize) -> bool {
        let waits = self.link.rate.is_none() || self.queue.is_empty() || self.queued + length <= self.link.queue;
        waits && (self.underway.is_empty() || self.underway_octets + length <= UNDERWAY)
    }

    fn forget_sent(&mut self, now: Duration) {
        while let Some(&(sent, length)) = self.queue.front()
            && sent <= now
        {
            self.queue.pop_front();
            self.queued -= length;
        }
    }

    /// When the packet has left the sender.
    fn send(&mut self, now: Duration, length: usize) -> Duration {
        let Some(rate) = self.link.rate else { return now };
        self.idle = self.idle.max(now) + sending(length, rate);
        self.queue.push_back((self.idle, length));
        self.queued += length;
        self.idle
    }

    fn arrival(&mut self, sent: Duration, draw: Draw) -> Duration {
        let arrival = sent + self.link.delay + self.link.jitter.mul_f64(draw.jitter);
        if draw.late < self.link.reorder {
            self.counts.late += 1;
            return arrival + self.link.late;
        }
        self.last = self.last.max(arrival);
        self.last
    }

    fn hold(&mut self, arrival: Duration, length: usize, packet: P) {
        self.underway_octets += length;
        self.underway.push(Reverse(Underway { arrival, number: self.number, length, packet }));
    }

    fn delivered(&mut self, length: usize) {
        self.counts.delivered += 1;
        self.counts.delivered_octets += length as u64;
    }
}

/// How long that many octets take at `rate` bits a second, rounded up. A rate of nothing is one bit a second.
fn sending(length: usize, rate: u64) -> Duration {
    let nanoseconds = (length as u128 * 8_000_000_000).div_ceil(u128::from(rate.max(1)));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

impl<P> Underway<P> {
    fn place(&self) -> (Duration, u64) {
        (self.arrival, self.number)
    }
}

impl<P> PartialEq for Underway<P> {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl<P> Eq for Underway<P> {}

impl<P> PartialOrd for Underway<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Underway<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.place().cmp(&other.place())
    }
}

#[cfg(test)]
mod tests;
