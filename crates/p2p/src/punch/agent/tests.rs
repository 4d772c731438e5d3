//! Tests of a follower, with hand-written probes of its leader.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nearpath_types::SpiffeId;

use super::{AgentAction, AgentEvent, AgentState, PunchAgent, PunchMessage, PunchSettings};
use crate::punch::candidate::{Candidate, CandidateKind, PairKey, Transport};
use crate::punch::probe::Probe;
use crate::punch::session::{PunchGrant, PunchSession, SessionRole};

const FOLLOWER_BASE: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
    40_000,
);

/// Minimal leader.
struct LeaderModel {
    session: PunchSession,
    number: u64,
    follower: PunchAgent,
    now: Instant,
}

fn pair_key(port: u16) -> PairKey {
    PairKey {
        transport: Transport::Udp,
        base: FOLLOWER_BASE,
        remote: SocketAddr::from(([192, 0, 2, 1], port)),
    }
}

impl LeaderModel {
    fn new() -> Self {
        let grant = PunchGrant {
            id: [1; 16],
            secret: [2; 32],
            expires: 9,
        };
        let (a, b) = (
            SpiffeId::for_gateway("test", "a"),
            SpiffeId::for_gateway("test", "b"),
        );
        let now = Instant::now();
        let session =
            |me, peer| PunchSession::new(&grant, me, peer, now + Duration::from_secs(60)).unwrap();
        let mut follower = PunchAgent::new(session(&b, &a), PunchSettings::default(), 3, now);
        let local = AgentEvent::LocalCandidate {
            kind: CandidateKind::Host,
            transport: Transport::Udp,
            addr: FOLLOWER_BASE,
            base: FOLLOWER_BASE,
        };
        follower.handle_event(local, now);
        Self {
            session: session(&a, &b),
            number: 0,
            follower,
            now,
        }
    }

    /// Sends a probe from a port. Returns the probes that come back, and the pair that the follower
    /// takes.
    fn send_probe(
        &mut self,
        port: u16,
        answer: Option<u64>,
        nominates: Option<u16>,
    ) -> (Vec<Probe>, Option<PairKey>) {
        self.number += 1;
        let ask = answer.is_none().then_some(self.number);
        let probe = Probe {
            sender: SessionRole::Leader,
            nonce: 1,
            request: ask,
            response: answer,
            nomination: nominates,
            mapped_addr: None,
        };
        let bytes = probe.encode(&self.session).to_vec();
        let actions = self.follower.handle_event(
            AgentEvent::Datagram {
                base: FOLLOWER_BASE,
                from: pair_key(port).remote,
                bytes,
            },
            self.now,
        );
        let back = actions.iter().filter_map(|action| match action {
            AgentAction::Send { bytes, .. } => Probe::decode(bytes, &self.session).ok(),
            _ => None,
        });
        let used = actions.iter().find_map(|action| match action {
            AgentAction::UsePair(key) => Some(*key),
            _ => None,
        });
        (back.collect(), used)
    }

    /// Delivers an event to the follower.
    fn deliver(&mut self, event: AgentEvent) -> Vec<AgentAction> {
        self.follower.handle_event(event, self.now)
    }

    /// Makes a pair valid for the follower.
    fn make_valid(&mut self, port: u16) {
        let (back, _) = self.send_probe(port, None, None);
        let asked = back
            .iter()
            .find_map(|probe| probe.request)
            .expect("it asks as well");
        self.send_probe(port, Some(asked), None);
    }
}

#[test]
fn a_follower_agrees_to_valid_pairs_only() {
    let mut leader = LeaderModel::new();
    let (back, used) = leader.send_probe(1, None, Some(1));
    assert_eq!((back.len(), back[0].nomination, used), (1, None, None));
    leader.make_valid(1);
    let (back, used) = leader.send_probe(1, None, Some(1));
    assert_eq!(
        (back.len(), back[0].nomination, used),
        (1, Some(1), Some(pair_key(1)))
    );
}

#[test]
fn the_newest_nomination_counts_and_may_be_repeated() {
    let mut leader = LeaderModel::new();
    leader.make_valid(1);
    leader.make_valid(2);
    assert_eq!(leader.send_probe(2, None, Some(2)).1, Some(pair_key(2)));
    let (back, used) = leader.send_probe(1, None, Some(1));
    assert_eq!((back[0].nomination, used), (None, None), "it is older");
    let (back, used) = leader.send_probe(1, None, Some(2));
    assert_eq!(
        (back[0].nomination, used),
        (None, None),
        "it was for another pair"
    );
    let (back, used) = leader.send_probe(2, None, Some(2));
    assert_eq!(
        (back[0].nomination, used),
        (Some(2), None),
        "its answer was lost"
    );
    assert_eq!(leader.send_probe(1, None, Some(3)).1, Some(pair_key(1)));
    assert_eq!(leader.follower.state(), AgentState::Direct(pair_key(1)));
}

#[test]
fn a_relayed_follower_refuses_every_proposal() {
    let mut leader = LeaderModel::new();
    leader.make_valid(1);
    leader
        .follower
        .handle_event(AgentEvent::PeerMessage(PunchMessage::FallBack), leader.now);
    assert_eq!(leader.send_probe(1, None, Some(1)), (Vec::new(), None));
    assert_eq!(leader.follower.state(), AgentState::Relayed);
}

#[test]
fn a_response_counts_for_the_requested_pair_once() {
    let mut leader = LeaderModel::new();
    let (back, _) = leader.send_probe(1, None, None);
    leader.send_probe(2, Some(back[0].request.unwrap()), None);
    assert_eq!(
        leader.send_probe(1, None, Some(1)).1,
        None,
        "the answer came from elsewhere"
    );
}

#[test]
fn each_request_gets_one_response_with_its_mapped_address() {
    let mut leader = LeaderModel::new();
    for port in 1..=16 {
        let (back, _) = leader.send_probe(port, None, None);
        assert_eq!(
            (back.len(), back[0].mapped_addr),
            (1, Some(pair_key(port).remote))
        );
    }
    assert!(
        leader.send_probe(17, None, None).0.is_empty(),
        "so many addresses are none of one peer's"
    );
}

/// Creates a follower that has dialled its only offered address.
fn dialed_follower() -> (LeaderModel, PairKey) {
    let mut leader = LeaderModel::new();
    let key = PairKey {
        transport: Transport::Tcp,
        ..pair_key(40_001)
    };
    leader.deliver(AgentEvent::LocalCandidate {
        kind: CandidateKind::Host,
        transport: Transport::Tcp,
        addr: FOLLOWER_BASE,
        base: FOLLOWER_BASE,
    });
    let offered = Candidate::new(CandidateKind::Reflexive, Transport::Tcp, key.remote, 1);
    assert!(has_dial(&leader.deliver(AgentEvent::PeerMessage(
        PunchMessage::Offer(vec![offered])
    ))));
    (leader, key)
}

fn has_dial(actions: &[AgentAction]) -> bool {
    actions
        .iter()
        .any(|action| matches!(action, AgentAction::Dial { .. }))
}

#[test]
fn a_dial_longer_than_its_interval_is_repeated_at_once() {
    let (mut leader, key) = dialed_follower();
    leader.now += Duration::from_millis(320);
    assert!(has_dial(&leader.deliver(AgentEvent::Disconnected(key))));
}

/// The handshake completed on this side only, and the peer has dialled again.
#[test]
fn an_unproven_connection_that_ends_is_dialed_again_after_an_interval() {
    let (mut leader, key) = dialed_follower();
    leader.deliver(AgentEvent::Connected(key));
    leader.now += Duration::from_millis(300);
    assert!(!has_dial(&leader.deliver(AgentEvent::Disconnected(key))));
    leader.now += Duration::from_millis(100);
    assert!(has_dial(&leader.deliver(AgentEvent::Tick)));
}

#[test]
fn a_silent_connection_is_closed_after_two_seconds() {
    let (mut leader, key) = dialed_follower();
    leader.deliver(AgentEvent::Connected(key));
    leader.now += Duration::from_millis(1_900);
    let probe = Probe {
        sender: SessionRole::Leader,
        nonce: 1,
        request: Some(1),
        response: None,
        nomination: None,
        mapped_addr: None,
    };
    let bytes = probe.encode(&leader.session).to_vec();
    leader.deliver(AgentEvent::Read { key, bytes });
    let closed = [1_900, 200].map(|later| {
        leader.now += Duration::from_millis(later);
        leader
            .deliver(AgentEvent::Tick)
            .contains(&AgentAction::Close(key))
    });
    assert_eq!(closed, [false, true]);
}
