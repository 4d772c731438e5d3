//! Every interleaving of writes, moves and ends, both ways: nothing is lost, doubled or reordered, and nobody waits for ever.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::sync::mpsc;

use super::stream_switch::{Halves, Source};
use super::switch_message::Word;
use super::*;

/// What one side of the model does.
#[derive(Debug, Clone, Copy)]
enum Step {
    Write(u8),
    /// Takes one piece from the relay.
    Hear,
    /// Reads some of what came directly.
    Read(u8),
    /// The direct connection arrives here.
    Arrive,
    /// It turns out to be of no use.
    Withdraw,
    End,
}

#[derive(Debug, Clone, Copy)]
enum Frame {
    Bytes(u64, u64),
    Word(Word),
}

/// One side, with the numbers of the bytes that it sent and read.
#[derive(Debug)]
struct Side {
    halves: Halves,
    written: u64,
    read: u64,
    ended: bool,
    relay: VecDeque<Frame>,
    direct: VecDeque<u64>,
    direct_ended: bool,
}

impl Side {
    fn new(leads: bool) -> Self {
        let (relay, direct) = Default::default();
        let halves = Halves::on_relay(leads);
        Self { halves, written: 0, read: 0, ended: false, relay, direct, direct_ended: false }
    }

    fn speak(&mut self, peer: &mut Self) {
        if let Some(word) = self.halves.say() {
            peer.relay.push_back(Frame::Word(word));
        }
    }

    fn write(&mut self, n: u8, peer: &mut Self) {
        if self.ended {
            return;
        }
        let bytes = self.written..self.written + u64::from(n);
        if !self.halves.writes_direct() {
            self.halves.sent(usize::from(n));
            peer.relay.push_back(Frame::Bytes(bytes.start, bytes.end));
        } else if self.halves.is_bound() {
            peer.direct.extend(bytes.clone());
        } else {
            return;
        }
        self.written = bytes.end;
    }

    fn end(&mut self, peer: &mut Self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        match self.halves.end() {
            Some(word) => peer.relay.push_back(Frame::Word(word)),
            None => peer.direct_ended = true,
        }
    }

    fn hear(&mut self) {
        match self.relay.pop_front() {
            Some(Frame::Bytes(from, to)) => {
                self.halves.came(usize::try_from(to - from).unwrap()).expect("bytes belong there");
                assert_eq!(from, self.read, "the next byte");
                self.read = to;
            }
            Some(Frame::Word(word)) => self.halves.heard(word).expect("the word is right"),
            None => (),
        }
    }

    fn read(&mut self, n: u8) {
        for _ in 0..n {
            let Some(byte) = self.direct.front().filter(|_| self.halves.source() == Source::Direct) else { return };
            assert_eq!(*byte, self.read, "the next byte");
            self.read += 1;
            self.direct.pop_front();
        }
    }

    fn step(&mut self, step: Step, peer: &mut Self) {
        match step {
            Step::Write(n) => self.write(n, peer),
            Step::Hear => self.hear(),
            Step::Read(n) => self.read(n),
            Step::Arrive => self.halves.arrived(),
            Step::Withdraw => self.halves.withdrawn(),
            Step::End => self.end(peer),
        }
        self.speak(peer);
    }

    fn is_at_end(&self) -> bool {
        self.halves.source() == Source::End || (self.direct_ended && self.direct.is_empty())
    }
}

fn steps() -> impl Strategy<Value = Vec<(bool, Step)>> {
    let step = prop_oneof![
        4 => any::<u8>().prop_map(Step::Write),
        4 => Just(Step::Hear),
        2 => any::<u8>().prop_map(Step::Read),
        1 => Just(Step::Arrive),
        1 => Just(Step::Withdraw),
        1 => Just(Step::End),
    ];
    prop::collection::vec((any::<bool>(), step), 0..60)
}

fn run(steps: Vec<(bool, Step)>, meets: bool) -> [Side; 2] {
    let mut sides = [Side::new(true), Side::new(false)];
    let rest = (0..200).flat_map(|_| [(false, Step::Hear), (true, Step::Hear)]);
    let met = [(true, Step::Arrive), (false, Step::Arrive)].into_iter().filter(|_| meets);
    let reads = (0..200).flat_map(|_| [(false, Step::Read(u8::MAX)), (true, Step::Read(u8::MAX))]);
    for (first, step) in
        steps.into_iter().filter(|(_, step)| meets || !matches!(step, Step::Arrive)).chain(met).chain(rest).chain(reads)
    {
        let [a, b] = &mut sides;
        if first { a.step(step, b) } else { b.step(step, a) }
    }
    sides
}

proptest! {
    #[test]
    fn nothing_is_lost_or_doubled(steps in steps(), meets: bool) {
        let [a, b] = run(steps, meets);
        prop_assert_eq!((a.read, b.read), (b.written, a.written), "{:?} {:?}", a, b);
        prop_assert_eq!((a.is_at_end(), b.is_at_end()), (b.ended, a.ended));
    }

    #[test]
    fn who_has_met_moves_whatever_was_written(steps in steps()) {
        let ends = steps.iter().any(|(_, step)| matches!(step, Step::End));
        let [a, b] = run(steps, true);
        prop_assert!(ends || [&a, &b].iter().all(|side| side.halves.writes_direct() && side.halves.is_off_relay()));
    }

    #[test]
    fn streams_of_bytes_are_the_same_at_both_ends(
        seed: u64, room in 1usize..4, when in prop::array::uniform2(0u32..40), relay: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let deadline = Duration::from_secs(60);
        let met = runtime.block_on(async { tokio::time::timeout(deadline, exchange(seed, room, when, relay)).await });
        met.expect("nobody hangs");
    }
}

/// Both sides write and read at once, in pieces of all sizes; the direct connection arrives after so many turns of a side.
async fn exchange(seed: u64, room: usize, when: [u32; 2], relay: bool) {
    let (near, far) = local(room);
    let (one, other) = tokio::io::duplex(777);
    let ends = [(near, one, true), (far, other, false)].into_iter().zip(when).map(|((end, direct, leads), turns)| {
        let (arrive, arrivals) = mpsc::unbounded_channel::<io::Result<Box<dyn Direct>>>();
        let way = if relay { Way::on_relay(leads, Box::new(end), arrivals) } else { Way::without_relay(arrivals) };
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(u64::from(turns))).await;
            let _ = arrive.send(Ok(Box::new(direct)));
            arrive.closed().await;
        });
        way
    });
    let ends: Vec<Way> = ends.collect();
    let sent: Vec<Vec<u8>> = (0..2).map(|side| bytes(seed ^ side)).collect();
    let [first, second] = <[Way; 2]>::try_from(ends).unwrap();
    let (a, b) = tokio::join!(both(first, &sent[0], seed), both(second, &sent[1], !seed));
    assert!(a == sent[1] && b == sent[0], "{} {} of {} {}", a.len(), b.len(), sent[1].len(), sent[0].len());
}

fn bytes(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let n = random.usize(0..200_000);
    std::iter::repeat_with(|| random.u8(..)).take(n).collect()
}

async fn both(way: Way, bytes: &[u8], seed: u64) -> Vec<u8> {
    let (mut read, mut write) = split(way);
    let mut random = fastrand::Rng::with_seed(seed);
    let writing = async move {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, left) = rest.split_at(random.usize(1..=rest.len().min(9000)));
            write.write_all(piece).await.unwrap();
            rest = left;
            if random.bool() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        write.shutdown().await.unwrap();
        write
    };
    let mut came = Vec::new();
    let (end, kept) = tokio::join!(read.read_to_end(&mut came), writing);
    end.unwrap();
    drop((kept, read));
    came
}

/// The follower's first connection is one that the leader did not take.
#[tokio::test]
async fn a_connection_is_replaced_as_long_as_nobody_moved() {
    let (near, far) = local(4);
    let ((tell_first, first), (tell_second, second)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let mut leader = Way::on_relay(true, Box::new(near), first);
    let mut follower = Way::on_relay(false, Box::new(far), second);
    let ((_, dead), (one, other)) = (tokio::io::duplex(9), tokio::io::duplex(9));
    tell_second.send(Ok(Box::new(dead) as Box<dyn Direct>)).unwrap();
    follower.write_all(b"over the relay ").await.unwrap();
    tell_second.send(Ok(Box::new(other))).unwrap();
    tell_first.send(Ok(Box::new(one) as Box<dyn Direct>)).unwrap();
    leader.write_all(b"x").await.unwrap();
    follower.read_exact(&mut [0]).await.unwrap();
    follower.write_all(b"directly").await.unwrap();
    let mut read = [0; 23];
    leader.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"over the relay directly");
    let places = Places { out: Place::Direct, inward: Place::Direct };
    assert_eq!((*leader.places().borrow(), *follower.places().borrow()), (places, places));
}

/// The leader has given up the first one, and is faster with the second.
#[tokio::test]
async fn a_connection_that_was_withdrawn_is_not_moved_to() {
    let (near, far) = local(4);
    let ((tell_first, first), (tell_second, second)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let mut leader = Way::on_relay(true, Box::new(near), first);
    let mut follower = Way::on_relay(false, Box::new(far), second);
    let ((_, dead), (one, other)) = (tokio::io::duplex(9), tokio::io::duplex(9));
    tell_second.send(Ok(Box::new(dead) as Box<dyn Direct>)).unwrap();
    follower.write_all(b"x").await.unwrap();
    tell_second.send(Err(io::Error::other("another one was nominated"))).unwrap();
    tell_first.send(Ok(Box::new(one) as Box<dyn Direct>)).unwrap();
    leader.write_all(b"directly").await.unwrap();
    let mut read = [0; 8];
    {
        let mut reading = std::pin::pin!(follower.read_exact(&mut read));
        assert!(futures_util::poll!(&mut reading).is_pending(), "there is no connection");
        tell_second.send(Ok(Box::new(other))).unwrap();
        tokio::time::timeout(Duration::from_secs(5), reading).await.unwrap().unwrap();
    }
    assert_eq!(&read, b"directly");
}

/// What comes after the word was said would tear the way.
#[tokio::test]
async fn a_connection_is_not_replaced_once_this_side_has_moved() {
    let (near, far) = local(4);
    let ((tell_first, first), (tell_second, second)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let mut leader = Way::on_relay(true, Box::new(near), first);
    let mut follower = Way::on_relay(false, Box::new(far), second);
    let ((one, other), (late, _dead)) = (tokio::io::duplex(9), tokio::io::duplex(9));
    tell_first.send(Ok(Box::new(one) as Box<dyn Direct>)).unwrap();
    leader.write_all(b"one").await.unwrap();
    tell_first.send(Ok(Box::new(late))).unwrap();
    leader.write_all(b", two").await.unwrap();
    tell_second.send(Ok(Box::new(other) as Box<dyn Direct>)).unwrap();
    let mut read = [0; 8];
    follower.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"one, two");
}

/// Who only waits to read, on both sides, moves when the connection arrives: later than the last byte.
#[tokio::test]
async fn a_way_on_which_nothing_goes_moves() {
    let (near, far) = local(4);
    let ((tell_first, first), (tell_second, second)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let leader = Way::on_relay(true, Box::new(near), first);
    let follower = Way::on_relay(false, Box::new(far), second);
    let (one, other) = tokio::io::duplex(9);
    let mut places = [leader.places(), follower.places()];
    let (tell, mut told) = mpsc::unbounded_channel();
    for way in [leader, follower] {
        let tell = tell.clone();
        tokio::spawn(async move {
            let (mut read, mut write) = split(way);
            write.write_all(b"x").await.unwrap();
            write.flush().await.unwrap();
            read.read_exact(&mut [0]).await.unwrap();
            tell.send(()).unwrap();
            let _ = read.read_exact(&mut [0]).await; // what never comes
        });
    }
    for _ in 0..2 {
        told.recv().await.unwrap();
    }
    tell_second.send(Ok(Box::new(other) as Box<dyn Direct>)).unwrap();
    tell_first.send(Ok(Box::new(one) as Box<dyn Direct>)).unwrap();
    let direct = Places { out: Place::Direct, inward: Place::Direct };
    for places in &mut places {
        tokio::time::timeout(Duration::from_secs(5), places.wait_for(|now| *now == direct)).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_relay_that_breaks_is_an_error_and_no_end() {
    let (near, far) = local(4);
    let (_arrive, arrivals) = mpsc::unbounded_channel();
    let mut way = Way::on_relay(true, Box::new(near), arrivals);
    drop(far);
    let error = way.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
}

/// Who has read all, and has no more to say, may be gone before the other one ends.
#[tokio::test]
async fn an_end_that_nobody_waits_for_is_no_error() {
    let (near, far) = local(4);
    let ((_keep, first), (_kept, second)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let mut way = Way::on_relay(true, Box::new(near), first);
    let mut peer = Way::on_relay(false, Box::new(far), second);
    peer.shutdown().await.unwrap();
    drop(peer);
    assert_eq!(way.read(&mut [0]).await.unwrap(), 0);
    way.shutdown().await.unwrap();
    assert_eq!(way.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn without_relay_and_connection_there_is_an_error() {
    let (arrive, arrivals) = mpsc::unbounded_channel();
    let mut way = Way::without_relay(arrivals);
    arrive.send(Err(io::Error::other("no pair worked"))).unwrap();
    assert_eq!(way.write(b"x").await.unwrap_err().to_string(), "no pair worked");
}
