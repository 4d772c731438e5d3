//! Two sides, a line that loses what it likes and connections that break when they like: each reads what the other sent.

use std::collections::VecDeque;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

/// One side, what is on its way to it, and what was sent and taken, by number.
struct Side {
    pieces: Pieces,
    line: VecDeque<Saying>,
    relay: VecDeque<Piece>,
    attached: bool,
    sent: u64,
    taken: Vec<Piece>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Send {
        bytes: usize,
    },
    Word,
    Take,
    /// What time brings about.
    Tell,
    Say,
    Hear,
    /// Something said on the line does not come.
    Lose,
    Begin,
    Frame,
    Come,
    /// This side's end is gone, with what had not come.
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6000_usize).prop_map(|bytes| Step::Send { bytes }),
        1 => Just(Step::Word),
        4 => Just(Step::Take),
        1 => Just(Step::Tell),
        3 => Just(Step::Say),
        3 => Just(Step::Hear),
        1 => Just(Step::Lose),
        3 => Just(Step::Begin),
        6 => Just(Step::Frame),
        6 => Just(Step::Come),
        1 => Just(Step::Cut),
    ]
}

/// The piece with that number, which tells its number and its side.
fn nth(side: usize, number: u64, bytes: Option<usize>) -> Piece {
    match bytes {
        Some(len) => Piece::Bytes(Bytes::from(format!("{side} {number} {}", "x".repeat(len)))),
        None => Piece::Word(format!("{side} {number}")),
    }
}

fn number_of(piece: &Piece) -> String {
    let text = match piece {
        Piece::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        Piece::Word(text) => text.clone(),
    };
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

impl Side {
    fn new() -> Self {
        let (line, relay, taken) = Default::default();
        Self { pieces: Pieces::new(Share::BEGINNING), line, relay, attached: false, sent: 0, taken }
    }

    fn does(&mut self, step: Step, other: &mut Self, name: usize) {
        match step {
            Step::Send { .. } | Step::Word if !self.pieces.has_room() => (),
            Step::Send { bytes } => self.send(nth(name, self.sent, Some(bytes))),
            Step::Word => self.send(nth(name, self.sent, None)),
            Step::Take => self.taken.extend(self.pieces.take()),
            Step::Tell => self.pieces.tell(),
            Step::Say => other.line.extend(self.pieces.say()),
            Step::Hear => {
                let said = self.line.pop_front();
                said.into_iter().for_each(|saying| _ = self.pieces.heard(saying).unwrap());
            }
            Step::Lose => drop(self.line.pop_front()),
            Step::Begin if !self.attached => {
                self.attached = true;
                self.pieces.begin();
            }
            Step::Begin => (),
            Step::Frame => {
                let frame = self.pieces.frame();
                other.relay.extend(frame);
            }
            Step::Come => {
                if self.attached
                    && let Some(frame) = self.relay.pop_front()
                {
                    self.pieces.came(frame).unwrap();
                }
            }
            Step::Cut if self.attached => {
                self.cut();
                // The relay ends the other end, too; some of what it had read is passed on before.
                let passed = std::mem::take(&mut other.relay);
                if other.attached {
                    let read = passed.len() / 2;
                    for frame in passed.into_iter().take(read) {
                        other.pieces.came(frame).unwrap();
                    }
                    other.cut();
                }
            }
            Step::Cut => (),
        }
    }

    fn send(&mut self, piece: Piece) {
        self.sent += 1;
        self.pieces.send(piece);
    }

    fn cut(&mut self) {
        self.attached = false;
        self.pieces.cut();
        self.relay.clear();
    }
}

/// Until nothing is left to do, over one more connection.
fn settle(sides: &mut [Side; 2]) {
    sides.iter_mut().for_each(|side| {
        side.cut();
        side.line.clear();
    });
    sides.iter_mut().for_each(|side| side.pieces.begin());
    for _ in 0..1000 {
        for at in [0, 1] {
            let [one, other] = sides;
            let (side, other) = if at == 0 { (one, other) } else { (other, one) };
            side.attached = true;
            side.pieces.tell();
            other.relay.extend(side.pieces.frame());
            if let Some(frame) = side.relay.pop_front() {
                side.pieces.came(frame).unwrap();
            }
            side.taken.extend(side.pieces.take());
        }
    }
}

proptest! {
    #[test]
    fn each_side_reads_what_the_other_sent(steps in prop::collection::vec((0..2_usize, step()), 0..400)) {
        let mut sides = [Side::new(), Side::new()];
        for (at, step) in steps {
            let [one, other] = &mut sides;
            if at == 0 { one.does(step, other, 0) } else { other.does(step, one, 1) }
        }
        sides.iter_mut().for_each(|side| side.pieces.end());
        settle(&mut sides);
        for at in [0, 1] {
            let read: Vec<String> = sides[at].taken.iter().map(number_of).collect();
            let sent: Vec<String> = (0..sides[1 - at].sent).map(|number| format!("{} {number}", 1 - at)).collect();
            prop_assert_eq!(read, sent);
            prop_assert!(sides[at].pieces.peer_is_over());
            prop_assert_eq!(sides[at].pieces.is_acknowledged(), (true, true));
            prop_assert_eq!(sides[at].pieces.out.cost(), 0);
        }
    }
}

fn bytes(len: usize) -> Piece {
    Piece::Bytes(vec![7; len].into())
}

/// All that one side has to say, to the other.
fn flow(from: &mut Pieces, to: &mut Pieces) {
    while let Some(frame) = from.frame() {
        to.came(frame).unwrap();
    }
}

fn joined() -> [Pieces; 2] {
    let mut both = [Pieces::new(Share::BEGINNING), Pieces::new(Share::BEGINNING)];
    both.iter_mut().for_each(Pieces::begin);
    let [one, other] = &mut both;
    flow(one, other);
    flow(other, one);
    both
}

/// What is kept has a bound, for bytes and for empty pieces; reading makes room, before everything was read.
#[test]
fn a_writer_waits_for_the_reader() {
    for size in [0, 32 << 10] {
        let [mut near, mut far] = joined();
        let mut sent = 0;
        while near.has_room() {
            near.send(bytes(size));
            sent += 1;
            flow(&mut near, &mut far);
            flow(&mut far, &mut near);
        }
        assert!(sent * size <= MOST && near.out.cost() < MOST + EACH + (32 << 10));
        assert!(!far.is_full(), "what a peer may send is read");
        let mut taken = 0;
        while !near.has_room() {
            assert!(far.take().is_some());
            taken += 1;
            flow(&mut far, &mut near);
        }
        assert!(taken <= sent / 8, "{taken} of {sent}");
    }
}

#[test]
fn a_peer_that_lies_is_not_believed() {
    let [mut near, _] = joined();
    near.send(bytes(1));
    assert_eq!(near.heard(Saying::Has(2)), Err(Wrong::Unsent { has: 2, sent: 1 }));
    assert_eq!(near.came(Mark::Has { pieces: 2 }.frame()), Err(Wrong::Unsent { has: 2, sent: 1 }));
    assert_eq!(near.came(Mark::On { from: 9, has: 0 }.frame()), Err(Wrong::Gap { from: 9, has: 0 }));
    near.begin();
    assert_eq!(near.came(bytes(1)), Err(Wrong::Unmarked));
    assert_eq!(near.came(Mark::On { from: 1, has: 0 }.frame()), Err(Wrong::Gap { from: 1, has: 0 }));
    let far = Saying::Piece { number: u64::MAX, has: 0, piece: bytes(1) };
    assert_eq!((near.heard(far), near.take()), (Ok(true), None), "on the line, it comes again");
}

/// The line takes the first bytes and no more; a word after them all the same, if nothing is before it.
#[test]
fn the_line_takes_the_beginning() {
    let mut near = Pieces::new(Share::ALL_OF_LITTLE);
    let (mut said, mut number) = (0, 0);
    while said < Share::ALL_OF_LITTLE.bytes {
        while near.room_on_the_line() > 0 {
            assert_eq!(near.is_half_said(), said >= Share::ALL_OF_LITTLE.bytes / 2);
            near.send(bytes(near.room_on_the_line()));
            let Some(Saying::Piece { number: of, has: 0, piece: Piece::Bytes(piece) }) = near.say() else { panic!() };
            let is_the_last = said + piece.len() == Share::ALL_OF_LITTLE.bytes;
            assert_eq!((of, piece.len() >= WORTH_A_PIECE || is_the_last), (number, true));
            (said, number) = (said + piece.len(), number + 1);
        }
        assert!(near.out.cost() <= ON_ITS_WAY + EACH, "the rest waits for the peer");
        near.heard(Saying::Has(number)).unwrap();
    }
    assert_eq!(said, Share::ALL_OF_LITTLE.bytes);
    near.send(Piece::Word("moved".into()));
    assert!(matches!(near.say(), Some(Saying::Piece { piece: Piece::Word(_), .. })));
    assert!(near.is_said() && near.is_unheard());
    near.send(bytes(1));
    near.send(Piece::Word("ended".into()));
    assert_eq!(near.say(), None, "a gap would be of no use");
    assert!(!near.is_said());
}

/// A word is acknowledged at once, bytes when time says so, and with what is said anyway.
#[test]
fn what_came_is_told() {
    let [mut near, mut far] = joined();
    near.send(bytes(5));
    flow(&mut near, &mut far);
    assert!(far.take().is_some() && far.is_untold() && far.frame().is_none() && far.say().is_none());
    far.tell();
    assert_eq!(far.say(), Some(Saying::Has(1)));
    assert!(!far.is_untold());
    near.end();
    flow(&mut near, &mut far);
    assert_eq!(far.take(), None);
    assert!(far.peer_is_over());
    flow(&mut far, &mut near);
    assert_eq!(near.is_acknowledged(), (true, true));
}

/// The peer may say that it has it before anything else was sent; and it goes over the relay where the call's copy was lost.
#[test]
fn what_went_with_the_call_is_the_first_piece_and_is_not_said_again() {
    for arrived in [true, false] {
        let hello = Bytes::from_static(b"hello");
        let (mut near, mut far) = (Pieces::greeted(hello.clone(), Share::BEGINNING), Pieces::new(Share::BEGINNING));
        assert!(near.say().is_none() && near.is_said() && near.is_unheard());
        if arrived {
            far.heard(Saying::Piece { number: 0, has: 0, piece: Piece::Bytes(hello.clone()) }).unwrap();
            assert_eq!(far.take(), Some(Piece::Bytes(hello.clone())));
            far.send(Piece::Bytes(Bytes::from_static(b"who?")));
            near.heard(far.say().unwrap()).unwrap();
            assert!(!near.is_unheard());
        }
        near.send(Piece::Bytes(Bytes::from_static(b"me")));
        let next = near.say();
        assert!(matches!(next, Some(Saying::Piece { number: 1, .. })), "{next:?}");
        near.begin();
        far.begin();
        while let Some(frame) = near.frame() {
            far.came(frame).unwrap();
        }
        let rest: Vec<_> = std::iter::from_fn(|| far.take()).collect();
        let all = [Piece::Bytes(hello), Piece::Bytes(Bytes::from_static(b"me"))];
        assert_eq!(rest, all[usize::from(arrived)..]);
    }
}
