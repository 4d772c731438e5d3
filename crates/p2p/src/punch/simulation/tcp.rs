//! As much of TCP as punching meets: opening, by one side or both, refusing, and ending (RFC 9293 section 3.10).

use std::collections::HashMap;
use std::net::SocketAddr;

/// A segment, as far as it tells two connections between the same addresses apart: each side has a number, for its sequence numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) what: What,
    pub(super) number: u64,
    /// The peer's, where it is known.
    pub(super) acknowledges: Option<u64>,
}

/// What a segment says. Data comes whole and in order once a connection is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Syn,
    SynAck,
    Ack,
    Data(Vec<u8>),
    Rst,
}

impl Segment {
    /// Of who has no such connection.
    pub(super) fn refused(&self) -> Self {
        Self { what: What::Rst, number: self.acknowledges.unwrap_or(0), acknowledges: Some(self.number) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    SynSent,
    SynReceived,
    Established,
}

#[derive(Debug)]
struct Connection {
    phase: Phase,
    number: u64,
    peers: Option<u64>,
}

impl Connection {
    fn says(&self, what: What) -> Segment {
        Segment { what, number: self.number, acknowledges: self.peers }
    }
}

/// What the owner of the sockets learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    Connected,
    Read(Vec<u8>),
    Ended,
}

/// Local and remote address.
pub(super) type Tuple = (SocketAddr, SocketAddr);

#[derive(Debug, Default)]
pub(super) struct Stack {
    pub(super) listening: bool,
    open: HashMap<Tuple, Connection>,
    numbers: u64,
}

impl Stack {
    pub(super) fn phase(&self, tuple: &Tuple) -> Option<Phase> {
        self.open.get(tuple).map(|connection| connection.phase)
    }

    /// That connection, not one before or after it between the same addresses.
    pub(super) fn phase_of(&self, tuple: &Tuple, number: u64) -> Option<Phase> {
        self.open.get(tuple).filter(|connection| connection.number == number).map(|connection| connection.phase)
    }

    /// Without a word.
    pub(super) fn forget(&mut self, tuple: &Tuple) {
        self.open.remove(tuple);
    }

    /// What the connection says, if there is one.
    pub(super) fn says(&self, tuple: &Tuple, what: What) -> Option<Segment> {
        self.open.get(tuple).map(|connection| connection.says(what))
    }

    /// A dial; `None`: the tuple is taken. The number tells it from a later one.
    pub(super) fn dial(&mut self, tuple: Tuple) -> Option<u64> {
        let taken = self.open.contains_key(&tuple);
        (!taken).then(|| self.enter(tuple, Phase::SynSent, None).number)
    }

    /// The dial took too long, and has not come to anything: it is [closed](Self::close).
    pub(super) fn abandon(&mut self, tuple: &Tuple, dial: u64) -> Option<Option<Segment>> {
        let waits = self.open.get(tuple).is_some_and(|open| open.number == dial && open.phase != Phase::Established);
        waits.then(|| self.close(tuple))
    }

    /// Leaves nothing behind. The peer, who may know of it, is told.
    pub(super) fn close(&mut self, tuple: &Tuple) -> Option<Segment> {
        let gone = self.open.remove(tuple).filter(|gone| gone.phase != Phase::SynSent)?;
        Some(gone.says(What::Rst))
    }

    /// A segment came: the answer, and what the owner hears.
    pub(super) fn segment(&mut self, tuple: Tuple, segment: Segment) -> (Option<Segment>, Vec<Heard>) {
        let Some(open) = self.open.get_mut(&tuple) else { return (self.unknown(tuple, &segment), vec![]) };
        let from_it = open.peers == Some(segment.number);
        let answers = segment.acknowledges == Some(open.number);
        match segment.what {
            What::Rst if from_it || (open.phase == Phase::SynSent && answers) => {
                self.open.remove(&tuple);
                (None, vec![Heard::Ended])
            }
            What::Rst => (None, vec![]),
            _ if open.phase == Phase::SynSent => open.begins(&segment, answers),
            // Of one that was or comes: a challenge (RFC 5961 sections 4 and 5).
            _ if !from_it => (Some(open.says(What::Ack)), vec![]),
            What::Syn if open.phase == Phase::SynReceived => (Some(open.says(What::SynAck)), vec![]),
            What::Syn => (Some(open.says(What::Ack)), vec![]),
            what if answers => open.goes_on(what),
            _ => (None, vec![]),
        }
    }

    /// Of a connection that is none here.
    fn unknown(&mut self, tuple: Tuple, segment: &Segment) -> Option<Segment> {
        match segment.what {
            What::Rst => None,
            What::Syn if self.listening => {
                Some(self.enter(tuple, Phase::SynReceived, Some(segment.number)).says(What::SynAck))
            }
            What::Syn | What::SynAck | What::Ack | What::Data(_) => Some(segment.refused()),
        }
    }

    fn enter(&mut self, tuple: Tuple, phase: Phase, peers: Option<u64>) -> &Connection {
        self.numbers += 1;
        let connection = Connection { phase, number: self.numbers, peers };
        self.open.entry(tuple).insert_entry(connection).into_mut()
    }
}

impl Connection {
    /// The first that comes after a SYN.
    fn begins(&mut self, segment: &Segment, answers: bool) -> (Option<Segment>, Vec<Heard>) {
        let (phase, answer, heard) = match segment.what {
            What::Syn => (Phase::SynReceived, What::SynAck, vec![]),
            What::SynAck if answers => (Phase::Established, What::Ack, vec![Heard::Connected]),
            _ if answers => return (None, vec![]), // a challenge that came before the SYN-ACK
            _ => return (Some(segment.refused()), vec![]),
        };
        (self.phase, self.peers) = (phase, Some(segment.number));
        (Some(self.says(answer)), heard)
    }

    /// The peer acknowledges this side's number: the connection is there, if it was not before.
    fn goes_on(&mut self, what: What) -> (Option<Segment>, Vec<Heard>) {
        let new = std::mem::replace(&mut self.phase, Phase::Established) == Phase::SynReceived;
        let answer = (what == What::SynAck).then(|| self.says(What::Ack));
        let read = match what {
            What::Data(bytes) => Some(Heard::Read(bytes)),
            _ => None,
        };
        (answer, new.then_some(Heard::Connected).into_iter().chain(read).collect())
    }
}
