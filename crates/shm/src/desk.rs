//! Where a party sleeps and is woken: one of its own, whatever the number of its channels.

use std::hint::spin_loop;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, Timespec, fcntl_getfl};
use rustix::thread::{futex, sched_getcpu, sched_yield};

use crate::bell::{self, Bell};
use crate::region::{Access, Pages, Region};
use crate::shared::Shared;
use crate::spin::Spin;
use crate::sync::{AtomicU32, Ordering, fence};
use crate::wire::{Record, Wire};

/// First bytes of a desk.
pub const MAGIC: [u8; 8] = *b"NPDESK01";
/// Bytes of a desk.
pub const SIZE: usize = 4096;

/// Looks between two yields of a party that polls.
const POLL_SPINS: u32 = 50;

/// How a party is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Futex on the desk: for a thread that does nothing else.
    Futex = 0,
    /// A blocking eventfd: for a thread that does nothing else and cannot use a futex.
    Event = 1,
    /// Not at all: the party looks again and again. For comparison.
    None = 2,
}

/// The desk from its party's side.
#[derive(Debug)]
pub struct Desk {
    region: Arc<Region>,
    core: Shared<AtomicU32>,
    asleep: Shared<AtomicU32>,
    mail: Shared<AtomicU32>,
    ringer: Arc<Ringer>,
    spin: Spin,
}

impl Desk {
    /// Makes one. For the node, or a party that is its own.
    pub fn create(kind: Kind, spin: Spin) -> io::Result<Self> {
        let event = matches!(kind, Kind::Event).then(|| eventfd(0, EventfdFlags::CLOEXEC)).transpose()?;
        Self::create_with(kind, event, spin)
    }

    /// One for an event loop: its eventfd does not block.
    pub fn create_polled(spin: Spin) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Self::create_with(Kind::Event, Some(event), spin)
    }

    fn create_with(kind: Kind, event: Option<OwnedFd>, spin: Spin) -> io::Result<Self> {
        let region = Region::create("nearpath-desk", SIZE, Pages::Small)?;
        region.write(8, &(kind as u32).to_le_bytes());
        region.write(0, &MAGIC);
        Self::with(region, event, spin)
    }

    /// Maps the one that the node made. `event` is there when the bell is an eventfd.
    pub fn open(fd: OwnedFd, event: Option<OwnedFd>, spin: Spin) -> io::Result<Self> {
        Self::with(Region::open(fd, SIZE, Access::Write)?, event, spin)
    }

    fn with(region: Arc<Region>, event: Option<OwnedFd>, spin: Spin) -> io::Result<Self> {
        let ringer = Arc::new(Ringer::of(&region, event)?);
        let cell = |offset| region.cell(offset).ok_or_else(|| io::Error::other("the desk is too small"));
        let (core, asleep, mail) = (cell(12)?, cell(64)?, cell(128)?);
        Ok(Self { region, core, asleep, mail, ringer, spin })
    }

    /// What peers in this process ring; others open their own with [`Knocker::open`].
    pub fn knocker(&self) -> Knocker {
        let (core, asleep, mail) = (self.core.clone(), self.asleep.clone(), self.mail.clone());
        Knocker { core, asleep, mail, ringer: Arc::clone(&self.ringer) }
    }

    /// How many packets the node says it has sent on the party's socket; wraps. A party that sleeps here need not ask the
    /// kernel about the socket while this stays the same.
    pub fn mail(&self) -> u32 {
        self.mail.load(Ordering::Acquire)
    }

    /// A view of [`Desk::mail`] that can be looked at while the desk waits.
    pub fn letters(&self) -> Shared<AtomicU32> {
        self.mail.clone()
    }

    /// The eventfd, when the bell is one.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        match &*self.ringer {
            Ringer::Event { fd, .. } => Some(fd.as_fd()),
            Ringer::Futex | Ringer::Wire { .. } | Ringer::None => None,
        }
    }

    /// Waits until `ready`, which must look at everything that somebody would ring for; or until the timeout. Spins first when
    /// that pays. `peer` is the one that an answer is expected from, as [`Knocker::core`] says. May return early.
    pub fn wait(&mut self, peer: u32, timeout: Option<Duration>, mut ready: impl FnMut() -> bool) {
        if ready() {
            return;
        }
        if matches!(*self.ringer, Ringer::None) {
            return self.poll(peer, timeout, ready);
        }
        let budget = if peer == 0 { Duration::ZERO } else { self.spin.budget(own_core(), peer) };
        if budget > Duration::ZERO {
            let fruitful = spin_for(budget, &mut ready);
            self.spin.spun(fruitful);
            if fruitful {
                return;
            }
        }
        if bell::sleep(&self.asleep, &*self.ringer, timeout, ready) || self.core.load(Ordering::Relaxed) == 0 {
            self.note_core();
        }
    }

    /// For an event loop: says that the party sleeps. False when there is something to do. After true, wait for
    /// [`Desk::event`] to be readable, then call [`Desk::awake`].
    pub fn announce(&self, mut ready: impl FnMut() -> bool) -> bool {
        bell::announce(&self.asleep, &mut ready)
    }

    /// The party is awake; empties the eventfd.
    pub fn awake(&self) {
        if let Ringer::Event { fd, blocking: false } = &*self.ringer {
            let _ = rustix::io::read(fd, &mut [0; 8]); // empty already: somebody else's wake-up
        }
        bell::withdraw(&self.asleep);
        self.note_core();
    }

    /// The party is awake; leaves the eventfd as it is: for an event loop that is told of each write to it (edge-triggered
    /// epoll), so that a wake-up costs no read.
    pub fn rise(&self) {
        bell::withdraw(&self.asleep);
        self.note_core();
    }

    /// Tells peers on which processor this party runs, so that they know whether to spin.
    pub fn note_core(&self) {
        self.core.store(own_core(), Ordering::Relaxed);
    }

    fn poll(&self, peer: u32, timeout: Option<Duration>, mut ready: impl FnMut() -> bool) {
        self.note_core();
        let end = timeout.map(|timeout| Instant::now() + timeout);
        while !ready() && end.is_none_or(|end| Instant::now() < end) {
            // Beside the peer, looking again would only keep it from running; and somebody else may want this processor.
            let beside = peer == 0 || own_core() == peer;
            if beside || !spin_some(&mut ready) {
                sched_yield()
            }
        }
    }
}

impl AsFd for Desk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}

/// The desk from a peer's side.
#[derive(Debug, Clone)]
pub struct Knocker {
    core: Shared<AtomicU32>,
    asleep: Shared<AtomicU32>,
    mail: Shared<AtomicU32>,
    ringer: Arc<Ringer>,
}

impl Knocker {
    /// Maps another party's desk.
    pub fn open(fd: OwnedFd, event: Option<OwnedFd>) -> io::Result<Self> {
        Desk::open(fd, event, Spin::new(Duration::ZERO)).map(|desk| desk.knocker())
    }

    /// The same desk, where its party sleeps in a read of its socket: it is woken by a record on this channel.
    pub fn over(self, wire: Wire, channel: u32) -> Self {
        Self { ringer: Arc::new(Ringer::Wire { wire, channel }), ..self }
    }

    /// Wakes the party if it sleeps. The caller has made a full fence after its last push; [`crate::End::flush`] does both.
    pub fn knock(&self) -> bool {
        bell::knock(&self.asleep, &*self.ringer)
    }

    /// Says that there is something on the party's socket, and wakes it. For the node, after it sent a packet or hung up.
    pub fn deliver(&self) -> bool {
        self.mail.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.knock()
    }

    /// Processor on which the party last ran, plus one; 0: unknown.
    pub fn core(&self) -> u32 {
        self.core.load(Ordering::Relaxed)
    }
}

/// Processor of the calling thread, plus one.
pub fn own_core() -> u32 {
    sched_getcpu() as u32 + 1
}

/// Looks some more times; about a microsecond.
fn spin_some(ready: &mut impl FnMut() -> bool) -> bool {
    (0..POLL_SPINS).any(|_| {
        spin_loop();
        ready()
    })
}

fn spin_for(budget: Duration, ready: &mut impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..8 {
            spin_loop();
            if ready() {
                return true;
            }
        }
        if start.elapsed() > budget {
            return false;
        }
    }
}

/// The kernel's part of a bell.
#[derive(Debug)]
enum Ringer {
    Futex,
    Event { fd: OwnedFd, blocking: bool },
    Wire { wire: Wire, channel: u32 },
    None,
}

impl Ringer {
    fn of(region: &Region, event: Option<OwnedFd>) -> io::Result<Self> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        let mut header = [0; 12];
        if !region.read(0, &mut header) || header[..8] != MAGIC {
            return Err(refused("the region does not begin with NPDESK01"));
        }
        match (header[8], event) {
            (0, None) => Ok(Self::Futex),
            (1, Some(fd)) => {
                let blocking = !fcntl_getfl(&fd)?.contains(OFlags::NONBLOCK);
                Ok(Self::Event { fd, blocking })
            }
            (2, None) => Ok(Self::None),
            _ => Err(refused("the desk's bell and the descriptors that came with it do not match")),
        }
    }
}

impl Bell for Ringer {
    fn wait(&self, asleep: &AtomicU32, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // A signal or a changed word ends the wait early; the caller looks again either way.
        match self {
            Self::Futex => drop(futex::wait(asleep, futex::Flags::empty(), 1, timeout.as_ref())),
            Self::Event { fd, blocking } => {
                let polls = !blocking || timeout.is_some();
                let rung = || poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref());
                if !polls || rung().is_ok_and(|n| n > 0) {
                    let _ = rustix::io::read(fd, &mut [0; 8]);
                }
            }
            Self::Wire { .. } | Self::None => {} // its reader sleeps in the read
        }
    }

    fn ring(&self, asleep: &AtomicU32) {
        match self {
            Self::Futex => drop(futex::wake(asleep, futex::Flags::empty(), 1)),
            // Fails only when 2^64 − 2 rings are unread: then it rings already.
            Self::Event { fd, .. } => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
            // Fails only when the party itself, or the node, is at its end.
            Self::Wire { wire, channel } => drop(wire.send(&Record::bell(*channel).to_bytes())),
            Self::None => {}
        }
    }
}
