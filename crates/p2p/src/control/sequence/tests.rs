//! Two sides over a lossy control connection and breaking relay connections: each reads what the
//! other sent.

use std::collections::VecDeque;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

/// A side of the model: frames on their way to it, and its sent and taken frames.
struct SequenceSide {
    sequence: FrameSequence,
    control: VecDeque<SequenceMessage>,
    relay: VecDeque<StreamFrame>,
    attached: bool,
    sent: u64,
    taken: Vec<StreamFrame>,
}

#[derive(Debug, Clone, Copy)]
enum SequenceStep {
    Send {
        bytes: usize,
    },
    SendText,
    Take,
    /// Acknowledgement timer.
    RequestAck,
    SendControl,
    ReceiveControl,
    /// Loss of a message on the control connection.
    LoseControl,
    AttachRelay,
    SendRelay,
    ReceiveRelay,
    /// Break of this side's relay connection, with everything in flight.
    CutRelay,
}

fn step() -> impl Strategy<Value = SequenceStep> {
    prop_oneof![
        4 => (0..6000_usize).prop_map(|bytes| SequenceStep::Send { bytes }),
        1 => Just(SequenceStep::SendText),
        4 => Just(SequenceStep::Take),
        1 => Just(SequenceStep::RequestAck),
        3 => Just(SequenceStep::SendControl),
        3 => Just(SequenceStep::ReceiveControl),
        1 => Just(SequenceStep::LoseControl),
        3 => Just(SequenceStep::AttachRelay),
        6 => Just(SequenceStep::SendRelay),
        6 => Just(SequenceStep::ReceiveRelay),
        1 => Just(SequenceStep::CutRelay),
    ]
}

/// Creates the frame of a number; its content names number and side.
fn numbered_frame(side: usize, number: u64, bytes: Option<usize>) -> StreamFrame {
    match bytes {
        Some(len) => {
            StreamFrame::Bytes(Bytes::from(format!("{side} {number} {}", "x".repeat(len))))
        }
        None => StreamFrame::Text(format!("{side} {number}")),
    }
}

fn label_of(piece: &StreamFrame) -> String {
    let text = match piece {
        StreamFrame::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        StreamFrame::Text(text) => text.clone(),
    };
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

impl SequenceSide {
    fn new() -> Self {
        let (control, relay, taken) = Default::default();
        Self {
            sequence: FrameSequence::new(ControlQuota::HANDSHAKE),
            control,
            relay,
            attached: false,
            sent: 0,
            taken,
        }
    }

    fn apply(&mut self, step: SequenceStep, other: &mut Self, name: usize) {
        match step {
            SequenceStep::Send { .. } | SequenceStep::SendText if !self.sequence.has_room() => (),
            SequenceStep::Send { bytes } => self.send(numbered_frame(name, self.sent, Some(bytes))),
            SequenceStep::SendText => self.send(numbered_frame(name, self.sent, None)),
            SequenceStep::Take => self.taken.extend(self.sequence.take_frame()),
            SequenceStep::RequestAck => self.sequence.request_ack(),
            SequenceStep::SendControl => other.control.extend(self.sequence.next_control_message()),
            SequenceStep::ReceiveControl => {
                let sent = self.control.pop_front();
                sent.into_iter()
                    .for_each(|message| _ = self.sequence.handle_control_message(message).unwrap());
            }
            SequenceStep::LoseControl => drop(self.control.pop_front()),
            SequenceStep::AttachRelay if !self.attached => {
                self.attached = true;
                self.sequence.attach_relay();
            }
            SequenceStep::AttachRelay => (),
            SequenceStep::SendRelay => {
                let frame = self.sequence.next_relay_frame();
                other.relay.extend(frame);
            }
            SequenceStep::ReceiveRelay => {
                if self.attached
                    && let Some(frame) = self.relay.pop_front()
                {
                    self.sequence.handle_relay_frame(frame).unwrap();
                }
            }
            SequenceStep::CutRelay if self.attached => {
                self.cut_relay();
                // The relay closes the other end, too, after it has forwarded some of the frames in
                // flight.
                let passed = std::mem::take(&mut other.relay);
                if other.attached {
                    let read = passed.len() / 2;
                    for frame in passed.into_iter().take(read) {
                        other.sequence.handle_relay_frame(frame).unwrap();
                    }
                    other.cut_relay();
                }
            }
            SequenceStep::CutRelay => (),
        }
    }

    fn send(&mut self, piece: StreamFrame) {
        self.sent += 1;
        self.sequence.push_frame(piece);
    }

    fn cut_relay(&mut self) {
        self.attached = false;
        self.sequence.detach_relay();
        self.relay.clear();
    }
}

/// Delivers everything over one more connection.
fn deliver_all(sides: &mut [SequenceSide; 2]) {
    sides.iter_mut().for_each(|side| {
        side.cut_relay();
        side.control.clear();
    });
    sides
        .iter_mut()
        .for_each(|side| side.sequence.attach_relay());
    for _ in 0..1000 {
        for at in [0, 1] {
            let [one, other] = sides;
            let (side, other) = if at == 0 { (one, other) } else { (other, one) };
            side.attached = true;
            side.sequence.request_ack();
            other.relay.extend(side.sequence.next_relay_frame());
            if let Some(frame) = side.relay.pop_front() {
                side.sequence.handle_relay_frame(frame).unwrap();
            }
            side.taken.extend(side.sequence.take_frame());
        }
    }
}

proptest! {
    #[test]
    fn each_side_reads_what_the_other_sent(steps in prop::collection::vec((0..2_usize, step()), 0..400)) {
        let mut sides = [SequenceSide::new(), SequenceSide::new()];
        for (at, step) in steps {
            let [one, other] = &mut sides;
            if at == 0 { one.apply(step, other, 0) } else { other.apply(step, one, 1) }
        }
        sides.iter_mut().for_each(|side| side.sequence.push_end());
        deliver_all(&mut sides);
        for at in [0, 1] {
            let read: Vec<String> = sides[at].taken.iter().map(label_of).collect();
            let sent: Vec<String> = (0..sides[1 - at].sent).map(|number| format!("{} {number}", 1 - at)).collect();
            prop_assert_eq!(read, sent);
            prop_assert!(sides[at].sequence.has_peer_ended());
            prop_assert_eq!(sides[at].sequence.acknowledgement_state(), (true, true));
            prop_assert_eq!(sides[at].sequence.outgoing.cost(), 0);
        }
    }
}

fn bytes_frame(len: usize) -> StreamFrame {
    StreamFrame::Bytes(vec![7; len].into())
}

/// Sends all frames of one side to the other.
fn send_all(from: &mut FrameSequence, to: &mut FrameSequence) {
    while let Some(frame) = from.next_relay_frame() {
        to.handle_relay_frame(frame).unwrap();
    }
}

fn attached_pair() -> [FrameSequence; 2] {
    let mut both = [
        FrameSequence::new(ControlQuota::HANDSHAKE),
        FrameSequence::new(ControlQuota::HANDSHAKE),
    ];
    both.iter_mut().for_each(FrameSequence::attach_relay);
    let [one, other] = &mut both;
    send_all(one, other);
    send_all(other, one);
    both
}

/// Unacknowledged frames are bounded, empty ones included; reading frees capacity early.
#[test]
fn a_writer_waits_for_the_reader() {
    for size in [0, 32 << 10] {
        let [mut near, mut far] = attached_pair();
        let mut sent = 0;
        while near.has_room() {
            near.push_frame(bytes_frame(size));
            sent += 1;
            send_all(&mut near, &mut far);
            send_all(&mut far, &mut near);
        }
        assert!(
            sent * size <= MAX_UNACKNOWLEDGED_BYTES
                && near.outgoing.cost()
                    < MAX_UNACKNOWLEDGED_BYTES + FRAME_OVERHEAD_BYTES + (32 << 10)
        );
        assert!(!far.is_full(), "what a peer may send is read");
        let mut taken = 0;
        while !near.has_room() {
            assert!(far.take_frame().is_some());
            taken += 1;
            send_all(&mut far, &mut near);
        }
        assert!(taken <= sent / 8, "{taken} of {sent}");
    }
}

#[test]
fn impossible_numbers_of_a_peer_are_errors() {
    let [mut near, _] = attached_pair();
    near.push_frame(bytes_frame(1));
    assert_eq!(
        near.handle_control_message(SequenceMessage::Ack(2)),
        Err(SequenceError::Unsent { has: 2, sent: 1 })
    );
    assert_eq!(
        near.handle_relay_frame(ResumePoint::Ack { acknowledged: 2 }.to_frame()),
        Err(SequenceError::Unsent { has: 2, sent: 1 })
    );
    assert_eq!(
        near.handle_relay_frame(
            ResumePoint::Resume {
                from: 9,
                acknowledged: 0
            }
            .to_frame()
        ),
        Err(SequenceError::Gap { from: 9, has: 0 })
    );
    near.attach_relay();
    assert_eq!(
        near.handle_relay_frame(bytes_frame(1)),
        Err(SequenceError::MissingResumePoint)
    );
    assert_eq!(
        near.handle_relay_frame(
            ResumePoint::Resume {
                from: 1,
                acknowledged: 0
            }
            .to_frame()
        ),
        Err(SequenceError::Gap { from: 1, has: 0 })
    );
    let far = SequenceMessage::Frame {
        number: u64::MAX,
        acknowledged: 0,
        frame: bytes_frame(1),
    };
    assert_eq!(
        (near.handle_control_message(far), near.take_frame()),
        (Ok(true), None),
        "on the line, it comes again"
    );
}

/// The control connection takes the first bytes only; a text frame follows if nothing precedes it.
#[test]
fn the_control_connection_carries_the_first_frames() {
    let mut near = FrameSequence::new(ControlQuota::SHORT_LINK);
    let (mut sent, mut number) = (0, 0);
    while sent < ControlQuota::SHORT_LINK.bytes {
        while near.control_room() > 0 {
            assert_eq!(
                near.is_quota_half_used(),
                sent >= ControlQuota::SHORT_LINK.bytes / 2
            );
            near.push_frame(bytes_frame(near.control_room()));
            let Some(SequenceMessage::Frame {
                number: of,
                acknowledged: 0,
                frame: StreamFrame::Bytes(piece),
            }) = near.next_control_message()
            else {
                panic!()
            };
            let is_the_last = sent + piece.len() == ControlQuota::SHORT_LINK.bytes;
            assert_eq!(
                (of, piece.len() >= MIN_CONTROL_FRAME_BYTES || is_the_last),
                (number, true)
            );
            (sent, number) = (sent + piece.len(), number + 1);
        }
        assert!(
            near.outgoing.cost() <= MAX_CONTROL_IN_FLIGHT_BYTES + FRAME_OVERHEAD_BYTES,
            "the rest waits for the peer"
        );
        near.handle_control_message(SequenceMessage::Ack(number))
            .unwrap();
    }
    assert_eq!(sent, ControlQuota::SHORT_LINK.bytes);
    near.push_frame(StreamFrame::Text("moved".into()));
    assert!(matches!(
        near.next_control_message(),
        Some(SequenceMessage::Frame {
            frame: StreamFrame::Text(_),
            ..
        })
    ));
    assert!(near.is_control_drained() && near.awaits_control_ack());
    near.push_frame(bytes_frame(1));
    near.push_frame(StreamFrame::Text("ended".into()));
    assert_eq!(
        near.next_control_message(),
        None,
        "a gap would be of no use"
    );
    assert!(!near.is_control_drained());
}

/// Text frames are acknowledged at once, bytes by a timer or with other messages.
#[test]
fn received_frames_are_acknowledged() {
    let [mut near, mut far] = attached_pair();
    near.push_frame(bytes_frame(5));
    send_all(&mut near, &mut far);
    assert!(
        far.take_frame().is_some()
            && far.has_unsent_ack()
            && far.next_relay_frame().is_none()
            && far.next_control_message().is_none()
    );
    far.request_ack();
    assert_eq!(far.next_control_message(), Some(SequenceMessage::Ack(1)));
    assert!(!far.has_unsent_ack());
    near.push_end();
    send_all(&mut near, &mut far);
    assert_eq!(far.take_frame(), None);
    assert!(far.has_peer_ended());
    send_all(&mut far, &mut near);
    assert_eq!(near.acknowledgement_state(), (true, true));
}

/// The peer may acknowledge it before anything else is sent. If the call's copy was lost, the relay
/// carries it.
#[test]
fn the_hello_of_a_call_is_the_first_frame_and_is_not_sent_again() {
    for arrived in [true, false] {
        let hello = Bytes::from_static(b"hello");
        let (mut near, mut far) = (
            FrameSequence::with_hello(hello.clone(), ControlQuota::HANDSHAKE),
            FrameSequence::new(ControlQuota::HANDSHAKE),
        );
        assert!(
            near.next_control_message().is_none()
                && near.is_control_drained()
                && near.awaits_control_ack()
        );
        if arrived {
            far.handle_control_message(SequenceMessage::Frame {
                number: 0,
                acknowledged: 0,
                frame: StreamFrame::Bytes(hello.clone()),
            })
            .unwrap();
            assert_eq!(far.take_frame(), Some(StreamFrame::Bytes(hello.clone())));
            far.push_frame(StreamFrame::Bytes(Bytes::from_static(b"who?")));
            near.handle_control_message(far.next_control_message().unwrap())
                .unwrap();
            assert!(!near.awaits_control_ack());
        }
        near.push_frame(StreamFrame::Bytes(Bytes::from_static(b"me")));
        let next = near.next_control_message();
        assert!(
            matches!(next, Some(SequenceMessage::Frame { number: 1, .. })),
            "{next:?}"
        );
        near.attach_relay();
        far.attach_relay();
        while let Some(frame) = near.next_relay_frame() {
            far.handle_relay_frame(frame).unwrap();
        }
        let rest: Vec<_> = std::iter::from_fn(|| far.take_frame()).collect();
        let all = [
            StreamFrame::Bytes(hello),
            StreamFrame::Bytes(Bytes::from_static(b"me")),
        ];
        assert_eq!(rest, all[usize::from(arrived)..]);
    }
}
