//! A million descriptors and messages, random and nearly right, against a pool, shared or strict.
//! `NEARPATH_SHM_RANDOM` is another number of them; `make asan` runs ten million under the address
//! sanitizer.

use std::os::fd::AsFd;
use std::sync::Arc;

use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::lease_word::LeaseWord;
use nearpath_shm::reclaim;
use nearpath_shm::region::{MapAccess, PageKind, Region};
use nearpath_shm::{
    Descriptor, EndpointId, Envelope, Lease, MessageKind, MessagePayload, PeerPool, PoolEndpoint,
    ReceivedMessage, SlotId, SlotPool,
};
use proptest::test_runner::{RngAlgorithm, TestRng};

const SLOT_BYTES: u32 = 256;
const CANARY: [u8; SLOT_BYTES as usize] = [0xc5; SLOT_BYTES as usize];

struct RandomInput(TestRng);

impl RandomInput {
    fn next_number(&mut self) -> u64 {
        use proptest::prelude::Rng;
        self.0.next_u64()
    }

    fn next_below(&mut self, sides: u64) -> u64 {
        self.next_number() % sides
    }

    /// Any descriptor, or the right one with up to three of its bits changed.
    fn next_descriptor(&mut self, right: Descriptor) -> Descriptor {
        if self.next_below(4) == 0 {
            return Descriptor::from_words([self.next_number(), self.next_number()]);
        }
        let mut words = right.to_words();
        for _ in 0..self.next_below(4) {
            words[self.next_below(2) as usize] ^= 1 << self.next_below(64);
        }
        Descriptor::from_words(words)
    }

    /// A slot's content: an envelope and a head with some bytes changed.
    fn slot_content(&mut self) -> [u8; SLOT_BYTES as usize] {
        let mut bytes = [0; SLOT_BYTES as usize];
        let envelope = Envelope {
            head: 24,
            body: 100,
            total: 100,
            ..Envelope::new(MessageKind::Call, 1)
        };
        bytes[..64].copy_from_slice(&envelope.to_bytes());
        bytes[64..88].copy_from_slice(b"\x07\x00\x04\x00:methodPOST\x01\x00\x04\x00xabcd");
        for _ in 0..self.next_below(6) {
            bytes[self.next_below(96) as usize] = self.next_number() as u8;
        }
        bytes
    }
}

struct CanaryPool {
    pool: Arc<SlotPool>,
    sender: Arc<PoolEndpoint>,
    receiver: Arc<PoolEndpoint>,
    canaries: [Lease; 2],
    raw_region: Arc<Region>,
}

impl CanaryPool {
    fn new() -> Self {
        let pool = Arc::new(
            SlotPool::create(
                &[ClassSpec {
                    size: SLOT_BYTES,
                    count: 3,
                }],
                PageKind::Small,
            )
            .unwrap(),
        );
        let member = |number| {
            PoolEndpoint::new(
                Arc::clone(&pool),
                EndpointId::new(number).unwrap(),
                u64::MAX,
            )
        };
        let guard = member(3);
        let mut slots = [(); 3].map(|()| guard.claim_slot(SLOT_BYTES).unwrap());
        slots
            .iter_mut()
            .for_each(|lease| assert!(lease.write_bytes(0, &CANARY)));
        let [first, middle, last] = slots;
        drop(middle); // the slot in use, between two that must not change
        let raw = Region::open_sealed(
            pool.as_fd().try_clone_to_owned().unwrap(),
            pool.region_bytes(),
            MapAccess::Write,
        )
        .unwrap();
        Self {
            sender: member(1),
            receiver: member(2),
            canaries: [first, last],
            pool,
            raw_region: raw,
        }
    }

    /// Sends a message, honest or not; returns whether it was accepted and whether it could be
    /// read.
    fn send_random(&self, rng: &mut RandomInput) -> (bool, bool) {
        let mut lease = self.sender.claim_slot(SLOT_BYTES).unwrap();
        lease.write_bytes(0, &rng.slot_content());
        let offer = lease.offer_to(self.receiver.id()).unwrap();
        let right = offer.descriptor(0, SLOT_BYTES);
        let descriptor = rng.next_descriptor(right);
        let Ok(lease) = self.receiver.accept_offer(&descriptor, self.sender.id()) else {
            return (false, false);
        };
        assert_eq!(
            (descriptor.slot, descriptor.generation),
            (right.slot, right.generation)
        );
        assert!(descriptor.offset + descriptor.length <= SLOT_BYTES);
        offer.confirm_pushed();
        let Ok(message) = ReceivedMessage::from_slot(lease, &descriptor) else {
            return (true, false);
        };
        let read = message
            .copy_head(&mut Vec::new())
            .map(Iterator::count)
            .is_ok();
        assert_eq!(message.body_copy().len(), message.body_len() as usize);
        drop(message.forward_with(Envelope::new(MessageKind::Answer, 1)));
        (true, read)
    }

    fn check_canaries(&self) {
        let mut copy = [0; SLOT_BYTES as usize];
        for lease in &self.canaries {
            assert!(
                lease.read_bytes(0, &mut copy) && copy == CANARY,
                "somebody wrote outside its slot"
            );
        }
        assert_eq!(
            reclaim::slot_usage(&self.pool).len(),
            1,
            "only the canaries are held"
        );
    }

    /// Sets the generation of the slot in play, so that small ones and wrapping ones come up, too.
    fn set_generation(&self, generation: u32) {
        let at = self.pool.geometry().classes()[0].words_offset
            + 8 * u64::from(SlotId::new(0, 1).index());
        assert!(
            self.raw_region
                .write_bytes(at, &LeaseWord::free(generation).0.to_le_bytes())
        );
    }
}

fn round_count() -> u64 {
    std::env::var("NEARPATH_SHM_RANDOM").map_or(1_000_000, |text| text.parse().unwrap())
}

#[test]
fn random_messages_do_no_harm() {
    let rounds = round_count();
    let mut rng = RandomInput(TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let scene = CanaryPool::new();
    let (mut accepted, mut read) = (0, 0);
    for round in 0..rounds {
        if round % 1000 == 0 {
            scene.set_generation(rng.next_number() as u32);
            scene.check_canaries();
        }
        let (was_accepted, was_read) = scene.send_random(&mut rng);
        accepted += u64::from(was_accepted);
        read += u64::from(was_read);
    }
    scene.check_canaries();
    assert!(
        read > rounds / 20 && read < accepted && accepted < rounds / 2,
        "{read} read, {accepted} accepted"
    );
}

/// A strict receiver copies one of the sender's slots or a part of one. All that the message
/// reports is about the copy.
#[test]
fn random_messages_of_a_strict_peer_do_no_harm() {
    let rounds = round_count();
    let mut rng = RandomInput(TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let pool = Arc::new(
        SlotPool::create_strict(&[ClassSpec {
            size: SLOT_BYTES,
            count: 3,
        }])
        .unwrap(),
    );
    let peer_pool = PeerPool::open_read_only(
        pool.as_fd().try_clone_to_owned().unwrap(),
        pool.region_bytes(),
    )
    .unwrap();
    let sender = PoolEndpoint::new(pool, EndpointId::new(1).unwrap(), u64::MAX);
    let (mut copied, mut read) = (0, 0);
    for _ in 0..rounds {
        let mut lease = sender.claim_slot(SLOT_BYTES).unwrap();
        lease.write_bytes(0, &rng.slot_content());
        let right = Descriptor {
            slot: lease.slot(),
            generation: lease.generation(),
            offset: 0,
            length: SLOT_BYTES,
        };
        let descriptor = rng.next_descriptor(right);
        let Ok(copy) = peer_pool.copy_message(&descriptor) else {
            continue;
        };
        assert!(descriptor.slot.index() < 3 && descriptor.offset + descriptor.length <= SLOT_BYTES);
        assert_eq!(copy.len(), descriptor.length as usize);
        copied += 1;
        let Ok(message) = ReceivedMessage::from_copy(copy) else {
            continue;
        };
        read += u64::from(
            message
                .copy_head(&mut Vec::new())
                .map(Iterator::count)
                .is_ok(),
        );
        assert_eq!(message.body_copy().len(), message.body_len() as usize);
        let body = message.body_copy();
        assert_eq!(MessagePayload::new(message).as_ref(), body);
    }
    assert!(
        read > rounds / 20 && read < copied && copied < rounds,
        "{read} read, {copied} copied"
    );
}
