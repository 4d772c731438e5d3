//! A million descriptors and messages, random and nearly right, against a pool, shared or strict. `NEARPATH_SHM_RANDOM` is another number of
//! them; `make asan` runs ten million under the address sanitizer.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::sync::Arc;

use nearpath_shm::geometry::Size;
use nearpath_shm::reclaim;
use nearpath_shm::region::{Access, Pages, Region};
use nearpath_shm::word::Word;
use nearpath_shm::{Descriptor, Envelope, Foreign, Kind, Lease, Member, Message, Party, Payload, Pool, Slot};
use proptest::test_runner::{RngAlgorithm, TestRng};

const SLOT: u32 = 256;
const CANARY: [u8; SLOT as usize] = [0xc5; SLOT as usize];

struct Dice(TestRng);

impl Dice {
    fn roll(&mut self) -> u64 {
        use proptest::prelude::Rng;
        self.0.next_u64()
    }

    fn below(&mut self, sides: u64) -> u64 {
        self.roll() % sides
    }

    /// Any descriptor, or the right one with up to three of its bits changed.
    fn descriptor(&mut self, right: Descriptor) -> Descriptor {
        if self.below(4) == 0 {
            return Descriptor::from_words([self.roll(), self.roll()]);
        }
        let mut words = right.to_words();
        for _ in 0..self.below(4) {
            words[self.below(2) as usize] ^= 1 << self.below(64);
        }
        Descriptor::from_words(words)
    }

    /// A slot's content: an envelope and a head with some bytes changed.
    fn content(&mut self) -> [u8; SLOT as usize] {
        let mut bytes = [0; SLOT as usize];
        let envelope = Envelope { head: 24, body: 100, total: 100, ..Envelope::new(Kind::Call, 1) };
        bytes[..64].copy_from_slice(&envelope.to_bytes());
        bytes[64..88].copy_from_slice(b"\x07\x00\x04\x00:methodPOST\x01\x00\x04\x00xabcd");
        for _ in 0..self.below(6) {
            bytes[self.below(96) as usize] = self.roll() as u8;
        }
        bytes
    }
}

struct Scene {
    pool: Arc<Pool>,
    sender: Arc<Member>,
    receiver: Arc<Member>,
    canaries: [Lease; 2],
    raw: Arc<Region>,
}

impl Scene {
    fn new() -> Self {
        let pool = Arc::new(Pool::create(&[Size { size: SLOT, count: 3 }], Pages::Small).unwrap());
        let member = |number| Member::new(Arc::clone(&pool), Party::new(number).unwrap(), u64::MAX);
        let guard = member(3);
        let mut slots = [(); 3].map(|()| guard.claim(SLOT).unwrap());
        slots.iter_mut().for_each(|lease| assert!(lease.write(0, &CANARY)));
        let [first, middle, last] = slots;
        drop(middle); // the one in play, between two that nobody may touch
        let raw = Region::open(pool.as_fd().try_clone_to_owned().unwrap(), pool.bytes(), Access::Write).unwrap();
        Self { sender: member(1), receiver: member(2), canaries: [first, last], pool, raw }
    }

    /// One message, honest or not; whether it was accepted and whether it could be read.
    fn play(&self, dice: &mut Dice) -> (bool, bool) {
        let mut lease = self.sender.claim(SLOT).unwrap();
        lease.write(0, &dice.content());
        let offer = lease.offer(self.receiver.party()).unwrap();
        let right = offer.descriptor(0, SLOT);
        let descriptor = dice.descriptor(right);
        let Ok(lease) = self.receiver.accept(&descriptor, self.sender.party()) else { return (false, false) };
        assert_eq!((descriptor.slot, descriptor.generation), (right.slot, right.generation));
        assert!(descriptor.offset + descriptor.length <= SLOT);
        offer.sent();
        let Ok(message) = Message::read(lease, &descriptor) else { return (true, false) };
        let read = message.head(&mut Vec::new()).map(Iterator::count).is_ok();
        assert_eq!(message.body().len(), message.body_len() as usize);
        drop(message.forward(Envelope::new(Kind::Answer, 1)));
        (true, read)
    }

    fn check(&self) {
        let mut copy = [0; SLOT as usize];
        for lease in &self.canaries {
            assert!(lease.read(0, &mut copy) && copy == CANARY, "somebody wrote outside its slot");
        }
        assert_eq!(reclaim::usage(&self.pool).len(), 1, "only the canaries are held");
    }

    /// Sets the generation of the slot in play, so that small ones and wrapping ones come up, too.
    fn set_generation(&self, generation: u32) {
        let at = self.pool.geometry().classes()[0].words + 8 * u64::from(Slot::new(0, 1).index());
        assert!(self.raw.write(at, &Word::free(generation).0.to_le_bytes()));
    }
}

fn rounds() -> u64 {
    std::env::var("NEARPATH_SHM_RANDOM").map_or(1_000_000, |text| text.parse().unwrap())
}

#[test]
fn random_messages_do_no_harm() {
    let rounds = rounds();
    let mut dice = Dice(TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let scene = Scene::new();
    let (mut accepted, mut read) = (0, 0);
    for round in 0..rounds {
        if round % 1000 == 0 {
            scene.set_generation(dice.roll() as u32);
            scene.check();
        }
        let (was_accepted, was_read) = scene.play(&mut dice);
        accepted += u64::from(was_accepted);
        read += u64::from(was_read);
    }
    scene.check();
    assert!(read > rounds / 20 && read < accepted && accepted < rounds / 2, "{read} read, {accepted} accepted");
}

/// What a strict receiver copies is one of the sender's slots or a part of one, and all that it says is about the copy.
#[test]
fn random_messages_of_a_strict_peer_do_no_harm() {
    let rounds = rounds();
    let mut dice = Dice(TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let pool = Arc::new(Pool::create_own(&[Size { size: SLOT, count: 3 }]).unwrap());
    let foreign = Foreign::open(pool.as_fd().try_clone_to_owned().unwrap(), pool.bytes()).unwrap();
    let sender = Member::new(pool, Party::new(1).unwrap(), u64::MAX);
    let (mut copied, mut read) = (0, 0);
    for _ in 0..rounds {
        let mut lease = sender.claim(SLOT).unwrap();
        lease.write(0, &dice.content());
        let right = Descriptor { slot: lease.slot(), generation: lease.generation(), offset: 0, length: SLOT };
        let descriptor = dice.descriptor(right);
        let Ok(copy) = foreign.copy(&descriptor) else { continue };
        assert!(descriptor.slot.index() < 3 && descriptor.offset + descriptor.length <= SLOT);
        assert_eq!(copy.len(), descriptor.length as usize);
        copied += 1;
        let Ok(message) = Message::copied(copy) else { continue };
        read += u64::from(message.head(&mut Vec::new()).map(Iterator::count).is_ok());
        assert_eq!(message.body().len(), message.body_len() as usize);
        let body = message.body();
        assert_eq!(Payload::new(message).as_ref(), body);
    }
    assert!(read > rounds / 20 && read < copied && copied < rounds, "{read} read, {copied} copied");
}
