//! Every interleaving of writes, moves and ends in both directions: nothing is lost, doubled or
//! reordered, and nothing hangs.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::sync::mpsc;

use super::stream_switch::{ReadSource, StreamSwitch};
use super::switch_message::SwitchMessage;
use super::*;

/// Step of one side of the model.
#[derive(Debug, Clone, Copy)]
enum SwitchStep {
    Write(u8),
    /// Takes one frame from the relay.
    ReceiveRelay,
    /// Reads some direct bytes.
    ReadDirect(u8),
    /// Finds the direct connection on this side.
    FindDirect,
    /// Withdraws the direct connection.
    WithdrawDirect,
    End,
}

#[derive(Debug, Clone, Copy)]
enum ModelFrame {
    Bytes(u64, u64),
    Message(SwitchMessage),
}

/// A side of the model, with the numbers of its sent and read bytes.
#[derive(Debug)]
struct ModelSide {
    switch: StreamSwitch,
    written: u64,
    read: u64,
    ended: bool,
    relay: VecDeque<ModelFrame>,
    direct: VecDeque<u64>,
    direct_ended: bool,
}

impl ModelSide {
    fn new(leads: bool) -> Self {
        let (relay, direct) = Default::default();
        let switch = StreamSwitch::on_relay(leads);
        Self {
            switch,
            written: 0,
            read: 0,
            ended: false,
            relay,
            direct,
            direct_ended: false,
        }
    }

    fn send_messages(&mut self, peer: &mut Self) {
        if let Some(message) = self.switch.next_message() {
            peer.relay.push_back(ModelFrame::Message(message));
        }
    }

    fn write(&mut self, n: u8, peer: &mut Self) {
        if self.ended {
            return;
        }
        let bytes = self.written..self.written + u64::from(n);
        if !self.switch.writes_direct() {
            self.switch.count_sent(usize::from(n));
            peer.relay
                .push_back(ModelFrame::Bytes(bytes.start, bytes.end));
        } else if self.switch.is_committed() {
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
        match self.switch.end_outgoing() {
            Some(message) => peer.relay.push_back(ModelFrame::Message(message)),
            None => peer.direct_ended = true,
        }
    }

    fn receive_relay(&mut self) {
        match self.relay.pop_front() {
            Some(ModelFrame::Bytes(from, to)) => {
                self.switch
                    .count_received(usize::try_from(to - from).unwrap())
                    .expect("bytes belong there");
                assert_eq!(from, self.read, "the next byte");
                self.read = to;
            }
            Some(ModelFrame::Message(message)) => {
                self.switch.handle_message(message).expect("valid message")
            }
            None => (),
        }
    }

    fn read_direct(&mut self, n: u8) {
        for _ in 0..n {
            let Some(byte) = self
                .direct
                .front()
                .filter(|_| self.switch.read_source() == ReadSource::Direct)
            else {
                return;
            };
            assert_eq!(*byte, self.read, "the next byte");
            self.read += 1;
            self.direct.pop_front();
        }
    }

    fn apply(&mut self, step: SwitchStep, peer: &mut Self) {
        match step {
            SwitchStep::Write(n) => self.write(n, peer),
            SwitchStep::ReceiveRelay => self.receive_relay(),
            SwitchStep::ReadDirect(n) => self.read_direct(n),
            SwitchStep::FindDirect => self.switch.direct_found(),
            SwitchStep::WithdrawDirect => self.switch.direct_withdrawn(),
            SwitchStep::End => self.end(peer),
        }
        self.send_messages(peer);
    }

    fn is_at_end(&self) -> bool {
        self.switch.read_source() == ReadSource::End
            || (self.direct_ended && self.direct.is_empty())
    }
}

fn steps() -> impl Strategy<Value = Vec<(bool, SwitchStep)>> {
    let step = prop_oneof![
        4 => any::<u8>().prop_map(SwitchStep::Write),
        4 => Just(SwitchStep::ReceiveRelay),
        2 => any::<u8>().prop_map(SwitchStep::ReadDirect),
        1 => Just(SwitchStep::FindDirect),
        1 => Just(SwitchStep::WithdrawDirect),
        1 => Just(SwitchStep::End),
    ];
    prop::collection::vec((any::<bool>(), step), 0..60)
}

fn run_steps(steps: Vec<(bool, SwitchStep)>, meets: bool) -> [ModelSide; 2] {
    let mut sides = [ModelSide::new(true), ModelSide::new(false)];
    let rest = (0..200).flat_map(|_| {
        [
            (false, SwitchStep::ReceiveRelay),
            (true, SwitchStep::ReceiveRelay),
        ]
    });
    let met = [
        (true, SwitchStep::FindDirect),
        (false, SwitchStep::FindDirect),
    ]
    .into_iter()
    .filter(|_| meets);
    let reads = (0..200).flat_map(|_| {
        [
            (false, SwitchStep::ReadDirect(u8::MAX)),
            (true, SwitchStep::ReadDirect(u8::MAX)),
        ]
    });
    for (first, step) in steps
        .into_iter()
        .filter(|(_, step)| meets || !matches!(step, SwitchStep::FindDirect))
        .chain(met)
        .chain(rest)
        .chain(reads)
    {
        let [a, b] = &mut sides;
        if first {
            a.apply(step, b)
        } else {
            b.apply(step, a)
        }
    }
    sides
}

proptest! {
    #[test]
    fn nothing_is_lost_or_doubled(steps in steps(), meets: bool) {
        let [a, b] = run_steps(steps, meets);
        prop_assert_eq!((a.read, b.read), (b.written, a.written), "{:?} {:?}", a, b);
        prop_assert_eq!((a.is_at_end(), b.is_at_end()), (b.ended, a.ended));
    }

    #[test]
    fn sessions_that_met_migrate_under_any_writes(steps in steps()) {
        let ends = steps.iter().any(|(_, step)| matches!(step, SwitchStep::End));
        let [a, b] = run_steps(steps, true);
        prop_assert!(ends || [&a, &b].iter().all(|side| side.switch.writes_direct() && side.switch.is_done_with_relay()));
    }

    #[test]
    fn streams_of_bytes_are_the_same_at_both_ends(
        seed: u64, room in 1usize..4, when in prop::array::uniform2(0u32..40), relay: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let deadline = Duration::from_secs(60);
        let met = runtime.block_on(async { tokio::time::timeout(deadline, exchange_both_ways(seed, room, when, relay)).await });
        met.expect("nobody hangs");
    }
}

/// Writes and reads on both sides, in frames of all sizes; the direct connection appears after some
/// time.
async fn exchange_both_ways(seed: u64, room: usize, when: [u32; 2], relay: bool) {
    let (near, far) = memory_relays(room);
    let (one, other) = tokio::io::duplex(777);
    let ends = [(near, one, true), (far, other, false)]
        .into_iter()
        .zip(when)
        .map(|((end, direct, leads), turns)| {
            let (arrive, arrivals) =
                mpsc::unbounded_channel::<io::Result<Box<dyn DirectConnection>>>();
            let stream = if relay {
                MigratingStream::on_relay(leads, Box::new(end), arrivals)
            } else {
                MigratingStream::without_relay(arrivals)
            };
            tokio::spawn(async move {
                // Virtual time: the direct connection appears at a random point of the stream.
                tokio::time::sleep(Duration::from_millis(u64::from(turns))).await;
                let _ = arrive.send(Ok(Box::new(direct)));
                arrive.closed().await;
            });
            stream
        });
    let ends: Vec<MigratingStream> = ends.collect();
    let sent: Vec<Vec<u8>> = (0..2).map(|side| random_bytes(seed ^ side)).collect();
    let [first, second] = <[MigratingStream; 2]>::try_from(ends).unwrap();
    let (a, b) = tokio::join!(
        write_and_read(first, &sent[0], seed),
        write_and_read(second, &sent[1], !seed)
    );
    assert!(
        a == sent[1] && b == sent[0],
        "{} {} of {} {}",
        a.len(),
        b.len(),
        sent[1].len(),
        sent[0].len()
    );
}

fn random_bytes(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let n = random.usize(0..200_000);
    std::iter::repeat_with(|| random.u8(..)).take(n).collect()
}

async fn write_and_read(stream: MigratingStream, bytes: &[u8], seed: u64) -> Vec<u8> {
    let (mut read, mut write) = split(stream);
    let mut random = fastrand::Rng::with_seed(seed);
    let writing = async move {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, left) = rest.split_at(random.usize(1..=rest.len().min(9000)));
            write.write_all(piece).await.unwrap();
            rest = left;
            if random.bool() {
                tokio::time::sleep(Duration::from_millis(1)).await; // virtual time, see above
            }
        }
        write.shutdown().await.unwrap();
        write
    };
    let mut received = Vec::new();
    let (end, kept) = tokio::join!(read.read_to_end(&mut received), writing);
    end.unwrap();
    drop((kept, read));
    received
}

/// The follower's first connection is not the one that the leader took.
#[tokio::test]
async fn a_connection_is_replaced_before_either_side_moved() {
    let (near, far) = memory_relays(4);
    let ((found_first, first), (found_second, second)) =
        (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let mut leader = MigratingStream::on_relay(true, Box::new(near), first);
    let mut follower = MigratingStream::on_relay(false, Box::new(far), second);
    let ((_, dead), (one, other)) = (tokio::io::duplex(9), tokio::io::duplex(9));
    found_second
        .send(Ok(Box::new(dead) as Box<dyn DirectConnection>))
        .unwrap();
    follower.write_all(b"over the relay ").await.unwrap();
    found_second.send(Ok(Box::new(other))).unwrap();
    found_first
        .send(Ok(Box::new(one) as Box<dyn DirectConnection>))
        .unwrap();
    leader.write_all(b"x").await.unwrap();
    follower.read_exact(&mut [0]).await.unwrap();
    follower.write_all(b"directly").await.unwrap();
    let mut read = [0; 23];
    leader.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"over the relay directly");
    let places = StreamPaths {
        outgoing: StreamPath::Direct,
        incoming: StreamPath::Direct,
    };
    assert_eq!(
        (*leader.paths().borrow(), *follower.paths().borrow()),
        (places, places)
    );
}

/// The leader has given up the first connection, and is faster with the second.
#[tokio::test]
async fn a_stream_does_not_move_to_a_withdrawn_connection() {
    let (near, far) = memory_relays(4);
    let ((found_first, first), (found_second, second)) =
        (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let mut leader = MigratingStream::on_relay(true, Box::new(near), first);
    let mut follower = MigratingStream::on_relay(false, Box::new(far), second);
    let ((_, dead), (one, other)) = (tokio::io::duplex(9), tokio::io::duplex(9));
    found_second
        .send(Ok(Box::new(dead) as Box<dyn DirectConnection>))
        .unwrap();
    follower.write_all(b"x").await.unwrap();
    found_second
        .send(Err(io::Error::other("another one was nominated")))
        .unwrap();
    found_first
        .send(Ok(Box::new(one) as Box<dyn DirectConnection>))
        .unwrap();
    leader.write_all(b"directly").await.unwrap();
    let mut read = [0; 8];
    {
        let mut reading = std::pin::pin!(follower.read_exact(&mut read));
        assert!(
            futures_util::poll!(&mut reading).is_pending(),
            "there is no connection"
        );
        found_second.send(Ok(Box::new(other))).unwrap();
        tokio::time::timeout(Duration::from_secs(5), reading)
            .await
            .unwrap()
            .unwrap();
    }
    assert_eq!(&read, b"directly");
}

/// Bytes after the announced position would break the stream.
#[tokio::test]
async fn a_connection_is_not_replaced_once_this_side_has_moved() {
    let (near, far) = memory_relays(4);
    let ((found_first, first), (found_second, second)) =
        (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let mut leader = MigratingStream::on_relay(true, Box::new(near), first);
    let mut follower = MigratingStream::on_relay(false, Box::new(far), second);
    let ((one, other), (late, _dead)) = (tokio::io::duplex(9), tokio::io::duplex(9));
    found_first
        .send(Ok(Box::new(one) as Box<dyn DirectConnection>))
        .unwrap();
    leader.write_all(b"one").await.unwrap();
    found_first.send(Ok(Box::new(late))).unwrap();
    leader.write_all(b", two").await.unwrap();
    found_second
        .send(Ok(Box::new(other) as Box<dyn DirectConnection>))
        .unwrap();
    let mut read = [0; 8];
    follower.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"one, two");
}

/// Both sides only wait to read, and the connection appears after the last byte.
#[tokio::test]
async fn an_idle_stream_moves() {
    let (near, far) = memory_relays(4);
    let ((found_first, first), (found_second, second)) =
        (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let leader = MigratingStream::on_relay(true, Box::new(near), first);
    let follower = MigratingStream::on_relay(false, Box::new(far), second);
    let (one, other) = tokio::io::duplex(9);
    let mut places = [leader.paths(), follower.paths()];
    let (report, mut done) = mpsc::unbounded_channel();
    for stream in [leader, follower] {
        let report = report.clone();
        tokio::spawn(async move {
            let (mut read, mut write) = split(stream);
            write.write_all(b"x").await.unwrap();
            write.flush().await.unwrap();
            read.read_exact(&mut [0]).await.unwrap();
            report.send(()).unwrap();
            let _ = read.read_exact(&mut [0]).await; // never arrives
        });
    }
    for _ in 0..2 {
        done.recv().await.unwrap();
    }
    found_second
        .send(Ok(Box::new(other) as Box<dyn DirectConnection>))
        .unwrap();
    found_first
        .send(Ok(Box::new(one) as Box<dyn DirectConnection>))
        .unwrap();
    let direct = StreamPaths {
        outgoing: StreamPath::Direct,
        incoming: StreamPath::Direct,
    };
    for places in &mut places {
        tokio::time::timeout(
            Duration::from_secs(5),
            places.wait_for(|now| *now == direct),
        )
        .await
        .unwrap()
        .unwrap();
    }
}

#[tokio::test]
async fn a_broken_relay_is_an_error_and_no_end() {
    let (near, far) = memory_relays(4);
    let (_arrive, arrivals) = mpsc::unbounded_channel();
    let mut stream = MigratingStream::on_relay(true, Box::new(near), arrivals);
    drop(far);
    let error = stream.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
}

/// A side that has read everything and ended may be gone before the other one ends.
#[tokio::test]
async fn an_end_after_the_peer_has_left_is_no_error() {
    let (near, far) = memory_relays(4);
    let ((_keep, first), (_kept, second)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let mut stream = MigratingStream::on_relay(true, Box::new(near), first);
    let mut peer = MigratingStream::on_relay(false, Box::new(far), second);
    peer.shutdown().await.unwrap();
    drop(peer);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    stream.shutdown().await.unwrap();
    assert_eq!(
        stream.write(b"x").await.unwrap_err().kind(),
        io::ErrorKind::BrokenPipe
    );
}

#[tokio::test]
async fn without_relay_and_direct_connection_writing_fails() {
    let (arrive, arrivals) = mpsc::unbounded_channel();
    let mut stream = MigratingStream::without_relay(arrivals);
    arrive
        .send(Err(io::Error::other("no pair worked")))
        .unwrap();
    assert_eq!(
        stream.write(b"x").await.unwrap_err().to_string(),
        "no pair worked"
    );
}
