//! Model of one direction of a link: decides which packet arrives when. Pure: no device, no clock;
//! time is an argument.
//!
//! All is decided when a packet is offered. A packet that is too long is dropped. Others wait in
//! the sender's queue for the link's rate, may be lost, travel for delay and jitter, and may be
//! held back or duplicated. Packets keep their order except for those that are held back.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::conditions::{LinkConditions, LinkCounts};
use super::packet_draw::PacketDraw;

/// Maximum number of octets underway where no rate limits them: more than any window of a test, and
/// less than memory.
const MAX_UNDERWAY_BYTES: usize = 256 * 1024 * 1024;

/// State of one direction. Times are relative to any moment that the owner chooses.
#[derive(Debug)]
pub(super) struct LinkModel<P> {
    conditions: LinkConditions,
    seed: u64,
    cut: bool,
    /// Number of the next packet.
    next_number: u64,
    /// Packets that wait for the rate or are being sent: the end of their transmission, and their
    /// octets.
    queue: VecDeque<(Duration, usize)>,
    queued: usize,
    underway: BinaryHeap<Reverse<UnderwayPacket<P>>>,
    underway_octets: usize,
    /// Time at which the whole queue is sent.
    idle_at: Duration,
    /// Latest arrival among packets that keep their order.
    last_arrival: Duration,
    counts: LinkCounts,
}

/// Immediate decision about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketFate {
    /// The packet arrives now, before all others: the owner delivers it.
    Arrives,
    /// The packet comes out of [`LinkModel::take_due`] later.
    Underway,
    /// The packet is dropped.
    Dropped,
}

#[derive(Debug)]
struct UnderwayPacket<P> {
    arrival: Duration,
    /// Order of sending, for packets that arrive at the same time.
    number: u64,
    length: usize,
    packet: P,
}

impl<P> LinkModel<P> {
    pub(super) fn new(conditions: LinkConditions, seed: u64) -> Self {
        Self {
            conditions,
            seed,
            cut: false,
            next_number: 0,
            queue: VecDeque::new(),
            queued: 0,
            underway: BinaryHeap::new(),
            underway_octets: 0,
            idle_at: Duration::ZERO,
            last_arrival: Duration::ZERO,
            counts: LinkCounts::default(),
        }
    }

    /// Offers a packet of `length` octets. `packet` creates the value that comes out again, once
    /// for each copy.
    pub(super) fn offer_packet(
        &mut self,
        now: Duration,
        length: usize,
        mut packet: impl FnMut() -> P,
    ) -> PacketFate {
        let draw = PacketDraw::for_packet(self.seed, self.next_number);
        self.next_number += 1;
        self.counts.offered += 1;
        if !self.accepts_packet(now, length) {
            return PacketFate::Dropped;
        }
        let sent = self.send_packet(now, length);
        if draw.loss < self.conditions.loss {
            self.counts.lost += 1;
            return PacketFate::Dropped;
        }
        let arrival = self.arrival_time(sent, draw);
        let copies = 1 + u64::from(draw.duplicate < self.conditions.duplicate);
        self.counts.duplicated += copies - 1;
        if copies == 1 && arrival <= now && self.next_arrival().is_none_or(|next| next > now) {
            self.count_delivered(length);
            return PacketFate::Arrives;
        }
        for _ in 0..copies {
            self.hold_underway(arrival, length, packet());
        }
        PacketFate::Underway
    }

    /// Returns the next packet that has arrived by `now`.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<P> {
        if self.next_arrival()? > now {
            return None;
        }
        let Reverse(found) = self.underway.pop()?;
        self.underway_octets -= found.length;
        self.count_delivered(found.length);
        Some(found.packet)
    }

    /// Arrival time of the next packet.
    pub(super) fn next_arrival(&self) -> Option<Duration> {
        self.underway.peek().map(|Reverse(first)| first.arrival)
    }

    /// Sets the conditions of packets from now on. Packets underway arrive as before.
    pub(super) fn set_conditions(&mut self, link: LinkConditions, seed: u64) {
        self.conditions = link;
        self.seed = seed;
    }

    pub(super) fn conditions(&self) -> &LinkConditions {
        &self.conditions
    }

    /// Cuts the direction and drops everything underway, or restores it.
    pub(super) fn set_cut(&mut self, cut: bool) {
        self.cut = cut;
        if cut {
            self.counts.cut += self.underway.len() as u64;
            self.underway.clear();
            self.queue.clear();
            (self.queued, self.underway_octets) = (0, 0);
            (self.idle_at, self.last_arrival) = (Duration::ZERO, Duration::ZERO);
        }
    }

    pub(super) fn counts(&self) -> LinkCounts {
        LinkCounts {
            underway: self.underway.len() as u64,
            ..self.counts
        }
    }

    fn accepts_packet(&mut self, now: Duration, length: usize) -> bool {
        self.forget_sent(now);
        let refused = if self.cut {
            &mut self.counts.cut
        } else if self
            .conditions
            .largest_packet
            .is_some_and(|largest| length > largest)
        {
            &mut self.counts.swallowed
        } else if !self.fits_queue(length) {
            &mut self.counts.overflowed
        } else {
            return true;
        };
        *refused += 1;
        false
    }

    fn fits_queue(&self, length: usize) -> bool {
        let waits = self.conditions.rate.is_none()
            || self.queue.is_empty()
            || self.queued + length <= self.conditions.queue_bytes;
        waits && (self.underway.is_empty() || self.underway_octets + length <= MAX_UNDERWAY_BYTES)
    }

    fn forget_sent(&mut self, now: Duration) {
        while let Some(&(sent, length)) = self.queue.front()
            && sent <= now
        {
            self.queue.pop_front();
            self.queued -= length;
        }
    }

    /// Time at which the packet has left the sender.
    fn send_packet(&mut self, now: Duration, length: usize) -> Duration {
        let Some(rate) = self.conditions.rate else {
            return now;
        };
        self.idle_at = self.idle_at.max(now) + transmission_time(length, rate);
        self.queue.push_back((self.idle_at, length));
        self.queued += length;
        self.idle_at
    }

    fn arrival_time(&mut self, sent: Duration, draw: PacketDraw) -> Duration {
        let arrival = sent + self.conditions.delay + self.conditions.jitter.mul_f64(draw.jitter);
        if draw.late < self.conditions.reorder {
            self.counts.late += 1;
            return arrival + self.conditions.late;
        }
        self.last_arrival = self.last_arrival.max(arrival);
        self.last_arrival
    }

    fn hold_underway(&mut self, arrival: Duration, length: usize, packet: P) {
        self.underway_octets += length;
        self.underway.push(Reverse(UnderwayPacket {
            arrival,
            number: self.next_number,
            length,
            packet,
        }));
    }

    fn count_delivered(&mut self, length: usize) {
        self.counts.delivered += 1;
        self.counts.delivered_octets += length as u64;
    }
}

/// Duration of sending `length` octets at `rate` bits per second, rounded up. A rate of 0 counts as
/// 1.
fn transmission_time(length: usize, rate: u64) -> Duration {
    let nanoseconds = (length as u128 * 8_000_000_000).div_ceil(u128::from(rate.max(1)));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

impl<P> UnderwayPacket<P> {
    fn sort_key(&self) -> (Duration, u64) {
        (self.arrival, self.number)
    }
}

impl<P> PartialEq for UnderwayPacket<P> {
    fn eq(&self, other: &Self) -> bool {
        self.sort_key() == other.sort_key()
    }
}

impl<P> Eq for UnderwayPacket<P> {}

impl<P> PartialOrd for UnderwayPacket<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for UnderwayPacket<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.sort_key().cmp(&other.sort_key())
    }
}

#[cfg(test)]
mod tests;
