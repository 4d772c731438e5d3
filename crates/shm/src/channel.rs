//! Two rings between a caller and a callee, and the two ends that use them.
//!
//! An [`End`] does one after the other what the contract asks for: offer the slot, push the descriptor; pop, check, accept,
//! commit. [`End::flush`] makes the one fence of a batch, rings the peer, and takes back what a dead peer will not take.

mod end;
mod fault;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::counters::{self, Reading};
use crate::descriptor::{Descriptor, Slot};
use crate::desk::Knocker;
use crate::member::Member;
use crate::region::{Access, Pages, Region};
use crate::ring::{self, Ring};
use crate::shared::Shared;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::word::Party;

pub use end::End;
pub use fault::{NotSent, ReceiveFault, SendFault};

/// First bytes of a channel.
pub const MAGIC: [u8; 8] = *b"NPCHAN01";
/// Bytes before the first ring.
pub const HEADER: u64 = 4096;
/// Descriptors that a ring can have: a power of two.
pub const CAPACITIES: std::ops::RangeInclusive<u32> = 16..=4096;

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Produces calls, consumes answers.
    Caller,
    /// Consumes calls, produces answers.
    Callee,
}

/// What became of a channel. Grows only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum State {
    /// In use.
    Open = 0,
    /// No new calls; those that are open come to their end.
    Withdrawn = 1,
    /// Nobody makes calls any more.
    CallerDead = 2,
    /// Nobody answers any more.
    CalleeDead = 3,
    /// One side broke the rules.
    Broken = 4,
}

impl State {
    fn of(number: u32) -> Self {
        match number {
            0 => Self::Open,
            1 => Self::Withdrawn,
            2 => Self::CallerDead,
            3 => Self::CalleeDead,
            _ => Self::Broken,
        }
    }
}

/// Offset of the ring of answers in a channel of this capacity.
pub const fn answers_at(capacity: u32) -> u64 {
    HEADER + ring_bytes(capacity)
}

/// Bytes of a whole channel.
pub const fn bytes(capacity: u32) -> u64 {
    HEADER + 2 * ring_bytes(capacity)
}

const fn ring_bytes(capacity: u32) -> u64 {
    (ring::HEADER as u64 + Descriptor::SIZE as u64 * capacity as u64).next_multiple_of(4096)
}

/// A mapped channel.
#[derive(Debug, Clone)]
pub struct Channel {
    region: Arc<Region>,
    closed: Shared<AtomicU32>,
    counters: [Shared<[AtomicU64]>; 2],
    calls: Ring,
    answers: Ring,
}

impl Channel {
    /// Makes one. For the node.
    pub fn create(capacity: u32) -> io::Result<Self> {
        if !CAPACITIES.contains(&capacity) || !capacity.is_power_of_two() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a ring has a power of two between 16 and 4096"));
        }
        let region = Region::create("nearpath-channel", bytes(capacity) as usize, Pages::Small)?;
        region.write(8, &capacity.to_le_bytes());
        region.write(0, &MAGIC);
        Self::with(region, capacity)
    }

    /// Maps one that the node made, of this capacity as the node told.
    pub fn open(fd: OwnedFd, capacity: u32) -> io::Result<Self> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        if !CAPACITIES.contains(&capacity) || !capacity.is_power_of_two() {
            return Err(refused("a ring has a power of two between 16 and 4096"));
        }
        let region = Region::open(fd, bytes(capacity) as usize, Access::Write)?;
        let mut header = [0; 12];
        if !region.read(0, &mut header) || header[..8] != MAGIC || header[8..] != capacity.to_le_bytes() {
            return Err(refused("the region is no channel of that capacity"));
        }
        Self::with(region, capacity)
    }

    fn with(region: Arc<Region>, capacity: u32) -> io::Result<Self> {
        let ring = |at: u64| {
            let cell = |offset: usize| region.cell(at + offset as u64);
            let header = [cell(0)?, cell(ring::HEAD_AT)?, cell(ring::STARVED_AT)?];
            Some(Ring::new(header, region.cells(at + ring::HEADER as u64, 2 * capacity as usize)?))
        };
        let all = || {
            let counters = [region.cells(64, counters::SIZE / 8)?, region.cells(192, counters::SIZE / 8)?];
            Some((region.cell(12)?, counters, ring(HEADER)?, ring(answers_at(capacity))?))
        };
        let (closed, counters, calls, answers) = all().ok_or_else(|| io::Error::other("the channel is too small"))?;
        Ok(Self { region, closed, counters, calls, answers })
    }

    /// Descriptors in each ring.
    pub fn capacity(&self) -> u32 {
        self.calls.capacity()
    }

    /// Whether it is open.
    pub fn state(&self) -> State {
        State::of(self.closed.load(Ordering::Acquire))
    }

    /// Closes it, or closes it further. Ring both desks after that. What the node reads of the pool after this comes after it:
    /// a party that offers a slot later sees that the channel is closed.
    pub fn close(&self, state: State) {
        self.closed.fetch_max(state as u32, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// What one side counted.
    pub fn counted(&self, by: Side) -> Reading {
        Reading::of(&self.counters[by as usize])
    }

    /// Whether a slot lies in the ring that `by` produces, with this generation: for the node, once `by` is dead.
    pub fn holds(&self, by: Side, slot: Slot, generation: u32) -> bool {
        let ring = if by == Side::Caller { &self.calls } else { &self.answers };
        ring.holds(|descriptor| descriptor.slot == slot && descriptor.generation == generation)
    }

    /// One end of it. Each end is made once in the life of a channel: its indices begin at 0. `peer` and `desk` are those of
    /// the other end, as the node told.
    pub fn end(&self, side: Side, member: Arc<Member>, peer: Party, desk: Knocker) -> End {
        End::new(self, side, member, peer, desk)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}
