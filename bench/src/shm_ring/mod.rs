//! Endpoints in a ring that forward messages through shared memory: this process creates them, the
//! others forward them.
//!
//! Two endpoints are a ping-pong; three are a gateway, a function and its callee. Each endpoint is
//! a process, and each pair of neighbours has a channel. A [`RingLane`] defines the items: complete
//! messages with leases ([`message`]), or bare descriptors ([`bare`]) as the baseline.

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

/// Wakeup methods and items of the endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RingVariant {
    /// Descriptors without leases or envelopes, futex
    Bare,
    /// Messages, woken by futex
    Futex,
    /// Messages, woken by eventfd
    Eventfd,
    /// Messages between pools that only their owners can write, woken by futex
    Strict,
    /// Messages with descriptors through sockmap, sleeping in a read
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

/// Operations of an endpoint on items from the previous endpoint.
trait RingLane {
    /// Item in flight on the ring.
    type Item;
    /// Takes the next item; `None` if there is none now; an error after the close.
    fn take_item(&mut self) -> io::Result<Option<Self::Item>>;
    /// Processes an item and forwards it.
    fn forward_item(&mut self, item: Self::Item) -> io::Result<()>;
    /// Creates an item.
    fn make_item(&mut self, number: u64) -> io::Result<()>;
    /// Finishes an item after its round. Returns its number and the number of endpoints that
    /// processed it.
    fn finish_item(&mut self, item: Self::Item) -> (u64, u16);
    /// Returns whether [`RingLane::take_item`] would return an item or an error.
    fn is_ready(&mut self) -> bool;
    /// Flushes a batch.
    fn flush_batch(&mut self);
    /// Returns the processor of the previous endpoint.
    fn previous_core(&self) -> u32;
    /// Waits until [`RingLane::is_ready`], at most for the timeout.
    fn wait_ready(&mut self, wakeup: &mut WakeupCell, timeout: Option<Duration>) {
        wakeup.wait_until(self.previous_core(), timeout, || self.is_ready());
    }
}

/// Shared parts of a ring.
struct EndpointRing {
    pool: Arc<SlotPool>,
    wakeup_cells: Vec<WakeupCell>,
    channels: Vec<Channel>,
    bare: Vec<Arc<Region>>,
    /// With `sockmap`: the router, and the sockets in the order of the endpoints.
    router: Option<(SockmapRouter, Vec<bpf::SockmapPair>)>,
    /// With `strict`: the socket pairs that exchange pools, by the number of the previous endpoint.
    pool_sockets: Vec<(OwnedFd, OwnedFd)>,
}

/// Endpoint of a ring: its wakeup cell, and its channels to both sides.
struct RingEndpoint {
    pool: Arc<SlotPool>,
    wakeup: WakeupCell,
    before: (Channel, Arc<Region>, WakeupSignal),
    after: (Channel, Arc<Region>, WakeupSignal),
    numbers: [EndpointId; 3],
    /// Numbers of the channels to the previous and the next endpoint.
    channels: [u32; 2],
    sockmap: Option<SockmapSocket>,
    /// Pools of the previous and the next endpoint, in strict rings.
    peer_pools: Option<[PeerPool; 2]>,
}

/// Sockets of a ring: endpoint `k` sends on channel `k + 1` and receives on that of the endpoint
/// before.
fn sockmap_pairs(endpoints: u16) -> io::Result<(SockmapRouter, Vec<bpf::SockmapPair>)> {
    let exchange = SockmapRouter::create()?;
    let sockets = (1..=endpoints)
        .map(|number| exchange.add_endpoint(number))
        .collect::<io::Result<Vec<_>>>()?;
    for number in 1..=endpoints {
        // Numbers begin at 1; the last one's next is the first.
        let next = number % endpoints + 1;
        exchange.allow_channel(number, number.into(), next)?;
        exchange.allow_channel(next, number.into(), number)?;
    }
    Ok((exchange, sockets))
}

impl EndpointRing {
    fn create(endpoints: u16, variant: RingVariant) -> io::Result<Self> {
        let kind = variant.wakeup_kind();
        let router = (variant == RingVariant::Sockmap)
            .then(|| sockmap_pairs(endpoints))
            .transpose()?;
        let strict = if variant == RingVariant::Strict {
            endpoints
        } else {
            0
        };
        Ok(Self {
            router,
            pool_sockets: (0..strict)
                .map(|_| strict::socket_pair())
                .collect::<io::Result<_>>()?,
            pool: Arc::new(SlotPool::create(&SLOT_CLASSES, PageKind::Small)?),
            wakeup_cells: (0..endpoints)
                .map(|_| WakeupCell::create(kind, SpinPolicy::default()))
                .collect::<io::Result<_>>()?,
            channels: (0..endpoints)
                .map(|_| Channel::create(RING_CAPACITY))
                .collect::<io::Result<_>>()?,
            bare: (0..endpoints)
                .map(|_| Region::create("bench-bare", BARE_BYTES, PageKind::Small))
                .collect::<io::Result<_>>()?,
        })
    }

    /// Returns the descriptors of one endpoint, in the order in which [`RingEndpoint::open`] reads
    /// them.
    fn endpoint_fds(&self, index: usize) -> Vec<BorrowedFd<'_>> {
        let n = self.wakeup_cells.len();
        let (before, after) = ((index + n - 1) % n, (index + 1) % n);
        let mut fds = vec![self.pool.as_fd()];
        for k in [index, before, after] {
            fds.push(self.wakeup_cells[k].as_fd());
            fds.extend(self.wakeup_cells[k].eventfd());
        }
        fds.extend(
            [before, index]
                .iter()
                .flat_map(|&k| [self.channels[k].as_fd(), self.bare[k].as_fd()]),
        );
        fds.extend(
            self.router
                .iter()
                .map(|(_, sockets)| sockets[index].endpoint.as_fd()),
        );
        if !self.pool_sockets.is_empty() {
            fds.extend([
                self.pool_sockets[before].1.as_fd(),
                self.pool_sockets[index].0.as_fd(),
            ]);
        }
        fds
    }

    /// Closes all channels: waiting endpoints wake and exit.
    fn close_all(&self) {
        for (channel, wakeup) in self.channels.iter().zip(&self.wakeup_cells) {
            channel.close_with(nearpath_shm::channel::ChannelState::CallerDead);
            wakeup.wakeup_signal().wake();
        }
        for wakeup in &self.wakeup_cells {
            wakeup.wakeup_signal().wake();
        }
        for index in self.router.iter().flat_map(|(_, sockets)| sockets) {
            let _ = rustix::io::write(&index.node, &[0; RECORD_BYTES]); // one that has ended needs no bell
        }
    }
}

impl RingEndpoint {
    fn open(
        fds: &mut impl Iterator<Item = OwnedFd>,
        index: u16,
        of: u16,
        variant: RingVariant,
    ) -> io::Result<Self> {
        let kind = variant.wakeup_kind();
        let mut next = || {
            fds.next()
                .ok_or_else(|| io::Error::other("too few descriptors"))
        };
        let event = |next: &mut dyn FnMut() -> io::Result<OwnedFd>| -> io::Result<Option<OwnedFd>> {
            if kind == wakeup_cell::WakeupKind::Eventfd {
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
        let mut peer_pools = None;
        if variant == RingVariant::Strict {
            pool = SlotPool::create_strict(&SLOT_CLASSES)?;
            peer_pools = Some(strict::exchange_pools(&pool, [next()?, next()?])?);
        }
        let sockmap = next()
            .ok()
            .map(|socket| SockmapSocket::new(socket, Duration::from_secs(5)))
            .transpose()?;
        let channels = [(index + of - 1) % of, index].map(|before| u32::from(before) + 1);
        let number = |k: u16| EndpointId::new(k % of + 1).expect("one more than something");
        Ok(Self {
            pool: Arc::new(pool),
            peer_pools,
            wakeup,
            before: (before.0, before.1, waker_before),
            after: (after.0, after.1, waker_after),
            numbers: [number(index + of - 1), number(index), number(index + 1)],
            channels,
            sockmap,
        })
    }

    fn pool_endpoint(&self) -> Arc<PoolEndpoint> {
        PoolEndpoint::new(Arc::clone(&self.pool), self.numbers[1], u64::MAX)
    }
}

/// Returns descriptors inherited at these numbers.
#[allow(unsafe_code)]
fn inherited_fds(numbers: &[RawFd]) -> Vec<OwnedFd> {
    // SAFETY: the parent left these open for this process, and no other code here knows them.
    numbers
        .iter()
        .map(|&number| unsafe { OwnedFd::from_raw_fd(number) })
        .collect()
}
