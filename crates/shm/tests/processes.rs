//! Two processes: one is killed with -9 at any moment, one writes whatever it likes, both sleep and are woken.
//!
//! The other process is this program again, see [`role`].
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_shm::channel::{self, ReceiveFault, State};
use nearpath_shm::desk::{self, Desk};
use nearpath_shm::geometry::Size;
use nearpath_shm::reclaim;
use nearpath_shm::region::{Access, Pages, Region};
use nearpath_shm::spin::Spin;
use nearpath_shm::{Channel, Draft, End, Envelope, Kind, Knocker, Lease, Member, Parcel, Party, Pool, Side};
use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::io::Errno;

const CAPACITY: u32 = 16;
const SIZES: [Size; 2] = [Size { size: 64, count: 96 }, Size { size: 1024, count: 32 }];
const SLOTS: usize = 96 + 32;
const ROLE: &str = "NEARPATH_SHM_TEST_ROLE";
const FDS: &str = "NEARPATH_SHM_TEST_FDS";
const DEADLINE: Duration = Duration::from_secs(30);

fn party(number: u16) -> Party {
    Party::new(number).unwrap()
}

fn no_spin() -> Spin {
    Spin::new(Duration::ZERO)
}

/// What the two share, from the side of the parent: it is node and caller.
struct House {
    pool: Arc<Pool>,
    member: Arc<Member>,
    desk: Desk,
    guests: u16,
}

/// A child and the channel to it.
struct Guest {
    child: Child,
    number: Party,
    channel: Channel,
    end: End,
    desk: Desk,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl House {
    fn new(kind: desk::Kind) -> Self {
        let pool = Arc::new(Pool::create(&SIZES, Pages::Small).unwrap());
        let member = Member::new(Arc::clone(&pool), party(1), u64::MAX);
        Self { pool, member, desk: Desk::create(kind, no_spin()).unwrap(), guests: 1 }
    }

    fn invite(&mut self, role: &str, kind: desk::Kind) -> Guest {
        self.guests += 1;
        let number = party(self.guests);
        let (channel, desk) = (Channel::create(CAPACITY).unwrap(), Desk::create(kind, no_spin()).unwrap());
        let end = channel.end(Side::Caller, Arc::clone(&self.member), number, desk.knocker());
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.pool.as_fd(), channel.as_fd(), desk.as_fd(), self.desk.as_fd()];
        fds.extend(desk.event());
        fds.extend(self.desk.event());
        // Copies without close-on-exec, until the child has been started.
        let copies: Vec<OwnedFd> = fds.into_iter().map(|fd| rustix::io::dup(fd).unwrap()).collect();
        let numbers: Vec<String> = copies.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--nocapture", "--quiet"])
            .env(ROLE, format!("{role} {}", self.guests))
            .env(FDS, numbers.join(" "))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Guest { child, number, channel, end, desk }
    }

    fn call(&self, guest: &mut Guest, call: u64) -> bool {
        if guest.end.credits() == 0 {
            return false;
        }
        let Ok(lease) = self.member.claim(64 + (call % 2) as u32 * 512) else { return false };
        let sent = guest.end.send(Draft::new(lease).finish(Envelope::new(Kind::Call, call))).is_ok();
        guest.end.counters().opened();
        sent
    }

    /// What the node does when a guest has died; returns what was freed.
    fn bury(&mut self, mut guest: Guest) -> u32 {
        guest.child.kill().unwrap();
        guest.child.wait().unwrap();
        guest.channel.close(State::CalleeDead);
        let number = guest.number;
        let in_ring = |_, _, slot, generation| guest.channel.holds(Side::Callee, slot, generation);
        let swept = reclaim::sweep(&self.pool, |party| party != number, in_ring);
        while let Ok(Some(_)) = guest.end.receive() {}
        guest.end.flush();
        assert!(!reclaim::bears(&self.pool, number), "a word still bears the dead party's number");
        swept.freed
    }

    /// How many slots a party can claim that comes after everybody else.
    fn claimable(&self) -> usize {
        let member = Member::new(Arc::clone(&self.pool), party(u16::MAX), u64::MAX);
        let all: Vec<Lease> = std::iter::from_fn(|| member.claim(64).ok()).collect();
        all.len()
    }
}

/// The child's side of a [`Guest`].
struct Visitor {
    member: Arc<Member>,
    channel: Channel,
    end: End,
    desk: Desk,
    fds: Vec<OwnedFd>,
}

impl Visitor {
    fn arrive(number: u16) -> Self {
        let numbers = std::env::var(FDS).unwrap();
        // SAFETY: the parent left these open for this process, and nothing else here knows them.
        let open = |text: &str| unsafe { OwnedFd::from_raw_fd(text.parse().unwrap()) };
        let fds: Vec<OwnedFd> = numbers.split(' ').map(open).collect();
        let copy = |k: usize| fds.get(k).map(|fd| fd.try_clone().unwrap());
        let bytes = nearpath_shm::Geometry::new(&SIZES).unwrap().bytes() as usize;
        let pool = Arc::new(Pool::open(copy(0).unwrap(), bytes).unwrap());
        let channel = Channel::open(copy(1).unwrap(), CAPACITY).unwrap();
        let desk = Desk::open(copy(2).unwrap(), copy(4), no_spin()).unwrap();
        let host = Knocker::open(copy(3).unwrap(), copy(5)).unwrap();
        let member = Member::new(pool, party(number), u64::MAX);
        let end = channel.end(Side::Callee, Arc::clone(&member), party(1), host);
        Self { member, channel, end, desk, fds }
    }
}

/// Not a test by itself: what this program does when a test below starts it again.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, number) = role.split_once(' ').unwrap();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let visitor = Visitor::arrive(number.parse().unwrap());
    match role {
        "echo" => echo(visitor),
        "scribe" => scribe(visitor),
        "vandal" => vandal(visitor),
        "cutter" => cutter(&visitor),
        other => panic!("no such role: {other}"),
    }
}

/// Answers calls, always with some slots in its hands, until it is killed or the caller is gone.
fn echo(mut visitor: Visitor) {
    let mut hands: Vec<Lease> = Vec::new();
    loop {
        hands.extend(visitor.member.claim(64));
        hands.truncate(3);
        visitor.desk.wait(0, None, || visitor.end.ready());
        loop {
            match visitor.end.receive() {
                Ok(Some(call)) => {
                    let answer = Envelope { status: 200, ..Envelope::new(Kind::Answer, call.envelope().call) };
                    visitor.end.send(call.forward(answer).unwrap()).unwrap();
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        visitor.end.flush();
    }
}

/// Answers calls with bodies that it has written in place or passes on, others half written, until it is killed.
fn scribe(mut visitor: Visitor) {
    let (mut desks, mut turn) = (Vec::new(), 0u8);
    loop {
        desks.extend(Parcel::claim(&visitor.member, 512));
        desks.iter_mut().for_each(|parcel| parcel.bytes_mut().fill(turn));
        desks.truncate(3);
        visitor.desk.wait(0, None, || visitor.end.ready());
        loop {
            match visitor.end.receive() {
                Ok(Some(call)) => {
                    turn = turn.wrapping_add(1);
                    let answer = Envelope { status: 200, ..Envelope::new(Kind::Answer, call.envelope().call) };
                    let parcel = if turn.is_multiple_of(2) { call.into_parcel() } else { desks.pop() };
                    let Some(parcel) = parcel.or_else(|| Parcel::claim(&visitor.member, 0).ok()) else { continue };
                    let draft = parcel.address(&[]).unwrap();
                    visitor.end.send(draft.finish(answer)).unwrap();
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        visitor.end.flush();
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn seeded() -> Dice {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    println!("seed {}", now.as_nanos() as u64); // shown when a test fails
    Dice(now.as_nanos() as u64 | 1)
}

/// Calls for a random while; the guest can be killed at any moment of its work.
fn keep_busy(house: &mut House, guest: &mut Guest, dice: &mut Dice) {
    let mut calls = 0;
    let answers_first = dice.roll(20);
    let (mut answers, mut grace) = (0, dice.roll(3000));
    let end = Instant::now() + DEADLINE;
    while answers < answers_first || grace > 0 {
        calls += u64::from(house.call(guest, calls));
        guest.end.flush();
        while let Some(answer) = guest.end.receive().unwrap() {
            assert_eq!(answer.envelope().status, 200);
            guest.end.counters().closed(Duration::ZERO, false);
            answers += 1;
        }
        grace -= u64::from(answers >= answers_first && grace > 0);
        assert!(Instant::now() < end, "the guest stopped answering");
    }
}

#[test]
fn killed_at_any_moment_all_comes_back() {
    let (mut house, mut dice) = (House::new(desk::Kind::Futex), seeded());
    for round in 0..60 {
        let mut guest = house.invite("echo", desk::Kind::Futex);
        keep_busy(&mut house, &mut guest, &mut dice);
        house.bury(guest);
        assert_eq!(reclaim::usage(&house.pool).len(), 0, "round {round}");
        assert_eq!(house.claimable(), SLOTS, "round {round}");
    }
}

#[test]
fn killed_with_bodies_half_written_all_comes_back() {
    let (mut house, mut dice) = (House::new(desk::Kind::Futex), seeded());
    for round in 0..60 {
        let mut guest = house.invite("scribe", desk::Kind::Futex);
        keep_busy(&mut house, &mut guest, &mut dice);
        house.bury(guest);
        assert_eq!(reclaim::usage(&house.pool).len(), 0, "round {round}");
        assert_eq!(house.claimable(), SLOTS, "round {round}");
    }
}

/// The same without the sweep: if nothing were lost here, the test above would prove nothing.
#[test]
fn control_without_the_sweep_slots_are_lost() {
    let (mut house, mut dice) = (House::new(desk::Kind::Futex), seeded());
    for _ in 0..5 {
        let mut guest = house.invite("echo", desk::Kind::Futex);
        house.call(&mut guest, 0);
        guest.end.flush();
        house.desk.wait(0, Some(DEADLINE), || guest.end.ready());
        keep_busy(&mut house, &mut guest, &mut dice);
        guest.child.kill().unwrap();
        guest.child.wait().unwrap();
        guest.channel.close(State::CalleeDead);
        while let Ok(Some(_)) = guest.end.receive() {}
        guest.end.recall();
    }
    assert!(house.claimable() < SLOTS, "five killed guests took nothing with them");
}

#[test]
fn both_sleep_and_are_woken() {
    for (host, visitor) in [(desk::Kind::Futex, desk::Kind::Futex), (desk::Kind::Event, desk::Kind::Event)] {
        let mut house = House::new(host);
        let mut guest = house.invite("echo", visitor);
        for call in 0..2000 {
            assert!(house.call(&mut guest, call));
            guest.end.flush();
            let end = Instant::now() + DEADLINE;
            let answer = loop {
                if let Some(answer) = guest.end.receive().unwrap() {
                    break answer;
                }
                assert!(Instant::now() < end, "nobody woke this side in time");
                house.desk.wait(0, Some(DEADLINE), || guest.end.ready());
            };
            assert_eq!(answer.envelope().call, call);
            guest.end.counters().closed(Duration::ZERO, false);
        }
        guest.channel.close(State::CallerDead);
        guest.desk.knocker().knock();
        assert!(guest.child.wait().unwrap().success(), "a closed channel ends the guest in good order");
        house.bury(guest);
        assert_eq!(house.claimable(), SLOTS);
    }
}

/// Writes whatever it likes wherever it can, and pretends to send it.
fn vandal(mut visitor: Visitor) {
    let mut dice = seeded();
    let channel =
        Region::open(visitor.fds[1].try_clone().unwrap(), channel::bytes(CAPACITY) as usize, Access::Write).unwrap();
    let bytes = visitor.member.pool().bytes();
    let pool = Region::open(visitor.fds[0].try_clone().unwrap(), bytes, Access::Write).unwrap();
    let answers = channel::answers_at(CAPACITY);
    while visitor.channel.state() != State::Broken {
        for _ in 0..dice.roll(2000) {
            let (at, value) = (dice.roll(bytes as u64 - 8), dice.roll(u64::MAX));
            pool.write(at, &value.to_le_bytes()[..1 + dice.roll(8) as usize]);
        }
        for k in 0..2 * u64::from(CAPACITY) {
            // Often nearly right: a slot that exists, party numbers that exist.
            let slot = dice.roll(100) | dice.roll(2) << 28 | dice.roll(4) << 32;
            channel.write(answers + 192 + 8 * k, &if k % 2 == 0 { slot } else { 64 << 32 }.to_le_bytes());
            let word = dice.roll(4) << 32 | u64::from(visitor.member.party().get()) << 16 | 1;
            pool.write(4096 + 8 * dice.roll(96), &word.to_le_bytes());
        }
        let tail = if dice.roll(4) == 0 { dice.roll(u64::MAX) } else { dice.roll(u64::from(CAPACITY)) };
        channel.write(answers, &(tail as u32).to_le_bytes());
        let _ = visitor.end.receive();
    }
}

#[test]
fn a_vandal_breaks_its_channel_and_nobody_else() {
    for _ in 0..20 {
        let mut house = House::new(desk::Kind::Futex);
        let mut guest = house.invite("vandal", desk::Kind::Futex);
        let end = Instant::now() + DEADLINE;
        let mut calls = 0;
        let fault = loop {
            house.call(&mut guest, calls);
            calls += 1;
            guest.end.flush();
            match guest.end.receive() {
                Ok(Some(answer)) => {
                    guest.end.counters().closed(Duration::ZERO, false);
                    let _ = (answer.head(&mut Vec::new()).map(Iterator::count), answer.body());
                }
                Ok(None) => {}
                Err(fault) => break fault,
            }
            assert!(Instant::now() < end, "no harm was noticed");
        };
        assert_ne!(fault, ReceiveFault::Closed(State::Open));
        assert_eq!(guest.channel.state(), State::Broken);
    }
}

/// Tries to change sizes and seals by every way that leads to the pool.
fn cutter(visitor: &Visitor) {
    let path = format!("/proc/self/fd/{}", visitor.fds[0].as_raw_fd());
    let again = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    for fd in [&visitor.fds[0], &visitor.fds[1], &visitor.fds[2], &again] {
        assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(fd, 1 << 30), Err(Errno::PERM));
        assert_eq!(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
    }
}

#[test]
fn a_guest_can_change_no_size_and_no_seal() {
    let mut house = House::new(desk::Kind::Futex);
    let mut guest = house.invite("cutter", desk::Kind::Futex);
    assert!(guest.child.wait().unwrap().success());
    assert_eq!(house.claimable(), SLOTS);
}
