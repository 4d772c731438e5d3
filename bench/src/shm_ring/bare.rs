//! A lane of bare descriptors: the cost of a ring and a wakeup alone, without leases, envelopes and
//! checks.

use std::io;
use std::sync::Arc;

use nearpath_shm::ring::{self, Ring, RingConsumer, RingProducer};
use nearpath_shm::sync::{Ordering, fence};
use nearpath_shm::{Channel, Descriptor, Region, SlotId, WakeupSignal};

use super::{RING_CAPACITY, RingEndpoint, RingLane};

pub(super) struct BareLane {
    before: RingConsumer,
    after: RingProducer,
    channel: Channel,
    core: WakeupSignal,
    next: WakeupSignal,
}

impl BareLane {
    pub(super) fn new(endpoint: &RingEndpoint) -> io::Result<Self> {
        Ok(Self {
            before: RingConsumer::new(bare_ring(&endpoint.before.1)?, 0),
            after: RingProducer::new(bare_ring(&endpoint.after.1)?, 0),
            channel: endpoint.before.0.clone(),
            core: endpoint.before.2.clone(),
            next: endpoint.after.2.clone(),
        })
    }
}

fn bare_ring(region: &Arc<Region>) -> io::Result<Ring> {
    let ring = || {
        let header = [
            region.atomic_cell(0)?,
            region.atomic_cell(ring::HEAD_OFFSET as u64)?,
            region.atomic_cell(ring::WAKEUP_REQUEST_OFFSET as u64)?,
        ];
        Some(Ring::new(
            header,
            region.atomic_cells(ring::RING_HEADER_BYTES as u64, 2 * RING_CAPACITY as usize)?,
        ))
    };
    ring().ok_or_else(|| io::Error::other("the region is too small for a ring"))
}

impl RingLane for BareLane {
    type Item = Descriptor;

    fn take_item(&mut self) -> io::Result<Option<Descriptor>> {
        let item = self.before.pop_descriptor().map_err(io::Error::other)?;
        // The producer sees free places only after this store.
        self.before.commit_head();
        if item.is_none() && self.channel.state() != nearpath_shm::channel::ChannelState::Open {
            return Err(io::Error::other("closed"));
        }
        Ok(item)
    }

    fn forward_item(&mut self, item: Descriptor) -> io::Result<()> {
        self.after
            .push_descriptor(Descriptor {
                // The length counts the endpoints that worked on it; a bare descriptor has no
                // envelope for that.
                length: item.length + 1,
                ..item
            })
            .map_err(io::Error::other)
    }

    fn make_item(&mut self, number: u64) -> io::Result<()> {
        let item = Descriptor {
            slot: SlotId(number as u32),
            generation: 1,
            offset: 0,
            length: 0,
        };
        self.after.push_descriptor(item).map_err(io::Error::other)
    }

    fn finish_item(&mut self, item: Descriptor) -> (u64, u16) {
        (u64::from(item.slot.0), item.length as u16)
    }

    fn is_ready(&mut self) -> bool {
        !self.before.is_empty() || self.channel.state() != nearpath_shm::channel::ChannelState::Open
    }

    fn flush_batch(&mut self) {
        // Store of the descriptor before the load of the sleeper's flag: the Dekker pattern, paired
        // with the fence of the consumer before it sleeps. Acquire and release do not order a store
        // before a load.
        fence(Ordering::SeqCst);
        self.next.wake();
    }

    fn previous_core(&self) -> u32 {
        self.core.last_core()
    }
}
