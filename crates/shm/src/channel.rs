//! A channel: two rings between a caller and a callee, and the two ends that use them.
//!
//! A [`ChannelEnd`] performs the steps of the contract in order: offer the slot, push the
//! descriptor; pop, check, accept, commit. [`ChannelEnd::flush_batch`] issues one fence per batch,
//! wakes the peer, and reclaims messages that a dead peer will not receive.

mod end;
mod error;
mod state;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::counters::{self, CounterReading};
use crate::descriptor::{Descriptor, SlotId};
use crate::endpoint::PoolEndpoint;
use crate::lease_word::EndpointId;
use crate::region::{MapAccess, PageKind, Region};
use crate::ring::{self, Ring};
use crate::shared::SharedRef;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::wakeup_cell::WakeupSignal;

pub use end::ChannelEnd;
pub use error::{ChannelReceiveError, ChannelSendError, UnsentMessage};
pub use state::ChannelState;

/// Magic bytes at the start of a channel region.
pub const CHANNEL_MAGIC: [u8; 8] = *b"NPCHAN01";
/// Bytes before the first ring.
pub const CHANNEL_HEADER_BYTES: u64 = 4096;
/// Valid ring capacities, in descriptors; each is a power of two.
pub const RING_CAPACITIES: std::ops::RangeInclusive<u32> = 16..=4096;

/// Side of a channel that an end belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelSide {
    /// Produces calls and consumes answers.
    Caller,
    /// Consumes calls and produces answers.
    Callee,
}

/// Returns the offset of the answer ring in a channel of this capacity.
pub const fn answer_ring_offset(capacity: u32) -> u64 {
    CHANNEL_HEADER_BYTES + ring_bytes(capacity)
}

/// Returns the size of a channel region in bytes.
pub const fn channel_bytes(capacity: u32) -> u64 {
    CHANNEL_HEADER_BYTES + 2 * ring_bytes(capacity)
}

const fn ring_bytes(capacity: u32) -> u64 {
    // Rounded as `contract/memory.md` does it: every implementation computes the same offset of the
    // answer ring.
    (ring::RING_HEADER_BYTES as u64 + Descriptor::SIZE as u64 * capacity as u64)
        .next_multiple_of(4096)
}

/// A mapped channel.
#[derive(Debug, Clone)]
pub struct Channel {
    region: Arc<Region>,
    state_word: SharedRef<AtomicU32>,
    counters: [SharedRef<[AtomicU64]>; 2],
    calls: Ring,
    answers: Ring,
}

impl Channel {
    /// Creates a channel; only the node does this.
    pub fn create(capacity: u32) -> io::Result<Self> {
        if !RING_CAPACITIES.contains(&capacity) || !capacity.is_power_of_two() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "invalid ring capacity: expected a power of two from 16 to 4096",
            ));
        }
        // Small pages: a channel of the largest capacity has 140 KiB, far less than a huge page.
        let region = Region::create(
            "nearpath-channel",
            channel_bytes(capacity) as usize,
            PageKind::Small,
        )?;
        region.write_bytes(8, &capacity.to_le_bytes());
        region.write_bytes(0, &CHANNEL_MAGIC);
        Self::from_region(region, capacity)
    }

    /// Maps a channel that the node created, with the capacity that the node reported.
    pub fn open_region(fd: OwnedFd, capacity: u32) -> io::Result<Self> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        if !RING_CAPACITIES.contains(&capacity) || !capacity.is_power_of_two() {
            return Err(refused(
                "invalid ring capacity: expected a power of two from 16 to 4096",
            ));
        }
        let region = Region::open_sealed(fd, channel_bytes(capacity) as usize, MapAccess::Write)?;
        // One copy of magic and capacity, compared with the node's number. Shared memory is not
        // read for them again.
        let mut header = [0; 12];
        if !region.read_bytes(0, &mut header)
            || header[..8] != CHANNEL_MAGIC
            || header[8..] != capacity.to_le_bytes()
        {
            return Err(refused(
                "the region is not a channel of the expected capacity",
            ));
        }
        Self::from_region(region, capacity)
    }

    fn from_region(region: Arc<Region>, capacity: u32) -> io::Result<Self> {
        let ring = |at: u64| {
            let cell = |offset: usize| region.atomic_cell(at + offset as u64);
            let header = [
                cell(0)?,
                cell(ring::HEAD_OFFSET)?,
                cell(ring::WAKEUP_REQUEST_OFFSET)?,
            ];
            Some(Ring::new(
                header,
                region.atomic_cells(at + ring::RING_HEADER_BYTES as u64, 2 * capacity as usize)?,
            ))
        };
        let all = || {
            // Offsets of `contract/memory.md`. The two sides share no cache line, because each has
            // its own writer.
            let counters = [
                region.atomic_cells(64, counters::COUNTERS_BYTES / 8)?,
                region.atomic_cells(192, counters::COUNTERS_BYTES / 8)?,
            ];
            Some((
                region.atomic_cell(12)?,
                counters,
                ring(CHANNEL_HEADER_BYTES)?,
                ring(answer_ring_offset(capacity))?,
            ))
        };
        let (closed, counters, calls, answers) =
            all().ok_or_else(|| io::Error::other("the channel is too small"))?;
        Ok(Self {
            region,
            state_word: closed,
            counters,
            calls,
            answers,
        })
    }

    /// Returns the number of descriptors per ring.
    pub fn capacity(&self) -> u32 {
        self.calls.capacity()
    }

    /// Returns the current state.
    pub fn state(&self) -> ChannelState {
        // Acquire: pairs with the `fetch_max` in `close_with`; who reads a state sees what precedes
        // it.
        ChannelState::from_number(self.state_word.load(Ordering::Acquire))
    }

    /// Raises the state of the channel. Wake both endpoints afterwards. The node's later reads of
    /// the pool are ordered after this call. An endpoint that offers a slot later sees the closed
    /// channel.
    pub fn close_with(&self, state: ChannelState) {
        // fetch_max: a state never goes back, whichever of two closers is first.
        self.state_word.fetch_max(state as u32, Ordering::AcqRel);
        // Pairs with the fence in `flush_batch`: either the sender sees the state, or the sweep
        // sees its offer.
        fence(Ordering::SeqCst);
    }

    /// Reads the counters of one side.
    pub fn read_counters(&self, by: ChannelSide) -> CounterReading {
        CounterReading::from_cells(&self.counters[by as usize])
    }

    /// Returns true if a slot with this generation lies in the ring that `by` produces. Valid once
    /// `by` is dead.
    pub fn contains_slot(&self, by: ChannelSide, slot: SlotId, generation: u32) -> bool {
        let ring = if by == ChannelSide::Caller {
            &self.calls
        } else {
            &self.answers
        };
        ring.contains(|descriptor| descriptor.slot == slot && descriptor.generation == generation)
    }

    /// Creates one end of the channel. Create each end only once: its indices begin at 0.
    /// `peer` and its signal are those of the other end, as reported by the node.
    pub fn attach_end(
        &self,
        side: ChannelSide,
        member: Arc<PoolEndpoint>,
        peer: EndpointId,
        cell: WakeupSignal,
    ) -> ChannelEnd {
        ChannelEnd::new(self, side, member, peer, cell)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}
