//! As much of TCP as punching meets: opening, by one side or both, refusing, and ending (RFC 9293 section 3.10).

use std::collections::HashMap;
use std::net::SocketAddr;

/// A segment. Data comes whole and in order once a connection is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    Syn,
    SynAck,
    Ack,
    Data(Vec<u8>),
    Rst,
    Fin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    SynSent,
    SynReceived,
    Established,
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
    open: HashMap<Tuple, (Phase, u64)>,
    dials: u64,
}

impl Stack {
    pub(super) fn phase(&self, tuple: &Tuple) -> Option<Phase> {
        self.open.get(tuple).map(|(phase, _)| *phase)
    }

    /// Sends a SYN; `None`: the tuple is taken. The number tells this dial from a later one.
    pub(super) fn dial(&mut self, tuple: Tuple) -> Option<u64> {
        if self.open.contains_key(&tuple) {
            return None;
        }
        self.dials += 1;
        self.open.insert(tuple, (Phase::SynSent, self.dials));
        Some(self.dials)
    }

    /// The dial took too long. `true`: it had not come to anything.
    pub(super) fn abandon(&mut self, tuple: &Tuple, dial: u64) -> bool {
        let waits = self.open.get(tuple).is_some_and(|&(phase, of)| of == dial && phase != Phase::Established);
        if waits {
            self.open.remove(tuple);
        }
        waits
    }

    /// `true`: there was a connection, which the peer must be told.
    pub(super) fn close(&mut self, tuple: &Tuple) -> bool {
        self.open.remove(tuple).is_some_and(|(phase, _)| phase == Phase::Established)
    }

    /// A segment came: the answer, and what the owner hears.
    pub(super) fn segment(&mut self, tuple: Tuple, segment: Segment) -> (Option<Segment>, Vec<Heard>) {
        let phase = self.phase(&tuple);
        match (segment, phase) {
            (Segment::Syn, None) if !self.listening => (Some(Segment::Rst), vec![]),
            (Segment::Syn, None | Some(Phase::SynSent | Phase::SynReceived)) => {
                self.enter(tuple, Phase::SynReceived);
                (Some(Segment::SynAck), vec![])
            }
            (Segment::SynAck, Some(Phase::SynSent | Phase::SynReceived)) => {
                self.enter(tuple, Phase::Established);
                (Some(Segment::Ack), vec![Heard::Connected])
            }
            (Segment::SynAck | Segment::Syn, Some(Phase::Established)) => (Some(Segment::Ack), vec![]),
            (Segment::Ack, Some(Phase::SynReceived)) => {
                self.enter(tuple, Phase::Established);
                (None, vec![Heard::Connected])
            }
            (Segment::Data(bytes), Some(Phase::SynReceived)) => {
                self.enter(tuple, Phase::Established); // its ACK was lost, or comes later
                (None, vec![Heard::Connected, Heard::Read(bytes)])
            }
            (Segment::Data(bytes), Some(Phase::Established)) => (None, vec![Heard::Read(bytes)]),
            (Segment::Rst | Segment::Fin, Some(_)) => {
                self.open.remove(&tuple);
                (None, vec![Heard::Ended])
            }
            (Segment::Ack, Some(Phase::Established)) | (Segment::Rst | Segment::Fin, None) => (None, vec![]),
            // Of a connection that is none here; the number of a challenge is wrong for who has just sent a SYN.
            (Segment::SynAck | Segment::Ack | Segment::Data(_), _) => (Some(Segment::Rst), vec![]),
        }
    }

    fn enter(&mut self, tuple: Tuple, phase: Phase) {
        self.open.entry(tuple).or_insert((phase, 0)).0 = phase;
    }
}
