//! The part of TCP that punching needs: opening by one side or both, refusing and ending (RFC 9293
//! section 3.10).

use std::collections::HashMap;
use std::net::SocketAddr;

/// Segment. Each side's number stands for its sequence numbers, and tells connections between the
/// same addresses apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TcpSegment {
    pub(super) kind: SegmentKind,
    pub(super) number: u64,
    /// Number of the peer, if it is known.
    pub(super) acknowledges: Option<u64>,
}

/// Kind of a segment. Data arrives complete and in order on an open connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SegmentKind {
    Syn,
    SynAck,
    Ack,
    Data(Vec<u8>),
    Rst,
}

impl TcpSegment {
    /// Returns the refusal of a host without this connection.
    pub(super) fn to_rst(&self) -> Self {
        Self {
            kind: SegmentKind::Rst,
            number: self.acknowledges.unwrap_or(0),
            acknowledges: Some(self.number),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TcpPhase {
    SynSent,
    SynReceived,
    Established,
}

#[derive(Debug)]
struct SimConnection {
    phase: TcpPhase,
    number: u64,
    peer_number: Option<u64>,
}

impl SimConnection {
    fn segment(&self, kind: SegmentKind) -> TcpSegment {
        TcpSegment {
            kind,
            number: self.number,
            acknowledges: self.peer_number,
        }
    }
}

/// Event for the owner of the sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StackEvent {
    Connected,
    Read(Vec<u8>),
    Ended,
}

/// Local and remote address.
pub(super) type AddressPair = (SocketAddr, SocketAddr);

#[derive(Debug, Default)]
pub(super) struct TcpStack {
    pub(super) listening: bool,
    open: HashMap<AddressPair, SimConnection>,
    last_number: u64,
}

impl TcpStack {
    pub(super) fn connection_phase(&self, tuple: &AddressPair) -> Option<TcpPhase> {
        self.open.get(tuple).map(|connection| connection.phase)
    }

    /// Returns the phase of this very connection, not of another between the same addresses.
    pub(super) fn phase_of(&self, tuple: &AddressPair, number: u64) -> Option<TcpPhase> {
        self.open
            .get(tuple)
            .filter(|connection| connection.number == number)
            .map(|connection| connection.phase)
    }

    /// Removes a connection silently.
    pub(super) fn remove(&mut self, tuple: &AddressPair) {
        self.open.remove(tuple);
    }

    /// Creates a segment of a connection, if there is one.
    pub(super) fn segment_of(&self, tuple: &AddressPair, kind: SegmentKind) -> Option<TcpSegment> {
        self.open
            .get(tuple)
            .map(|connection| connection.segment(kind))
    }

    /// Dials; `None`: the addresses are in use. The number distinguishes the dial from a later one.
    pub(super) fn dial(&mut self, tuple: AddressPair) -> Option<u64> {
        let is_taken = self.open.contains_key(&tuple);
        (!is_taken).then(|| self.add_connection(tuple, TcpPhase::SynSent, None).number)
    }

    /// Aborts a dial that has timed out before it was established: it is [closed](Self::close).
    pub(super) fn abandon(&mut self, tuple: &AddressPair, dial: u64) -> Option<Option<TcpSegment>> {
        let is_pending = self
            .open
            .get(tuple)
            .is_some_and(|open| open.number == dial && open.phase != TcpPhase::Established);
        is_pending.then(|| self.close(tuple))
    }

    /// Removes a connection, and resets it at the peer if the peer may know of it.
    pub(super) fn close(&mut self, tuple: &AddressPair) -> Option<TcpSegment> {
        let closed = self
            .open
            .remove(tuple)
            .filter(|gone| gone.phase != TcpPhase::SynSent)?;
        Some(closed.segment(SegmentKind::Rst))
    }

    /// Handles a segment. Returns the answer and the owner's events.
    pub(super) fn handle_segment(
        &mut self,
        tuple: AddressPair,
        segment: TcpSegment,
    ) -> (Option<TcpSegment>, Vec<StackEvent>) {
        let Some(open) = self.open.get_mut(&tuple) else {
            return (self.answer_unknown(tuple, &segment), vec![]);
        };
        let is_from_peer = open.peer_number == Some(segment.number);
        let acknowledges_own = segment.acknowledges == Some(open.number);
        match segment.kind {
            SegmentKind::Rst
                if is_from_peer || (open.phase == TcpPhase::SynSent && acknowledges_own) =>
            {
                self.open.remove(&tuple);
                (None, vec![StackEvent::Ended])
            }
            SegmentKind::Rst => (None, vec![]),
            _ if open.phase == TcpPhase::SynSent => open.handle_first(&segment, acknowledges_own),
            // Segment of another connection between these addresses: challenge ACK (RFC 5961
            // sections 4 and 5).
            _ if !is_from_peer => (Some(open.segment(SegmentKind::Ack)), vec![]),
            SegmentKind::Syn if open.phase == TcpPhase::SynReceived => {
                (Some(open.segment(SegmentKind::SynAck)), vec![])
            }
            SegmentKind::Syn => (Some(open.segment(SegmentKind::Ack)), vec![]),
            what if acknowledges_own => open.handle_acknowledged(what),
            _ => (None, vec![]),
        }
    }

    /// Answers a segment of an unknown connection.
    fn answer_unknown(&mut self, tuple: AddressPair, segment: &TcpSegment) -> Option<TcpSegment> {
        match segment.kind {
            SegmentKind::Rst => None,
            SegmentKind::Syn if self.listening => Some(
                self.add_connection(tuple, TcpPhase::SynReceived, Some(segment.number))
                    .segment(SegmentKind::SynAck),
            ),
            SegmentKind::Syn | SegmentKind::SynAck | SegmentKind::Ack | SegmentKind::Data(_) => {
                Some(segment.to_rst())
            }
        }
    }

    fn add_connection(
        &mut self,
        tuple: AddressPair,
        phase: TcpPhase,
        peers: Option<u64>,
    ) -> &SimConnection {
        self.last_number += 1;
        let connection = SimConnection {
            phase,
            number: self.last_number,
            peer_number: peers,
        };
        self.open.entry(tuple).insert_entry(connection).into_mut()
    }
}

impl SimConnection {
    /// Handles the first segment after a SYN.
    fn handle_first(
        &mut self,
        segment: &TcpSegment,
        acknowledges_own: bool,
    ) -> (Option<TcpSegment>, Vec<StackEvent>) {
        let (phase, answer, events) = match segment.kind {
            SegmentKind::Syn => (TcpPhase::SynReceived, SegmentKind::SynAck, vec![]),
            SegmentKind::SynAck if acknowledges_own => (
                TcpPhase::Established,
                SegmentKind::Ack,
                vec![StackEvent::Connected],
            ),
            _ if acknowledges_own => return (None, vec![]), // a challenge that came before the SYN-ACK
            _ => return (Some(segment.to_rst()), vec![]),
        };
        (self.phase, self.peer_number) = (phase, Some(segment.number));
        (Some(self.segment(answer)), events)
    }

    /// Handles a segment that acknowledges this side's number, and so establishes the connection.
    fn handle_acknowledged(&mut self, kind: SegmentKind) -> (Option<TcpSegment>, Vec<StackEvent>) {
        let new =
            std::mem::replace(&mut self.phase, TcpPhase::Established) == TcpPhase::SynReceived;
        let answer = (kind == SegmentKind::SynAck).then(|| self.segment(SegmentKind::Ack));
        let read = match kind {
            SegmentKind::Data(bytes) => Some(StackEvent::Read(bytes)),
            _ => None,
        };
        (
            answer,
            new.then_some(StackEvent::Connected)
                .into_iter()
                .chain(read)
                .collect(),
        )
    }
}
