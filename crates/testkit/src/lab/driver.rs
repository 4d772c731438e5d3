//! The thread of a link: reads packets from each end's device, asks the [`LinkModel`] and writes
//! them to the other end's device.
//!
//! It sleeps in epoll until one of three things happens: a device has packets, the timer of the
//! next arrival fires (timerfd, exact to the nanosecond and without timer slack), or the wake event
//! reports a changed or ended link. A packet that arrives at once is written from the buffer that
//! it was read into. Others are copied into buffers that are reused.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nearpath_kernel::tun::{MAX_PACKET_LEN, TunDevice, VNET_HEADER_LEN};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::link_model::{LinkModel, PacketFate};

/// Packets that are taken from one end before the other has its turn.
const MAX_BATCH_PACKETS: usize = 64;
/// Maximum number of buffers that are kept for reuse.
const MAX_SPARE_BUFFERS: usize = 1024;
/// Index of the wake event among epoll's sources; the devices are 0 and 1.
const WAKE_SOURCE: u64 = 2;
const TIMER_SOURCE: u64 = 3;

/// State that the thread and the handles of a link share.
pub(super) struct DriverShared {
    /// Models of both directions. The thread locks them for a batch at a time.
    models: Mutex<[LinkModel<Vec<u8>>; 2]>,
    pub(super) ends: [TunDevice; 2],
    wake_event: OwnedFd,
    must_stop: AtomicBool,
    /// Packets that the receiver's device refused because it was down.
    pub(super) refused: AtomicU64,
    /// Thread id, to read CPU time from the kernel.
    pub(super) thread: AtomicU64,
    started_at: Instant,
}

impl DriverShared {
    pub(super) fn new(models: [LinkModel<Vec<u8>>; 2], ends: [TunDevice; 2]) -> io::Result<Self> {
        Ok(Self {
            models: Mutex::new(models),
            ends,
            wake_event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            must_stop: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            thread: AtomicU64::new(0),
            started_at: Instant::now(),
        })
    }

    pub(super) fn lock_models(&self) -> MutexGuard<'_, [LinkModel<Vec<u8>>; 2]> {
        self.models
            .lock()
            .expect("the link's thread does not panic")
    }

    /// Wakes the thread, so that it sees changes.
    pub(super) fn wake_thread(&self) {
        // The counter can only be full, and then the thread is woken anyway.
        let _ = rustix::io::write(&self.wake_event, &1_u64.to_ne_bytes());
    }

    pub(super) fn stop_thread(&self) {
        self.must_stop.store(true, Ordering::Release);
        self.wake_thread();
    }
}

/// State of the thread alone.
pub(super) struct LinkDriver<'a> {
    shared: &'a DriverShared,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Current setting of the timer, so that it is set only when it changes.
    armed_for: Option<Duration>,
    scratch: Vec<u8>,
    spare: Vec<Vec<u8>>,
}

impl<'a> LinkDriver<'a> {
    pub(super) fn new(shared: &'a DriverShared) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let [there, back] = &shared.ends;
        let sources = [
            there.as_fd(),
            back.as_fd(),
            shared.wake_event.as_fd(),
            timer.as_fd(),
        ];
        for (source, number) in sources.into_iter().zip(0..) {
            epoll::add(
                &epoll,
                source,
                epoll::EventData::new_u64(number),
                epoll::EventFlags::IN,
            )?;
        }
        Ok(Self {
            shared,
            epoll,
            timer,
            armed_for: None,
            scratch: vec![0; MAX_PACKET_LEN],
            spare: Vec::new(),
        })
    }

    /// Runs until the link ends.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut readable = [true; 2];
        while !self.shared.must_stop.load(Ordering::Acquire) {
            let next = self.run_once(readable)?;
            readable = self.wait_readable(next)?;
        }
        Ok(())
    }

    /// Reads packets, delivers those that are due, and returns the time of the next one.
    fn run_once(&mut self, readable: [bool; 2]) -> io::Result<Option<Duration>> {
        let shared = self.shared;
        let mut models = shared.lock_models();
        for from in [0, 1] {
            if readable[from] {
                self.read_packets(from, &mut models[from])?;
            }
            self.deliver_due(1 - from, &mut models[from]);
        }
        let next = models.iter().filter_map(|model| {
            Some(
                model
                    .next_arrival()?
                    .saturating_sub(model.conditions().awake),
            )
        });
        Ok(next.min())
    }

    fn read_packets(&mut self, from: usize, model: &mut LinkModel<Vec<u8>>) -> io::Result<()> {
        for _ in 0..MAX_BATCH_PACKETS {
            let Some(length) = self.shared.ends[from].read_packet(&mut self.scratch)? else {
                break;
            };
            let now = self.elapsed();
            let (packet, spare) = (&self.scratch[..length], &mut self.spare);
            if model.offer_packet(now, length.saturating_sub(VNET_HEADER_LEN), || {
                copy_packet(packet, spare)
            }) == PacketFate::Arrives
            {
                self.write_packet(1 - from, packet);
            }
        }
        Ok(())
    }

    fn deliver_due(&mut self, to: usize, model: &mut LinkModel<Vec<u8>>) {
        while let Some(packet) = model.take_due(self.elapsed()) {
            self.write_packet(to, &packet);
            if self.spare.len() < MAX_SPARE_BUFFERS {
                self.spare.push(packet);
            }
        }
    }

    fn write_packet(&self, to: usize, packet: &[u8]) {
        if self.shared.ends[to].write_packet(packet).is_err() {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sleeps until a packet, the wake event or the given time. Returns which ends have packets.
    fn wait_readable(&mut self, until: Option<Duration>) -> io::Result<[bool; 2]> {
        let poll = until.is_some_and(|until| until <= self.elapsed());
        if !poll {
            self.arm_timer(until)?;
        }
        let now = poll.then_some(Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        });
        let mut events = [const {
            epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }
        }; 4];
        let count = match epoll::wait(&self.epoll, &mut events, now.as_ref()) {
            Err(rustix::io::Errno::INTR) => 0,
            other => other?,
        };
        let mut readable = [false; 2];
        for event in &events[..count] {
            match event.data.u64() {
                WAKE_SOURCE => drain_event(&self.shared.wake_event),
                TIMER_SOURCE => {
                    drain_event(&self.timer);
                    self.armed_for = None;
                }
                end => readable[usize::from(end == 1)] = true,
            }
        }
        Ok(readable)
    }

    fn arm_timer(&mut self, until: Option<Duration>) -> io::Result<()> {
        if until == self.armed_for {
            return Ok(());
        }
        // A time of 0 would disarm the timer.
        let wait = until.map(|until| {
            until
                .saturating_sub(self.elapsed())
                .max(Duration::from_nanos(1))
        });
        let value = Timespec::try_from(wait.unwrap_or_default()).map_err(io::Error::other)?;
        let setting = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: value,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)?;
        self.armed_for = until;
        Ok(())
    }

    fn elapsed(&self) -> Duration {
        self.shared.started_at.elapsed()
    }
}

fn copy_packet(packet: &[u8], spare: &mut Vec<Vec<u8>>) -> Vec<u8> {
    let mut buffer = spare.pop().unwrap_or_default();
    buffer.clear();
    buffer.extend_from_slice(packet);
    buffer
}

/// Reads a counter, which sets it to zero.
fn drain_event(counter: &OwnedFd) {
    let _ = rustix::io::read(counter, &mut [0_u8; 8]);
}
