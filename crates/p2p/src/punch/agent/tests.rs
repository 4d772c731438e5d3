//! Tests of a follower, with hand-written probes of its leader.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nearpath_types::SpiffeId;

use super::{
    AgentAction, AgentEvent, AgentState, DialOpening, PunchAgent, PunchMessage, PunchSettings,
};
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
    follower_session: PunchSession,
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
            follower_session: session(&b, &a),
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

/// Offers an address to an agent, and returns its actions at each millisecond of the next 300.
fn actions_after_offer(
    role: SessionRole,
    transport: Transport,
    remote: SocketAddr,
) -> Vec<(u64, AgentAction)> {
    let mut model = LeaderModel::new();
    let session = match role {
        SessionRole::Leader => model.session.clone(),
        SessionRole::Follower => model.follower_session.clone(),
    };
    let mut agent = PunchAgent::new(session, PunchSettings::default(), 3, model.now);
    let local = AgentEvent::LocalCandidate {
        kind: CandidateKind::Host,
        transport,
        addr: FOLLOWER_BASE,
        base: FOLLOWER_BASE,
    };
    agent.handle_event(local, model.now);
    let offered = Candidate::new(CandidateKind::Reflexive, transport, remote, 1);
    let offer = AgentEvent::PeerMessage(PunchMessage::Offer(vec![offered]));
    let first = agent.handle_event(offer, model.now);
    let mut timed: Vec<_> = first.into_iter().map(|action| (0, action)).collect();
    for at in 1..300 {
        model.now += Duration::from_millis(1);
        let actions = agent.handle_event(AgentEvent::Tick, model.now);
        timed.extend(actions.into_iter().map(|action| (at, action)));
    }
    timed
}

#[test]
fn datagrams_open_the_own_nat_before_any_reaches_the_peers() {
    for role in [SessionRole::Leader, SessionRole::Follower] {
        let actions = actions_after_offer(role, Transport::Udp, pair_key(40_001).remote);
        let sent = actions.iter().filter_map(|(at, action)| match action {
            AgentAction::SendOpening { hop_limit, .. } => Some((*at, Some(*hop_limit))),
            AgentAction::Send { .. } => Some((*at, None)),
            _ => None,
        });
        let first: Vec<_> = sent.take(4).collect();
        let expected = [(0, Some(2)), (30, Some(3)), (70, None), (90, None)];
        assert_eq!(first, expected, "{role:?}");
    }
}

#[test]
fn the_follower_opens_its_nat_and_the_leader_dials() {
    let dials = |role| {
        let actions = actions_after_offer(role, Transport::Tcp, pair_key(40_001).remote);
        let dials = actions.into_iter().filter_map(|(at, action)| match action {
            AgentAction::Dial { opening, .. } => Some((at, opening)),
            _ => None,
        });
        dials.collect::<Vec<_>>()
    };
    assert_eq!(dials(SessionRole::Leader), [(70, None)]);
    let opening = DialOpening {
        hop_limit: 2,
        period: Duration::from_millis(100),
    };
    assert_eq!(dials(SessionRole::Follower), [(0, Some(opening))]);
}

#[test]
fn private_addresses_need_no_opening() {
    let remote = SocketAddr::from(([192, 168, 1, 2], 40_000));
    for role in [SessionRole::Leader, SessionRole::Follower] {
        let sent = actions_after_offer(role, Transport::Udp, remote);
        let is_probe = |(at, action): &(u64, AgentAction)| {
            *at == 0 && matches!(action, AgentAction::Send { .. })
        };
        assert!(sent.iter().any(is_probe), "{role:?}");
        let dials = actions_after_offer(role, Transport::Tcp, remote);
        let is_dial = |(at, action): &(u64, AgentAction)| {
            *at == 0 && matches!(action, AgentAction::Dial { opening: None, .. })
        };
        assert!(dials.iter().any(is_dial), "{role:?}");
    }
}
