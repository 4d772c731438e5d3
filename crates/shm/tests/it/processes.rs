//! Two processes: one is killed with -9 at any moment, one writes whatever it likes, both sleep and
//! are woken.
//!
//! The other process is this program again, see [`role`].
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_shm::channel::{self, ChannelReceiveError, ChannelState};
use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::reclaim;
use nearpath_shm::region::{MapAccess, PageKind, Region};
use nearpath_shm::spin::SpinPolicy;
use nearpath_shm::wakeup_cell::{self, WakeupCell};
use nearpath_shm::{
    Channel, ChannelEnd, ChannelSide, EndpointId, Envelope, Lease, MessageDraft, MessageKind,
    OwnedSlot, PoolEndpoint, SlotPool, WakeupSignal,
};
use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::io::Errno;

const RING_CAPACITY: u32 = 16;
const CLASS_SPECS: [ClassSpec; 2] = [
    ClassSpec {
        size: 64,
        count: 96,
    },
    ClassSpec {
        size: 1024,
        count: 32,
    },
];
const SLOT_COUNT: usize = 96 + 32;
const ROLE_VARIABLE: &str = "NEARPATH_SHM_TEST_ROLE";
const FDS_VARIABLE: &str = "NEARPATH_SHM_TEST_FDS";
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn endpoint_id(number: u16) -> EndpointId {
    EndpointId::new(number).unwrap()
}

fn no_spin() -> SpinPolicy {
    SpinPolicy::new(Duration::ZERO)
}

/// Objects that the two share, from the side of the parent: it is node and caller.
struct ParentProcess {
    pool: Arc<SlotPool>,
    endpoint: Arc<PoolEndpoint>,
    cell: WakeupCell,
    last_id: u16,
}

/// A child and the channel to it.
struct ChildHandle {
    child: Child,
    id: EndpointId,
    channel: Channel,
    end: ChannelEnd,
    cell: WakeupCell,
}

impl Drop for ChildHandle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ParentProcess {
    fn new(kind: wakeup_cell::WakeupKind) -> Self {
        let pool = Arc::new(SlotPool::create(&CLASS_SPECS, PageKind::Small).unwrap());
        let member = PoolEndpoint::new(Arc::clone(&pool), endpoint_id(1), u64::MAX);
        Self {
            pool,
            endpoint: member,
            cell: WakeupCell::create(kind, no_spin()).unwrap(),
            last_id: 1,
        }
    }

    fn spawn_child(&mut self, role: &str, kind: wakeup_cell::WakeupKind) -> ChildHandle {
        self.last_id += 1;
        let number = endpoint_id(self.last_id);
        let (channel, cell) = (
            Channel::create(RING_CAPACITY).unwrap(),
            WakeupCell::create(kind, no_spin()).unwrap(),
        );
        let end = channel.attach_end(
            ChannelSide::Caller,
            Arc::clone(&self.endpoint),
            number,
            cell.wakeup_signal(),
        );
        let mut fds: Vec<BorrowedFd<'_>> = vec![
            self.pool.as_fd(),
            channel.as_fd(),
            cell.as_fd(),
            self.cell.as_fd(),
        ];
        fds.extend(cell.eventfd());
        fds.extend(self.cell.eventfd());
        // Copies without close-on-exec, until the child has been started.
        let copies: Vec<OwnedFd> = fds
            .into_iter()
            .map(|fd| rustix::io::dup(fd).unwrap())
            .collect();
        let numbers: Vec<String> = copies.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::role", "--nocapture", "--quiet"])
            .env(ROLE_VARIABLE, format!("{role} {}", self.last_id))
            .env(FDS_VARIABLE, numbers.join(" "))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        ChildHandle {
            child,
            id: number,
            channel,
            end,
            cell,
        }
    }

    fn send_call(&self, handle: &mut ChildHandle, call: u64) -> bool {
        if handle.end.credits() == 0 {
            return false;
        }
        let Ok(lease) = self.endpoint.claim_slot(64 + (call % 2) as u32 * 512) else {
            return false;
        };
        let sent = handle
            .end
            .send_message(MessageDraft::new(lease).finish(Envelope::new(MessageKind::Call, call)))
            .is_ok();
        handle.end.counters().record_opened();
        sent
    }

    /// Does what the node does after the death of an endpoint; returns the freed slots.
    fn kill_and_sweep(&mut self, mut handle: ChildHandle) -> u32 {
        handle.child.kill().unwrap();
        handle.child.wait().unwrap();
        handle.channel.close_with(ChannelState::CalleeDead);
        let number = handle.id;
        let in_ring = |_, _, slot, generation| {
            handle
                .channel
                .contains_slot(ChannelSide::Callee, slot, generation)
        };
        let swept = reclaim::sweep_pool(&self.pool, |endpoint| endpoint != number, in_ring);
        while let Ok(Some(_)) = handle.end.receive_message() {}
        handle.end.flush_batch();
        assert!(
            !reclaim::is_id_in_use(&self.pool, number),
            "a word still bears the dead endpoint's id"
        );
        swept.freed
    }

    /// How many slots an endpoint can claim that comes after everybody else.
    fn claimable_slots(&self) -> usize {
        let member = PoolEndpoint::new(Arc::clone(&self.pool), endpoint_id(u16::MAX), u64::MAX);
        let all: Vec<Lease> = std::iter::from_fn(|| member.claim_slot(64).ok()).collect();
        all.len()
    }
}

/// The child's side of a [`ChildHandle`].
struct ChildProcess {
    endpoint: Arc<PoolEndpoint>,
    channel: Channel,
    end: ChannelEnd,
    cell: WakeupCell,
    fds: Vec<OwnedFd>,
}

impl ChildProcess {
    fn open_inherited(number: u16) -> Self {
        let numbers = std::env::var(FDS_VARIABLE).unwrap();
        // SAFETY: the parent left these open for this process, and nothing else here knows them.
        let open = |text: &str| unsafe { OwnedFd::from_raw_fd(text.parse().unwrap()) };
        let fds: Vec<OwnedFd> = numbers.split(' ').map(open).collect();
        let copy = |k: usize| fds.get(k).map(|fd| fd.try_clone().unwrap());
        let bytes = nearpath_shm::PoolGeometry::new(&CLASS_SPECS)
            .unwrap()
            .total_bytes() as usize;
        let pool = Arc::new(SlotPool::open_region(copy(0).unwrap(), bytes).unwrap());
        let channel = Channel::open_region(copy(1).unwrap(), RING_CAPACITY).unwrap();
        let cell = WakeupCell::open_region(copy(2).unwrap(), copy(4), no_spin()).unwrap();
        let host = WakeupSignal::open_region(copy(3).unwrap(), copy(5)).unwrap();
        let member = PoolEndpoint::new(pool, endpoint_id(number), u64::MAX);
        let end = channel.attach_end(
            ChannelSide::Callee,
            Arc::clone(&member),
            endpoint_id(1),
            host,
        );
        Self {
            endpoint: member,
            channel,
            end,
            cell,
            fds,
        }
    }
}

/// Not a test by itself: what this program does when a test below starts it again.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE_VARIABLE) else {
        return;
    };
    let (role, number) = role.split_once(' ').unwrap();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let child = ChildProcess::open_inherited(number.parse().unwrap());
    match role {
        "echo" => run_echo(child),
        "in_place_writer" => run_in_place_writer(child),
        "corrupter" => run_corrupter(child),
        "resizer" => run_resizer(&child),
        other => panic!("no such role: {other}"),
    }
}

/// Answers calls, always with some slots in its hands, until it is killed or the caller is gone.
fn run_echo(mut child: ChildProcess) {
    let mut hands: Vec<Lease> = Vec::new();
    loop {
        hands.extend(child.endpoint.claim_slot(64));
        hands.truncate(3);
        child.cell.wait_until(0, None, || child.end.has_incoming());
        loop {
            match child.end.receive_message() {
                Ok(Some(call)) => {
                    let answer = Envelope {
                        status: 200,
                        ..Envelope::new(MessageKind::Answer, call.envelope().call)
                    };
                    child
                        .end
                        .send_message(call.forward_with(answer).unwrap())
                        .unwrap();
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        child.end.flush_batch();
    }
}

/// Answers calls with bodies that it has written in place or passes on, others half written, until
/// it is killed.
fn run_in_place_writer(mut child: ChildProcess) {
    let (mut cells, mut turn) = (Vec::new(), 0u8);
    loop {
        cells.extend(OwnedSlot::claim_zeroed(&child.endpoint, 512));
        cells
            .iter_mut()
            .for_each(|slot| slot.bytes_mut().fill(turn));
        cells.truncate(3);
        child.cell.wait_until(0, None, || child.end.has_incoming());
        loop {
            match child.end.receive_message() {
                Ok(Some(call)) => {
                    turn = turn.wrapping_add(1);
                    let answer = Envelope {
                        status: 200,
                        ..Envelope::new(MessageKind::Answer, call.envelope().call)
                    };
                    let slot = if turn.is_multiple_of(2) {
                        call.into_owned_slot()
                    } else {
                        cells.pop()
                    };
                    let Some(slot) =
                        slot.or_else(|| OwnedSlot::claim_zeroed(&child.endpoint, 0).ok())
                    else {
                        continue;
                    };
                    let draft = slot.into_draft(&[]).unwrap();
                    child.end.send_message(draft.finish(answer)).unwrap();
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        child.end.flush_batch();
    }
}

struct XorShift(u64);

impl XorShift {
    fn next_below(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn seeded_rng() -> XorShift {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    println!("seed {}", now.as_nanos() as u64); // shown when a test fails
    XorShift(now.as_nanos() as u64 | 1)
}

/// Calls for a random while; the endpoint can be killed at any moment of its work.
fn exchange_calls(parent: &mut ParentProcess, handle: &mut ChildHandle, rng: &mut XorShift) {
    let mut calls = 0;
    let answers_first = rng.next_below(20);
    let (mut answers, mut grace) = (0, rng.next_below(3000));
    let end = Instant::now() + TEST_TIMEOUT;
    while answers < answers_first || grace > 0 {
        calls += u64::from(parent.send_call(handle, calls));
        handle.end.flush_batch();
        while let Some(answer) = handle.end.receive_message().unwrap() {
            assert_eq!(answer.envelope().status, 200);
            handle.end.counters().record_closed(Duration::ZERO, false);
            answers += 1;
        }
        grace -= u64::from(answers >= answers_first && grace > 0);
        assert!(Instant::now() < end, "the child stopped answering");
    }
}

#[test]
fn all_slots_return_after_a_kill_at_any_moment() {
    let (mut parent, mut rng) = (
        ParentProcess::new(wakeup_cell::WakeupKind::Futex),
        seeded_rng(),
    );
    for round in 0..60 {
        let mut handle = parent.spawn_child("echo", wakeup_cell::WakeupKind::Futex);
        exchange_calls(&mut parent, &mut handle, &mut rng);
        parent.kill_and_sweep(handle);
        assert_eq!(reclaim::slot_usage(&parent.pool).len(), 0, "round {round}");
        assert_eq!(parent.claimable_slots(), SLOT_COUNT, "round {round}");
    }
}

#[test]
fn all_slots_return_after_a_kill_with_half_written_bodies() {
    let (mut parent, mut rng) = (
        ParentProcess::new(wakeup_cell::WakeupKind::Futex),
        seeded_rng(),
    );
    for round in 0..60 {
        let mut handle = parent.spawn_child("in_place_writer", wakeup_cell::WakeupKind::Futex);
        exchange_calls(&mut parent, &mut handle, &mut rng);
        parent.kill_and_sweep(handle);
        assert_eq!(reclaim::slot_usage(&parent.pool).len(), 0, "round {round}");
        assert_eq!(parent.claimable_slots(), SLOT_COUNT, "round {round}");
    }
}

/// The same without the sweep: if nothing were lost here, the test above would prove nothing.
#[test]
fn control_without_the_sweep_slots_are_lost() {
    let (mut parent, mut rng) = (
        ParentProcess::new(wakeup_cell::WakeupKind::Futex),
        seeded_rng(),
    );
    for _ in 0..5 {
        let mut handle = parent.spawn_child("echo", wakeup_cell::WakeupKind::Futex);
        parent.send_call(&mut handle, 0);
        handle.end.flush_batch();
        parent
            .cell
            .wait_until(0, Some(TEST_TIMEOUT), || handle.end.has_incoming());
        exchange_calls(&mut parent, &mut handle, &mut rng);
        handle.child.kill().unwrap();
        handle.child.wait().unwrap();
        handle.channel.close_with(ChannelState::CalleeDead);
        while let Ok(Some(_)) = handle.end.receive_message() {}
        handle.end.reclaim_unconsumed();
    }
    assert!(
        parent.claimable_slots() < SLOT_COUNT,
        "five killed children took nothing with them"
    );
}

#[test]
fn both_processes_sleep_and_are_woken() {
    for (host, child) in [
        (
            wakeup_cell::WakeupKind::Futex,
            wakeup_cell::WakeupKind::Futex,
        ),
        (
            wakeup_cell::WakeupKind::Eventfd,
            wakeup_cell::WakeupKind::Eventfd,
        ),
    ] {
        let mut parent = ParentProcess::new(host);
        let mut handle = parent.spawn_child("echo", child);
        for call in 0..2000 {
            assert!(parent.send_call(&mut handle, call));
            handle.end.flush_batch();
            let end = Instant::now() + TEST_TIMEOUT;
            let answer = loop {
                if let Some(answer) = handle.end.receive_message().unwrap() {
                    break answer;
                }
                assert!(Instant::now() < end, "nobody woke this side in time");
                parent
                    .cell
                    .wait_until(0, Some(TEST_TIMEOUT), || handle.end.has_incoming());
            };
            assert_eq!(answer.envelope().call, call);
            handle.end.counters().record_closed(Duration::ZERO, false);
        }
        handle.channel.close_with(ChannelState::CallerDead);
        handle.cell.wakeup_signal().wake();
        assert!(
            handle.child.wait().unwrap().success(),
            "a closed channel ends the guest in good order"
        );
        parent.kill_and_sweep(handle);
        assert_eq!(parent.claimable_slots(), SLOT_COUNT);
    }
}

/// Writes whatever it likes wherever it can, and pretends to send it.
fn run_corrupter(mut child: ChildProcess) {
    let mut rng = seeded_rng();
    let channel = Region::open_sealed(
        child.fds[1].try_clone().unwrap(),
        channel::channel_bytes(RING_CAPACITY) as usize,
        MapAccess::Write,
    )
    .unwrap();
    let bytes = child.endpoint.pool().region_bytes();
    let pool =
        Region::open_sealed(child.fds[0].try_clone().unwrap(), bytes, MapAccess::Write).unwrap();
    let answers = channel::answer_ring_offset(RING_CAPACITY);
    while child.channel.state() != ChannelState::Broken {
        for _ in 0..rng.next_below(2000) {
            let (at, value) = (rng.next_below(bytes as u64 - 8), rng.next_below(u64::MAX));
            pool.write_bytes(at, &value.to_le_bytes()[..1 + rng.next_below(8) as usize]);
        }
        for k in 0..2 * u64::from(RING_CAPACITY) {
            // Often nearly right: a slot that exists, endpoint numbers that exist.
            let slot = rng.next_below(100) | rng.next_below(2) << 28 | rng.next_below(4) << 32;
            channel.write_bytes(
                answers + 192 + 8 * k,
                &if k % 2 == 0 { slot } else { 64 << 32 }.to_le_bytes(),
            );
            let word = rng.next_below(4) << 32 | u64::from(child.endpoint.id().get()) << 16 | 1;
            pool.write_bytes(4096 + 8 * rng.next_below(96), &word.to_le_bytes());
        }
        let tail = if rng.next_below(4) == 0 {
            rng.next_below(u64::MAX)
        } else {
            rng.next_below(u64::from(RING_CAPACITY))
        };
        channel.write_bytes(answers, &(tail as u32).to_le_bytes());
        let _ = child.end.receive_message();
    }
}

#[test]
fn a_corrupting_child_breaks_only_its_own_channel() {
    for _ in 0..20 {
        let mut parent = ParentProcess::new(wakeup_cell::WakeupKind::Futex);
        let mut handle = parent.spawn_child("corrupter", wakeup_cell::WakeupKind::Futex);
        let end = Instant::now() + TEST_TIMEOUT;
        let mut calls = 0;
        let fault = loop {
            parent.send_call(&mut handle, calls);
            calls += 1;
            handle.end.flush_batch();
            match handle.end.receive_message() {
                Ok(Some(answer)) => {
                    handle.end.counters().record_closed(Duration::ZERO, false);
                    let _ = (
                        answer.copy_head(&mut Vec::new()).map(Iterator::count),
                        answer.body_copy(),
                    );
                }
                Ok(None) => {}
                Err(fault) => break fault,
            }
            assert!(Instant::now() < end, "no harm was noticed");
        };
        assert_ne!(fault, ChannelReceiveError::Closed(ChannelState::Open));
        assert_eq!(handle.channel.state(), ChannelState::Broken);
    }
}

/// Tries to change sizes and seals by every way that leads to the pool.
fn run_resizer(child: &ChildProcess) {
    let path = format!("/proc/self/fd/{}", child.fds[0].as_raw_fd());
    let again = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    for fd in [&child.fds[0], &child.fds[1], &child.fds[2], &again] {
        assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(fd, 1 << 30), Err(Errno::PERM));
        assert_eq!(
            rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE),
            Err(Errno::PERM)
        );
    }
}

#[test]
fn a_child_cannot_change_sizes_or_seals() {
    let mut parent = ParentProcess::new(wakeup_cell::WakeupKind::Futex);
    let mut handle = parent.spawn_child("resizer", wakeup_cell::WakeupKind::Futex);
    assert!(handle.child.wait().unwrap().success());
    assert_eq!(parent.claimable_slots(), SLOT_COUNT);
}
