//! Parties in a circle that pass messages on through shared memory: this process makes them, the
//! others hand them on.
//!
//! Two in a circle are a ping-pong; three are a gateway, a function and the function that it calls.
//! Each party is a process, each neighbourhood a channel. A [`RingLane`] is what a party does with
//! them: whole messages with leases ([`message`]), or bare descriptors ([`bare`]) as the floor to
//! measure against.

mod bare;
mod drive;
mod endpoint;
mod message;
mod sockmap;
mod strict;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nearpath_kernel::bpf::{self, SockmapRouter};
use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::region::{MapAccess, PageKind, Region};
use nearpath_shm::sockmap::RECORD_BYTES;
use nearpath_shm::spin::SpinPolicy;
use nearpath_shm::{
    Channel, EndpointId, PeerPool, PoolEndpoint, PoolGeometry, SlotPool, SockmapSocket, WakeupCell,
    WakeupSignal, wakeup_cell,
};

pub(crate) use drive::{RingPlan, measure_ring};
pub(crate) use endpoint::{RingEndpointArgs, serve_ring};

const RING_CAPACITY: u32 = 64;
const SLOT_CLASSES: [ClassSpec; 2] = [
    ClassSpec {
        size: 256,
        count: 512,
    },
    ClassSpec {
        size: 4096,
        count: 64,
    },
];
/// Bytes of a lane of bare descriptors.
const BARE_BYTES: usize = 4096;

/// Wake-up methods of the endpoints, and what they pass on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RingVariant {
    /// Descriptors without leases or envelopes, futex
    Bare,
    /// Messages, woken by futex
    Futex,
    /// Messages, woken by eventfd
    Eventfd,
    /// Messages between pools that only their makers can write, woken by futex
    Strict,
    /// Messages whose descriptors the kernel carries, asleep in a read
    Sockmap,
    /// Messages, never sleeping
    Poll,
}

impl RingVariant {
    fn wakeup_kind(self) -> wakeup_cell::WakeupKind {
        match self {
            Self::Bare | Self::Futex | Self::Strict => wakeup_cell::WakeupKind::Futex,
            Self::Eventfd => wakeup_cell::WakeupKind::Eventfd,
            // With sockmap the read in the lane sleeps, so the cell itself never does.
            Self::Sockmap | Self::Poll => wakeup_cell::WakeupKind::BusyPoll,
        }
    }
}

/// Operations of an endpoint on what comes from the endpoint before it.
trait RingLane {
    /// Item on its way round the ring.
    type Item;
    /// The next one; nothing when there is none now; an error when there will never be one.
    fn take_item(&mut self) -> io::Result<Option<Self::Item>>;
    /// Works on it and hands it on.
    fn pass_on(&mut self, item: Self::Item) -> io::Result<()>;
    /// Makes a new one.
    fn make_item(&mut self, number: u64) -> io::Result<()>;
    /// Ends one that has been around: its number, and how many parties worked on it.
    fn finish_item(&mut self, item: Self::Item) -> (u64, u16);
    /// Returns true if [`RingLane::take_item`] would return an item or an error.
    fn is_ready(&mut self) -> bool;
    /// Ends a batch.
    fn flush_batch(&mut self);
    /// The processor of the party before.
    fn core_before(&self) -> u32;
    /// Waits until [`RingLane::is_ready`], at most for the timeout.
    fn wait_ready(&mut self, wakeup: &mut WakeupCell, timeout: Option<Duration>) {
        wakeup.wait_until(self.core_before(), timeout, || self.is_ready());
    }
}

/// Shared parts of a ring.
struct EndpointRing {
    pool: Arc<SlotPool>,
    desks: Vec<WakeupCell>,
    channels: Vec<Channel>,
    bare: Vec<Arc<Region>>,
    /// With `sockmap`: who carries, and the sockets in the order of the seats.
    carrier: Option<(SockmapRouter, Vec<bpf::SockmapPair>)>,
    /// With `strict`: over which pairs give each other their pools, by the number of the one
    /// before.
    introductions: Vec<(OwnedFd, OwnedFd)>,
}

/// Endpoint of a ring: its wakeup cell, and its channels to both sides.
struct RingEndpoint {
    pool: Arc<SlotPool>,
    wakeup: WakeupCell,
    before: (Channel, Arc<Region>, WakeupSignal),
    after: (Channel, Arc<Region>, WakeupSignal),
    numbers: [EndpointId; 3],
    /// The number of the channel to the party before, and to the one after.
    channels: [u32; 2],
    wire: Option<SockmapSocket>,
    /// The pools of the party before and of the one after, where each has its own.
    foreign: Option<[PeerPool; 2]>,
}

/// Sockets of a ring: endpoint `k` sends on channel `k + 1` and receives on that of the endpoint
/// before.
fn sockmap_pairs(parties: u16) -> io::Result<(SockmapRouter, Vec<bpf::SockmapPair>)> {
    let exchange = SockmapRouter::create()?;
    let seats = (1..=parties)
        .map(|number| exchange.add_endpoint(number))
        .collect::<io::Result<Vec<_>>>()?;
    for number in 1..=parties {
        // Numbers begin at 1; the last one's next is the first.
        let next = number % parties + 1;
        exchange.allow_channel(number, number.into(), next)?;
        exchange.allow_channel(next, number.into(), number)?;
    }
    Ok((exchange, seats))
}

impl EndpointRing {
    fn create(parties: u16, variant: RingVariant) -> io::Result<Self> {
        let bell = variant.wakeup_kind();
        let carrier = (variant == RingVariant::Sockmap)
            .then(|| sockmap_pairs(parties))
            .transpose()?;
        let strict = if variant == RingVariant::Strict {
            parties
        } else {
            0
        };
        Ok(Self {
            carrier,
            introductions: (0..strict)
                .map(|_| strict::socket_pair())
                .collect::<io::Result<_>>()?,
            pool: Arc::new(SlotPool::create(&SLOT_CLASSES, PageKind::Small)?),
            desks: (0..parties)
                .map(|_| WakeupCell::create(bell, SpinPolicy::default()))
                .collect::<io::Result<_>>()?,
            channels: (0..parties)
                .map(|_| Channel::create(RING_CAPACITY))
                .collect::<io::Result<_>>()?,
            bare: (0..parties)
                .map(|_| Region::create("bench-bare", BARE_BYTES, PageKind::Small))
                .collect::<io::Result<_>>()?,
        })
    }

    /// Descriptors of one seat, in the order in which [`RingEndpoint::open`] reads them.
    fn endpoint_fds(&self, seat: usize) -> Vec<BorrowedFd<'_>> {
        let n = self.desks.len();
        let (before, after) = ((seat + n - 1) % n, (seat + 1) % n);
        let mut fds = vec![self.pool.as_fd()];
        for k in [seat, before, after] {
            fds.push(self.desks[k].as_fd());
            fds.extend(self.desks[k].eventfd());
        }
        fds.extend(
            [before, seat]
                .iter()
                .flat_map(|&k| [self.channels[k].as_fd(), self.bare[k].as_fd()]),
        );
        fds.extend(
            self.carrier
                .iter()
                .map(|(_, seats)| seats[seat].endpoint.as_fd()),
        );
        if !self.introductions.is_empty() {
            fds.extend([
                self.introductions[before].1.as_fd(),
                self.introductions[seat].0.as_fd(),
            ]);
        }
        fds
    }

    /// Closes all channels: endpoints that wait wake up and end.
    fn close_all(&self) {
        for (channel, wakeup) in self.channels.iter().zip(&self.desks) {
            channel.close_with(nearpath_shm::channel::ChannelState::CallerDead);
            wakeup.wakeup_signal().wake();
        }
        for wakeup in &self.desks {
            wakeup.wakeup_signal().wake();
        }
        for seat in self.carrier.iter().flat_map(|(_, seats)| seats) {
            let _ = rustix::io::write(&seat.node, &[0; RECORD_BYTES]); // one that has ended needs no bell
        }
    }
}

impl RingEndpoint {
    fn open(
        fds: &mut impl Iterator<Item = OwnedFd>,
        seat: u16,
        of: u16,
        variant: RingVariant,
    ) -> io::Result<Self> {
        let bell = variant.wakeup_kind();
        let mut next = || {
            fds.next()
                .ok_or_else(|| io::Error::other("too few descriptors"))
        };
        let event = |next: &mut dyn FnMut() -> io::Result<OwnedFd>| -> io::Result<Option<OwnedFd>> {
            if bell == wakeup_cell::WakeupKind::Eventfd {
                next().map(Some)
            } else {
                Ok(None)
            }
        };
        let geometry = PoolGeometry::new(&SLOT_CLASSES).map_err(io::Error::other)?;
        let mut pool = SlotPool::open_region(next()?, geometry.total_bytes() as usize)?;
        let wakeup = WakeupCell::open_region(next()?, event(&mut next)?, SpinPolicy::default())?;
        let waker_before = WakeupSignal::open_region(next()?, event(&mut next)?)?;
        let waker_after = WakeupSignal::open_region(next()?, event(&mut next)?)?;
        let mut edge = || -> io::Result<(Channel, Arc<Region>)> {
            Ok((
                Channel::open_region(next()?, RING_CAPACITY)?,
                Region::open_sealed(next()?, BARE_BYTES, MapAccess::Write)?,
            ))
        };
        let (before, after) = (edge()?, edge()?);
        let mut foreign = None;
        if variant == RingVariant::Strict {
            pool = SlotPool::create_strict(&SLOT_CLASSES)?;
            foreign = Some(strict::exchange_pools(&pool, [next()?, next()?])?);
        }
        let wire = next()
            .ok()
            .map(|socket| SockmapSocket::new(socket, Duration::from_secs(5)))
            .transpose()?;
        let channels = [(seat + of - 1) % of, seat].map(|before| u32::from(before) + 1);
        let number = |k: u16| EndpointId::new(k % of + 1).expect("one more than something");
        Ok(Self {
            pool: Arc::new(pool),
            foreign,
            wakeup,
            before: (before.0, before.1, waker_before),
            after: (after.0, after.1, waker_after),
            numbers: [number(seat + of - 1), number(seat), number(seat + 1)],
            channels,
            wire,
        })
    }

    fn pool_endpoint(&self) -> Arc<PoolEndpoint> {
        PoolEndpoint::new(Arc::clone(&self.pool), self.numbers[1], u64::MAX)
    }
}

/// Descriptors that were inherited at these numbers.
#[allow(unsafe_code)]
fn inherited_fds(numbers: &[RawFd]) -> Vec<OwnedFd> {
    // SAFETY: the parent left these open for this process, and no other code here knows them.
    numbers
        .iter()
        .map(|&number| unsafe { OwnedFd::from_raw_fd(number) })
        .collect()
}
