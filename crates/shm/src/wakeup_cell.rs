//! The wakeup cell, where an endpoint sleeps and is woken. An endpoint has one, whatever its number
//! of channels.

use std::hint::spin_loop;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, Timespec, fcntl_getfl};
use rustix::thread::{futex, sched_getcpu, sched_yield};

use crate::region::{MapAccess, PageKind, Region};
use crate::shared::SharedRef;
use crate::sleep_wake::{self, WakeupPrimitive};
use crate::sockmap::{SockmapRecord, SockmapSocket};
use crate::spin::SpinPolicy;
use crate::sync::{AtomicU32, Ordering, fence};

/// Magic bytes at the start of a wakeup cell.
pub const WAKEUP_CELL_MAGIC: [u8; 8] = *b"NPWAKE01";
/// Bytes of a wakeup cell.
pub const WAKEUP_CELL_BYTES: usize = 4096;

/// Checks between two yields of a polling endpoint; about a microsecond.
const SPINS_PER_YIELD: u32 = 50;

/// Wakeup mechanism of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum WakeupKind {
    /// Futex on the cell: for a dedicated thread.
    Futex = 0,
    /// Blocking eventfd: for a dedicated thread that cannot use a futex.
    Eventfd = 1,
    /// None: the endpoint polls. For comparison.
    BusyPoll = 2,
}

/// Wakeup cell from its endpoint's side.
#[derive(Debug)]
pub struct WakeupCell {
    region: Arc<Region>,
    core: SharedRef<AtomicU32>,
    asleep: SharedRef<AtomicU32>,
    control_seq: SharedRef<AtomicU32>,
    method: Arc<WakeMethod>,
    spin: SpinPolicy,
}

impl WakeupCell {
    /// Creates a cell, for the node or for an endpoint on its own.
    pub fn create(kind: WakeupKind, spin: SpinPolicy) -> io::Result<Self> {
        let event = matches!(kind, WakeupKind::Eventfd)
            .then(|| eventfd(0, EventfdFlags::CLOEXEC))
            .transpose()?;
        Self::create_with(kind, event, spin)
    }

    /// Creates a cell for an event loop: its eventfd does not block.
    pub fn create_nonblocking(spin: SpinPolicy) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Self::create_with(WakeupKind::Eventfd, Some(event), spin)
    }

    fn create_with(kind: WakeupKind, event: Option<OwnedFd>, spin: SpinPolicy) -> io::Result<Self> {
        let region = Region::create("nearpath-desk", WAKEUP_CELL_BYTES, PageKind::Small)?;
        region.write_bytes(8, &(kind as u32).to_le_bytes());
        region.write_bytes(0, &WAKEUP_CELL_MAGIC);
        Self::from_region(region, event, spin)
    }

    /// Maps a cell that the node created. `event` is present when the mechanism is an eventfd.
    pub fn open_region(fd: OwnedFd, event: Option<OwnedFd>, spin: SpinPolicy) -> io::Result<Self> {
        Self::from_region(
            Region::open_sealed(fd, WAKEUP_CELL_BYTES, MapAccess::Write)?,
            event,
            spin,
        )
    }

    fn from_region(
        region: Arc<Region>,
        event: Option<OwnedFd>,
        spin: SpinPolicy,
    ) -> io::Result<Self> {
        let method = Arc::new(WakeMethod::from_header(&region, event)?);
        let cell = |offset| {
            region
                .atomic_cell(offset)
                .ok_or_else(|| io::Error::other("the wakeup cell is too small"))
        };
        let (core, asleep, control_seq) = (cell(12)?, cell(64)?, cell(128)?);
        Ok(Self {
            region,
            core,
            asleep,
            control_seq,
            method,
            spin,
        })
    }

    /// Returns the signal for peers in this process; others use [`WakeupSignal::open_region`].
    pub fn wakeup_signal(&self) -> WakeupSignal {
        let (core, asleep, control_seq) = (
            self.core.clone(),
            self.asleep.clone(),
            self.control_seq.clone(),
        );
        WakeupSignal {
            last_core: core,
            asleep,
            control_seq,
            method: Arc::clone(&self.method),
        }
    }

    /// Returns the number of packets that the node has sent on the endpoint's socket; it wraps.
    /// While it is unchanged, the endpoint need not poll the socket.
    pub fn control_seq(&self) -> u32 {
        self.control_seq.load(Ordering::Acquire)
    }

    /// Returns a shared view of [`WakeupCell::control_seq`], readable while the cell waits.
    pub fn shared_control_seq(&self) -> SharedRef<AtomicU32> {
        self.control_seq.clone()
    }

    /// Returns the eventfd, if the mechanism is one.
    pub fn eventfd(&self) -> Option<BorrowedFd<'_>> {
        match &*self.method {
            WakeMethod::Eventfd { fd, .. } => Some(fd.as_fd()),
            WakeMethod::Futex | WakeMethod::Sockmap { .. } | WakeMethod::BusyPoll => None,
        }
    }

    /// Waits until `ready`, which must check every source of wakeups, or until the timeout. Spins
    /// first when that pays. `peer` is the core of the expected sender, as
    /// [`WakeupSignal::last_core`] returns it. May return early.
    pub fn wait_until(
        &mut self,
        peer: u32,
        timeout: Option<Duration>,
        mut ready: impl FnMut() -> bool,
    ) {
        if ready() {
            return;
        }
        if matches!(*self.method, WakeMethod::BusyPoll) {
            return self.busy_poll(peer, timeout, ready);
        }
        // Saves reading the own core when the sender's is unknown: then spinning is off anyway.
        let budget = if peer == 0 {
            Duration::ZERO
        } else {
            self.spin.next_budget(current_core(), peer)
        };
        if budget > Duration::ZERO {
            let fruitful = spin_for(budget, &mut ready);
            self.spin.record_spin(fruitful);
            if fruitful {
                return;
            }
        }
        // The core is published after a sleep, since the scheduler may have moved the thread
        // meanwhile.
        if sleep_wake::sleep_unless_ready(&self.asleep, &*self.method, timeout, ready)
            || self.core.load(Ordering::Relaxed) == 0
        {
            self.record_core();
        }
    }

    /// Announces a sleep, for event loops. False when there is work. After true, wait for
    /// [`WakeupCell::eventfd`] to be readable, then call [`WakeupCell::finish_sleep`].
    pub fn announce_sleep(&self, mut ready: impl FnMut() -> bool) -> bool {
        sleep_wake::announce_sleep(&self.asleep, &mut ready)
    }

    /// Marks the endpoint as awake and drains the eventfd.
    pub fn finish_sleep(&self) {
        if let WakeMethod::Eventfd {
            fd,
            blocking: false,
        } = &*self.method
        {
            let _ = rustix::io::read(fd, &mut [0; 8]); // may be empty: another wakeup drained it
        }
        sleep_wake::clear_asleep(&self.asleep);
        self.record_core();
    }

    /// Marks the endpoint as awake without draining the eventfd. With edge-triggered epoll each
    /// write is an event, so a wakeup costs no read.
    pub fn mark_awake(&self) {
        sleep_wake::clear_asleep(&self.asleep);
        self.record_core();
    }

    /// Publishes the core on which this endpoint runs, so that peers can decide whether to spin.
    pub fn record_core(&self) {
        self.core.store(current_core(), Ordering::Relaxed);
    }

    fn busy_poll(&self, peer: u32, timeout: Option<Duration>, mut ready: impl FnMut() -> bool) {
        self.record_core();
        let end = timeout.map(|timeout| Instant::now() + timeout);
        while !ready() && end.is_none_or(|end| Instant::now() < end) {
            // On the peer's core, further checks would only keep the peer from running; yield
            // instead.
            let beside = peer == 0 || current_core() == peer;
            if beside || !spin_batch(&mut ready) {
                sched_yield()
            }
        }
    }
}

impl AsFd for WakeupCell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}

/// Wakeup cell from a peer's side.
#[derive(Debug, Clone)]
pub struct WakeupSignal {
    last_core: SharedRef<AtomicU32>,
    asleep: SharedRef<AtomicU32>,
    control_seq: SharedRef<AtomicU32>,
    method: Arc<WakeMethod>,
}

impl WakeupSignal {
    /// Maps another endpoint's cell.
    pub fn open_region(fd: OwnedFd, event: Option<OwnedFd>) -> io::Result<Self> {
        WakeupCell::open_region(fd, event, SpinPolicy::new(Duration::ZERO))
            .map(|cell| cell.wakeup_signal())
    }

    /// Returns a signal for an endpoint that sleeps in a read of its socket: a record on this
    /// channel wakes it.
    pub fn via_sockmap(self, wire: SockmapSocket, channel: u32) -> Self {
        Self {
            method: Arc::new(WakeMethod::Sockmap {
                socket: wire,
                channel,
            }),
            ..self
        }
    }

    /// Wakes the endpoint if it sleeps. The caller issued a full fence after its last push;
    /// [`crate::ChannelEnd::flush_batch`] does both.
    pub fn wake(&self) -> bool {
        sleep_wake::wake_if_asleep(&self.asleep, &*self.method)
    }

    /// Announces data on the endpoint's socket and wakes it. The node calls this after sending a
    /// packet or closing the socket.
    pub fn notify_control(&self) -> bool {
        // AcqRel and the fence: the endpoint that sees the sleep flag unset also sees the new
        // sequence number.
        self.control_seq.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.wake()
    }

    /// Returns the core on which the endpoint last ran, plus one; 0: unknown.
    pub fn last_core(&self) -> u32 {
        self.last_core.load(Ordering::Relaxed)
    }
}

/// Returns the core of the calling thread, plus one.
pub fn current_core() -> u32 {
    sched_getcpu() as u32 + 1
}

/// Checks a few more times; about a microsecond.
fn spin_batch(ready: &mut impl FnMut() -> bool) -> bool {
    (0..SPINS_PER_YIELD).any(|_| {
        spin_loop();
        ready()
    })
}

fn spin_for(budget: Duration, ready: &mut impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        // Eight checks per reading of the clock, which costs more than a check.
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

/// Kernel mechanism of a wakeup.
#[derive(Debug)]
enum WakeMethod {
    Futex,
    Eventfd { fd: OwnedFd, blocking: bool },
    Sockmap { socket: SockmapSocket, channel: u32 },
    BusyPoll,
}

impl WakeMethod {
    fn from_header(region: &Region, event: Option<OwnedFd>) -> io::Result<Self> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        let mut header = [0; 12];
        if !region.read_bytes(0, &mut header) || header[..8] != WAKEUP_CELL_MAGIC {
            return Err(refused("the region does not begin with NPWAKE01"));
        }
        match (header[8], event) {
            (0, None) => Ok(Self::Futex),
            (1, Some(fd)) => {
                let blocking = !fcntl_getfl(&fd)?.contains(OFlags::NONBLOCK);
                Ok(Self::Eventfd { fd, blocking })
            }
            (2, None) => Ok(Self::BusyPoll),
            _ => Err(refused(
                "the wakeup method of the cell does not match the descriptors that came with it",
            )),
        }
    }
}

impl WakeupPrimitive for WakeMethod {
    fn wait_asleep(&self, asleep: &AtomicU32, timeout: Option<Duration>) {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // A signal or a changed word ends the wait early; the caller checks again in any case.
        match self {
            Self::Futex => drop(futex::wait(
                asleep,
                futex::Flags::empty(),
                1,
                timeout.as_ref(),
            )),
            Self::Eventfd { fd, blocking } => {
                // A blocking eventfd without a timeout needs only the read: one system call instead
                // of two.
                let polls = !blocking || timeout.is_some();
                let signalled = || poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref());
                if !polls || signalled().is_ok_and(|n| n > 0) {
                    let _ = rustix::io::read(fd, &mut [0; 8]);
                }
            }
            // The endpoint sleeps in a read of its socket
            Self::Sockmap { .. } | Self::BusyPoll => {}
        }
    }

    fn wake_one(&self, asleep: &AtomicU32) {
        match self {
            Self::Futex => drop(futex::wake(asleep, futex::Flags::empty(), 1)),
            // Fails only when 2^64 − 2 wakeups are unread: then the endpoint is awake anyway.
            Self::Eventfd { fd, .. } => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
            // Fails only when the endpoint or the node is terminating.
            Self::Sockmap {
                socket: wire,
                channel,
            } => drop(wire.send_records(&SockmapRecord::wakeup(*channel).to_bytes())),
            Self::BusyPoll => {}
        }
    }
}
