//! Dials of the simulated sides, with their openings and retransmissions.

use std::time::Duration;

use crate::punch::agent::DialOpening;
use crate::punch::candidate::PairKey;

use super::tcp::{SegmentKind, TcpPhase};
use super::world::{PacketPayload, SimEvent, SimWorld};

impl SimWorld {
    pub(super) fn dial(
        &mut self,
        side: usize,
        key: PairKey,
        timeout: Duration,
        opening: Option<DialOpening>,
    ) {
        let Some(opening) = opening else {
            return self.dial_proper(side, key, timeout);
        };
        let tuple = (key.base, key.remote);
        if self.sides[side].stack.dial(tuple).is_none() {
            return;
        }
        self.sides[side].openings.insert(key, timeout);
        self.schedule(
            self.now + opening.period,
            SimEvent::OpeningEnd { side, key },
        );
        if let Some(syn) = self.sides[side].stack.segment_of(&tuple, SegmentKind::Syn) {
            let syn = PacketPayload::Segment(syn);
            self.send_packet_within(Some(opening.hop_limit), side, key, syn);
        }
    }

    /// Replaces the opening by the dial proper, unless the peer's SYN has come.
    pub(super) fn end_opening(&mut self, side: usize, key: PairKey) {
        let Some(timeout) = self.sides[side].openings.remove(&key) else {
            return;
        };
        let (tuple, stack) = ((key.base, key.remote), &mut self.sides[side].stack);
        match stack.connection_phase(&tuple) {
            Some(TcpPhase::SynReceived | TcpPhase::Established) => return,
            Some(TcpPhase::SynSent) => stack.remove(&tuple),
            None => (),
        }
        self.dial_proper(side, key, timeout);
    }

    fn dial_proper(&mut self, side: usize, key: PairKey, timeout: Duration) {
        let Some(dial) = self.sides[side].stack.dial((key.base, key.remote)) else {
            return;
        };
        self.schedule(
            self.now + timeout,
            SimEvent::DialTimeout { side, key, dial },
        );
        if timeout > Duration::from_secs(1) {
            self.schedule(
                self.now + Duration::from_secs(1),
                SimEvent::Retransmit {
                    side,
                    key,
                    number: dial,
                    left: 1,
                },
            );
        }
        let syn = self.sides[side]
            .stack
            .segment_of(&(key.base, key.remote), SegmentKind::Syn);
        self.send_segment(side, key, syn);
    }

    /// Retransmits as the kernel does: a SYN once after a second, a SYN-ACK three times.
    pub(super) fn retransmit(&mut self, side: usize, key: PairKey, number: u64, left: u8) {
        let tuple = (key.base, key.remote);
        let stack = &mut self.sides[side].stack;
        let kind = match stack.phase_of(&tuple, number) {
            Some(TcpPhase::SynSent) => SegmentKind::Syn,
            Some(TcpPhase::SynReceived) => SegmentKind::SynAck,
            Some(TcpPhase::Established) | None => return,
        };
        if kind == SegmentKind::SynAck && left == 0 {
            return stack.remove(&tuple);
        }
        let segment = stack.segment_of(&tuple, kind);
        self.send_segment(side, key, segment);
        if left > 0 {
            self.schedule(
                self.now + Duration::from_secs(1),
                SimEvent::Retransmit {
                    side,
                    key,
                    number,
                    left: left - 1,
                },
            );
        }
    }
}
