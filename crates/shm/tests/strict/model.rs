//! A strict domain against a model: whatever parties do, in whatever order, wherever they die and whatever they write in their
//! rings, each message arrives as it was sent, once and in order, and what the living hold comes back.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;

use nearpath_shm::channel::{self, ReceiveFault, State};
use nearpath_shm::region::{Access, Region};
use nearpath_shm::{Channel, Draft, End, Envelope, Kind, Lease, Member};
use proptest::prelude::*;

use super::party::{CAPACITY, ends, member};

const PARTIES: u16 = 3;
const SLOTS: usize = 24 + 4;

#[derive(Debug, Clone)]
enum Act {
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
    Lie {
        from: u16,
        by: u16,
        head: u32,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let party = || 0..PARTIES;
    prop_oneof![
        6 => (party(), party(), 0u32..3000).prop_map(|(from, to, bytes)| Act::Send { from, to, bytes }),
        6 => (party(), party()).prop_map(|(from, by)| Act::Receive { from, by }),
        3 => (party(), party()).prop_map(|(by, peer)| Act::Flush { by, peer }),
        1 => party().prop_map(|who| Act::Die { who }),
        1 => (party(), party(), any::<u8>()).prop_map(|(from, by, head)| Act::Lie { from, by, head: head.into() }),
    ]
}

/// A direction of a channel: what was sent and not taken, and whether its consumer keeps the rules.
#[derive(Default)]
struct Way {
    underway: VecDeque<(u64, u32)>,
    spoiled: bool,
}

struct World {
    members: BTreeMap<u16, Arc<Member>>,
    channels: BTreeMap<(u16, u16), Channel>,
    /// By owner and peer.
    ends: BTreeMap<(u16, u16), End>,
    ways: BTreeMap<(u16, u16), Way>,
    sent: u64,
}

impl World {
    fn new() -> Self {
        let members: BTreeMap<u16, Arc<Member>> = (0..PARTIES).map(|n| (n, member(n + 1))).collect();
        let mut world =
            Self { members, channels: BTreeMap::new(), ends: BTreeMap::new(), ways: BTreeMap::new(), sent: 0 };
        for (p, q) in (0..PARTIES).flat_map(|p| (p + 1..PARTIES).map(move |q| (p, q))) {
            let channel = Channel::create(CAPACITY).unwrap();
            let [caller, callee] = ends(&channel, &world.members[&p], &world.members[&q]);
            world.ends.extend([((p, q), caller), ((q, p), callee)]);
            world.channels.insert((p, q), channel);
        }
        world
    }

    fn step(&mut self, act: &Act) {
        match *act {
            Act::Send { from, to, bytes } => self.send(from, to, bytes),
            Act::Receive { from, by } => self.receive(from, by),
            Act::Flush { by, peer } => self.ends.get_mut(&(by, peer)).into_iter().for_each(End::flush),
            Act::Die { who } => self.die(who),
            Act::Lie { from, by, head } => self.lie(from, by, head),
        }
    }

    fn send(&mut self, from: u16, to: u16, bytes: u32) {
        let Some(end) = self.ends.get_mut(&(from, to)) else { return };
        let Ok(lease) = self.members[&from].claim(64 + bytes) else { return };
        self.sent += 1;
        let mut draft = Draft::new(lease);
        draft.body(&pattern(self.sent, bytes)).unwrap();
        let way = self.ways.entry((from, to)).or_default();
        if end.send(draft.finish(Envelope::new(Kind::Event, self.sent))).is_ok() {
            way.underway.push_back((self.sent, bytes));
        }
    }

    fn receive(&mut self, from: u16, by: u16) {
        let Some(end) = self.ends.get_mut(&(by, from)) else { return };
        let way = self.ways.entry((from, by)).or_default();
        if way.spoiled {
            let _ = end.receive(); // any of its sender's bytes, or a fault
            return;
        }
        match end.receive() {
            Ok(Some(message)) => {
                let (number, bytes) = way.underway.pop_front().expect("nothing comes that was not sent");
                assert_eq!((message.envelope().call, message.body()), (number, pattern(number, bytes)));
            }
            Ok(None) => assert!(way.underway.is_empty()),
            Err(ReceiveFault::Closed(State::Broken)) => {}
            Err(ReceiveFault::Closed(_)) => assert!(way.underway.is_empty(), "what the dead had sent comes first"),
            Err(fault) => panic!("an honest sender's message was refused: {fault}"),
        }
    }

    /// What the kernel and the node do: its mappings go, its channels are closed.
    fn die(&mut self, who: u16) {
        if self.members.len() == 1 || self.members.remove(&who).is_none() {
            return;
        }
        self.ends.retain(|(own, _), _| *own != who);
        for (&(caller, callee), channel) in &self.channels {
            if caller == who || callee == who {
                channel.close(if caller == who { State::CallerDead } else { State::CalleeDead });
            }
        }
    }

    fn lie(&mut self, from: u16, by: u16, head: u32) {
        let Some(channel) = self.channels.get(&(from.min(by), from.max(by))).filter(|_| from != by) else { return };
        let bytes = channel::bytes(CAPACITY) as usize;
        let region = Region::open(channel.as_fd().try_clone_to_owned().unwrap(), bytes, Access::Write).unwrap();
        let ring = if from < by { channel::HEADER } else { channel::answers_at(CAPACITY) };
        region.write(ring + 64, &head.to_le_bytes());
        self.ways.entry((from, by)).or_default().spoiled = true;
        // Its own sending may break down with the channel, no other.
        self.ways.entry((by, from)).or_default().spoiled = true;
    }

    /// Nobody's own account is touched by others: what a living party holds is what it sent and nobody has taken.
    fn check(&mut self) {
        for (&who, member) in &self.members {
            let honest = self.ways.iter().all(|((from, _), way)| *from != who || !way.spoiled);
            self.ends.iter_mut().filter(|((own, _), _)| *own == who).for_each(|(_, end)| _ = end.collect());
            let alive = |to: u16| self.members.contains_key(&to);
            let owed: u64 = self.ways.iter().filter(|((from, to), _)| *from == who && alive(*to)).map(Self::size).sum();
            assert!(!honest || member.held() >= owed, "{who} lost a slot that is underway");
        }
    }

    fn size((_, way): (&(u16, u16), &Way)) -> u64 {
        way.underway.iter().map(|(_, bytes)| if bytes + 64 <= 256 { 256 } else { 4096 }).sum()
    }

    /// All but one have died: it has all of its slots, whatever they did.
    fn last(mut self) {
        let last = *self.members.keys().next().expect("the last one does not die");
        (0..PARTIES).filter(|who| *who != last).for_each(|who| self.die(who));
        self.ends.values_mut().for_each(End::flush);
        let member = &self.members[&last];
        assert_eq!(member.held(), 0);
        let all: Vec<Lease> = std::iter::from_fn(|| member.claim(64).ok()).collect();
        assert_eq!(all.len(), SLOTS, "every slot is found again");
    }
}

/// Bytes of which any part tells which message it belongs to.
fn pattern(number: u64, bytes: u32) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(bytes as usize).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]
    #[test]
    fn messages_arrive_whole_and_slots_come_back(acts in proptest::collection::vec(act(), 0..120)) {
        let mut world = World::new();
        for act in &acts {
            world.step(act);
            world.check();
        }
        world.last();
    }
}
