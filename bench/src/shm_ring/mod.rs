//! Parties in a circle that pass messages on through shared memory: this process makes them, the others hand them on.
//!
//! Two in a circle are a ping-pong; three are a gateway, a function and the function that it calls. Each party is a process,
//! each neighbourhood a channel. A [`Lane`] is what a party does with them: whole messages with leases ([`message`]), or
//! bare descriptors ([`bare`]) as the floor to measure against.

mod bare;
mod carried;
mod drive;
mod message;
mod party;
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

pub(crate) use drive::{Plan, measure};
pub(crate) use party::{Args, serve};

const CAPACITY: u32 = 64;
const SIZES: [ClassSpec; 2] = [
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

/// How parties of a circle are woken, and what they pass on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Variant {
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

impl Variant {
    fn bell(self) -> wakeup_cell::WakeupKind {
        match self {
            Self::Bare | Self::Futex | Self::Strict => wakeup_cell::WakeupKind::Futex,
            Self::Eventfd => wakeup_cell::WakeupKind::Eventfd,
            Self::Sockmap | Self::Poll => wakeup_cell::WakeupKind::BusyPoll,
        }
    }
}

/// What a party does with what comes from the one before it.
trait Lane {
    /// One thing underway.
    type Item;
    /// The next one; nothing when there is none now; an error when there will never be one.
    fn take(&mut self) -> io::Result<Option<Self::Item>>;
    /// Works on it and hands it on.
    fn pass(&mut self, item: Self::Item) -> io::Result<()>;
    /// Makes a new one.
    fn make(&mut self, number: u64) -> io::Result<()>;
    /// Ends one that has been around: its number, and how many parties worked on it.
    fn end(&mut self, item: Self::Item) -> (u64, u16);
    /// Whether [`Lane::take`] has something to say.
    fn ready(&mut self) -> bool;
    /// Ends a batch.
    fn flush(&mut self);
    /// The processor of the party before.
    fn core_before(&self) -> u32;
    /// Waits until [`Lane::ready`], at most for the timeout.
    fn wait(&mut self, desk: &mut WakeupCell, timeout: Option<Duration>) {
        desk.wait_until(self.core_before(), timeout, || self.ready());
    }
}

/// Everything that a circle shares.
struct Circle {
    pool: Arc<SlotPool>,
    desks: Vec<WakeupCell>,
    channels: Vec<Channel>,
    bare: Vec<Arc<Region>>,
    /// With `sockmap`: who carries, and the sockets in the order of the seats.
    carrier: Option<(SockmapRouter, Vec<bpf::SockmapPair>)>,
    /// With `strict`: over which neighbours give each other their pools, by the number of the one before.
    introductions: Vec<(OwnedFd, OwnedFd)>,
}

/// The desk of a party as its neighbours see it, and what else it needs of the circle.
struct Seat {
    pool: Arc<SlotPool>,
    desk: WakeupCell,
    before: (Channel, Arc<Region>, WakeupSignal),
    after: (Channel, Arc<Region>, WakeupSignal),
    numbers: [EndpointId; 3],
    /// The number of the channel to the party before, and to the one after.
    channels: [u32; 2],
    wire: Option<SockmapSocket>,
    /// The pools of the party before and of the one after, where each has its own.
    foreign: Option<[PeerPool; 2]>,
}

/// What carries in a circle: seat `k` sends on channel `k + 1`, and hears on that of the seat before.
fn carrier(parties: u16) -> io::Result<(SockmapRouter, Vec<bpf::SockmapPair>)> {
    let exchange = SockmapRouter::create()?;
    let seats = (1..=parties)
        .map(|number| exchange.add_endpoint(number))
        .collect::<io::Result<Vec<_>>>()?;
    for number in 1..=parties {
        let next = number % parties + 1;
        exchange.allow_channel(number, number.into(), next)?;
        exchange.allow_channel(next, number.into(), number)?;
    }
    Ok((exchange, seats))
}

impl Circle {
    fn create(parties: u16, variant: Variant) -> io::Result<Self> {
        let bell = variant.bell();
        let carrier = (variant == Variant::Sockmap)
            .then(|| carrier(parties))
            .transpose()?;
        let strict = if variant == Variant::Strict {
            parties
        } else {
            0
        };
        Ok(Self {
            carrier,
            introductions: (0..strict)
                .map(|_| strict::pair())
                .collect::<io::Result<_>>()?,
            pool: Arc::new(SlotPool::create(&SIZES, PageKind::Small)?),
            desks: (0..parties)
                .map(|_| WakeupCell::create(bell, SpinPolicy::default()))
                .collect::<io::Result<_>>()?,
            channels: (0..parties)
                .map(|_| Channel::create(CAPACITY))
                .collect::<io::Result<_>>()?,
            bare: (0..parties)
                .map(|_| Region::create("bench-bare", BARE_BYTES, PageKind::Small))
                .collect::<io::Result<_>>()?,
        })
    }

    /// Descriptors of one seat, in the order in which [`Seat::open`] reads them.
    fn fds(&self, seat: usize) -> Vec<BorrowedFd<'_>> {
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

    /// Nobody sends any more: whoever waits, wakes up and ends.
    fn close(&self) {
        for (channel, desk) in self.channels.iter().zip(&self.desks) {
            channel.close_with(nearpath_shm::channel::ChannelState::CallerDead);
            desk.wakeup_signal().wake();
        }
        for desk in &self.desks {
            desk.wakeup_signal().wake();
        }
        for seat in self.carrier.iter().flat_map(|(_, seats)| seats) {
            let _ = rustix::io::write(&seat.node, &[0; RECORD_BYTES]); // one that has ended needs no bell
        }
    }
}

impl Seat {
    fn open(
        fds: &mut impl Iterator<Item = OwnedFd>,
        seat: u16,
        of: u16,
        variant: Variant,
    ) -> io::Result<Self> {
        let bell = variant.bell();
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
        let geometry = PoolGeometry::new(&SIZES).map_err(io::Error::other)?;
        let mut pool = SlotPool::open_region(next()?, geometry.total_bytes() as usize)?;
        let desk = WakeupCell::open_region(next()?, event(&mut next)?, SpinPolicy::default())?;
        let knocker_before = WakeupSignal::open_region(next()?, event(&mut next)?)?;
        let knocker_after = WakeupSignal::open_region(next()?, event(&mut next)?)?;
        let mut edge = || -> io::Result<(Channel, Arc<Region>)> {
            Ok((
                Channel::open_region(next()?, CAPACITY)?,
                Region::open_sealed(next()?, BARE_BYTES, MapAccess::Write)?,
            ))
        };
        let (before, after) = (edge()?, edge()?);
        let mut foreign = None;
        if variant == Variant::Strict {
            pool = SlotPool::create_strict(&SIZES)?;
            foreign = Some(strict::introduce(&pool, [next()?, next()?])?);
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
            desk,
            before: (before.0, before.1, knocker_before),
            after: (after.0, after.1, knocker_after),
            numbers: [number(seat + of - 1), number(seat), number(seat + 1)],
            channels,
            wire,
        })
    }

    fn member(&self) -> Arc<PoolEndpoint> {
        PoolEndpoint::new(Arc::clone(&self.pool), self.numbers[1], u64::MAX)
    }
}

/// Descriptors that were inherited at these numbers.
#[allow(unsafe_code)]
fn inherited(numbers: &[RawFd]) -> Vec<OwnedFd> {
    // SAFETY: whoever started this process left these open for it, and nobody else here knows them.
    numbers
        .iter()
        .map(|&number| unsafe { OwnedFd::from_raw_fd(number) })
        .collect()
}
