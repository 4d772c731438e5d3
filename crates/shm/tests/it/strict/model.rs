//! A strict domain against a model, with endpoints that act in any order, die anywhere and write
//! anything in their rings. Each message arrives as it was sent, once and in order. Living
//! endpoints get their slots back.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;

use nearpath_shm::channel::{self, ChannelReceiveError, ChannelState};
use nearpath_shm::region::{MapAccess, Region};
use nearpath_shm::{Channel, ChannelEnd, Envelope, Lease, MessageDraft, MessageKind, PoolEndpoint};
use proptest::prelude::*;

use super::forging_endpoint::{RING_CAPACITY, channel_ends, strict_endpoint};

const ENDPOINTS: u16 = 3;
const SLOT_COUNT: usize = 24 + 4;

#[derive(Debug, Clone)]
enum StrictAction {
    Send {
        from: u16,
        to: u16,
        bytes: u32,
    },
    Receive {
        from: u16,
        by: u16,
    },
    Flush {
        by: u16,
        peer: u16,
    },
    Die {
        who: u16,
    },
    /// The receiver writes its `head`: it is hostile from now on.
    ForgeHead {
        from: u16,
        by: u16,
        head: u32,
    },
}

fn any_action() -> impl Strategy<Value = StrictAction> {
    let endpoint = || 0..ENDPOINTS;
    prop_oneof![
        6 => (endpoint(), endpoint(), 0u32..3000).prop_map(|(from, to, bytes)| StrictAction::Send { from, to, bytes }),
        6 => (endpoint(), endpoint()).prop_map(|(from, by)| StrictAction::Receive { from, by }),
        3 => (endpoint(), endpoint()).prop_map(|(by, peer)| StrictAction::Flush { by, peer }),
        1 => endpoint().prop_map(|who| StrictAction::Die { who }),
        1 => (endpoint(), endpoint(), any::<u8>()).prop_map(|(from, by, head)| StrictAction::ForgeHead { from, by, head: head.into() }),
    ]
}

/// A direction of a channel: what was sent and not taken, and whether its consumer keeps the rules.
#[derive(Default)]
struct ChannelDirection {
    in_flight: VecDeque<(u64, u32)>,
    corrupted: bool,
}

struct StrictModel {
    endpoints: BTreeMap<u16, Arc<PoolEndpoint>>,
    channels: BTreeMap<(u16, u16), Channel>,
    /// By owner and peer.
    ends: BTreeMap<(u16, u16), ChannelEnd>,
    directions: BTreeMap<(u16, u16), ChannelDirection>,
    sent: u64,
}

impl StrictModel {
    fn new() -> Self {
        let members: BTreeMap<u16, Arc<PoolEndpoint>> = (0..ENDPOINTS)
            .map(|n| (n, strict_endpoint(n + 1)))
            .collect();
        let mut world = Self {
            endpoints: members,
            channels: BTreeMap::new(),
            ends: BTreeMap::new(),
            directions: BTreeMap::new(),
            sent: 0,
        };
        for (p, q) in (0..ENDPOINTS).flat_map(|p| (p + 1..ENDPOINTS).map(move |q| (p, q))) {
            let channel = Channel::create(RING_CAPACITY).unwrap();
            let [caller, callee] =
                channel_ends(&channel, &world.endpoints[&p], &world.endpoints[&q]);
            world.ends.extend([((p, q), caller), ((q, p), callee)]);
            world.channels.insert((p, q), channel);
        }
        world
    }

    fn apply_action(&mut self, act: &StrictAction) {
        match *act {
            StrictAction::Send { from, to, bytes } => self.send_event(from, to, bytes),
            StrictAction::Receive { from, by } => self.receive_event(from, by),
            StrictAction::Flush { by, peer } => self
                .ends
                .get_mut(&(by, peer))
                .into_iter()
                .for_each(ChannelEnd::flush_batch),
            StrictAction::Die { who } => self.kill_endpoint(who),
            StrictAction::ForgeHead { from, by, head } => self.forge_head(from, by, head),
        }
    }

    fn send_event(&mut self, from: u16, to: u16, bytes: u32) {
        let Some(end) = self.ends.get_mut(&(from, to)) else {
            return;
        };
        let Ok(lease) = self.endpoints[&from].claim_slot(64 + bytes) else {
            return;
        };
        self.sent += 1;
        let mut draft = MessageDraft::new(lease);
        draft
            .append_body(&message_pattern(self.sent, bytes))
            .unwrap();
        let way = self.directions.entry((from, to)).or_default();
        if end
            .send_message(draft.finish(Envelope::new(MessageKind::Event, self.sent)))
            .is_ok()
        {
            way.in_flight.push_back((self.sent, bytes));
        }
    }

    fn receive_event(&mut self, from: u16, by: u16) {
        let Some(end) = self.ends.get_mut(&(by, from)) else {
            return;
        };
        let way = self.directions.entry((from, by)).or_default();
        if way.corrupted {
            let _ = end.receive_message(); // any of its sender's bytes, or a fault
            return;
        }
        match end.receive_message() {
            Ok(Some(message)) => {
                let (number, bytes) = way
                    .in_flight
                    .pop_front()
                    .expect("nothing comes that was not sent");
                assert_eq!(
                    (message.envelope().call, message.body_copy()),
                    (number, message_pattern(number, bytes))
                );
            }
            Ok(None) => assert!(way.in_flight.is_empty()),
            Err(ChannelReceiveError::Closed(ChannelState::Broken)) => {}
            Err(ChannelReceiveError::Closed(_)) => {
                assert!(
                    way.in_flight.is_empty(),
                    "what the dead had sent comes first"
                )
            }
            Err(fault) => panic!("an honest sender's message was refused: {fault}"),
        }
    }

    /// Does what kernel and node do after a death: the mappings go, the channels are closed.
    fn kill_endpoint(&mut self, who: u16) {
        if self.endpoints.len() == 1 || self.endpoints.remove(&who).is_none() {
            return;
        }
        self.ends.retain(|(own, _), _| *own != who);
        for (&(caller, callee), channel) in &self.channels {
            if caller == who || callee == who {
                channel.close_with(if caller == who {
                    ChannelState::CallerDead
                } else {
                    ChannelState::CalleeDead
                });
            }
        }
    }

    fn forge_head(&mut self, from: u16, by: u16, head: u32) {
        let Some(channel) = self
            .channels
            .get(&(from.min(by), from.max(by)))
            .filter(|_| from != by)
        else {
            return;
        };
        let bytes = channel::channel_bytes(RING_CAPACITY) as usize;
        let region = Region::open_sealed(
            channel.as_fd().try_clone_to_owned().unwrap(),
            bytes,
            MapAccess::Write,
        )
        .unwrap();
        let ring = if from < by {
            channel::CHANNEL_HEADER_BYTES
        } else {
            channel::answer_ring_offset(RING_CAPACITY)
        };
        region.write_bytes(ring + 64, &head.to_le_bytes());
        self.directions.entry((from, by)).or_default().corrupted = true;
        // Its own sending may break down with the channel, no other.
        self.directions.entry((by, from)).or_default().corrupted = true;
    }

    /// No endpoint changes another's account: a living endpoint holds the messages that it sent and
    /// that no peer has taken.
    fn check_held_bytes(&mut self) {
        for (&who, member) in &self.endpoints {
            let honest = self
                .directions
                .iter()
                .all(|((from, _), way)| *from != who || !way.corrupted);
            self.ends
                .iter_mut()
                .filter(|((own, _), _)| *own == who)
                .for_each(|(_, end)| _ = end.release_consumed());
            let alive = |to: u16| self.endpoints.contains_key(&to);
            let owed: u64 = self
                .directions
                .iter()
                .filter(|((from, to), _)| *from == who && alive(*to))
                .map(Self::in_flight_bytes)
                .sum();
            assert!(
                !honest || member.held_bytes() >= owed,
                "{who} lost a slot that is underway"
            );
        }
    }

    fn in_flight_bytes((_, way): (&(u16, u16), &ChannelDirection)) -> u64 {
        way.in_flight
            .iter()
            .map(|(_, bytes)| if bytes + 64 <= 256 { 256 } else { 4096 })
            .sum()
    }

    /// All but one have died: it has all of its slots, whatever they did.
    fn check_last_survivor(mut self) {
        let last = *self
            .endpoints
            .keys()
            .next()
            .expect("the last one does not die");
        (0..ENDPOINTS)
            .filter(|who| *who != last)
            .for_each(|who| self.kill_endpoint(who));
        self.ends.values_mut().for_each(ChannelEnd::flush_batch);
        let member = &self.endpoints[&last];
        assert_eq!(member.held_bytes(), 0);
        let all: Vec<Lease> = std::iter::from_fn(|| member.claim_slot(64).ok()).collect();
        assert_eq!(all.len(), SLOT_COUNT, "every slot is found again");
    }
}

/// Bytes of which any part tells which message it belongs to.
fn message_pattern(number: u64, bytes: u32) -> Vec<u8> {
    number
        .to_le_bytes()
        .into_iter()
        .cycle()
        .take(bytes as usize)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]
    #[test]
    fn messages_arrive_whole_and_slots_are_released(acts in proptest::collection::vec(any_action(), 0..120)) {
        let mut world = StrictModel::new();
        for act in &acts {
            world.apply_action(act);
            world.check_held_bytes();
        }
        world.check_last_survivor();
    }
}
