//! Input from a peer in shared memory: a descriptor, and a slot with any content.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use nearpath_shm::geometry::{ClassSpec, PoolGeometry};
use nearpath_shm::region::PageKind;
use nearpath_shm::{Descriptor, EndpointId, PoolEndpoint, ReceivedMessage, SlotPool};

const SLOT: u32 = 1024;

static PARTIES: LazyLock<[Arc<PoolEndpoint>; 2]> = LazyLock::new(|| {
    let pool = Arc::new(
        SlotPool::create(
            &[ClassSpec {
                size: SLOT,
                count: 4,
            }],
            PageKind::Small,
        )
        .expect("memfd"),
    );
    [1, 2].map(|number| {
        PoolEndpoint::new(
            Arc::clone(&pool),
            EndpointId::new(number).expect("not 0"),
            u64::MAX,
        )
    })
});

fuzz_target!(|input: &[u8]| {
    let _ = PoolGeometry::from_bytes(input, 1 << 30);
    let Some((descriptor, content)) = input.split_first_chunk::<16>() else {
        return;
    };
    let [sender, receiver] = &*PARTIES;
    let mut lease = sender.claim_slot(SLOT).expect("nobody else claims");
    lease.write_bytes(0, &content[..content.len().min(SLOT as usize)]);
    let offer = lease.offer_to(receiver.id()).expect("held");
    // The fuzzer cannot guess slot and generation, and need not: `tests/it/random_input.rs` does that part.
    let words = Descriptor::from_bytes(*descriptor);
    let right = offer.descriptor(words.offset, words.length);
    assert!(
        receiver.accept_offer(&words, sender.id()).is_err() || words == right,
        "forged"
    );
    let Ok(lease) = receiver.accept_offer(&right, sender.id()) else {
        return;
    };
    offer.confirm_pushed();
    let Ok(message) = ReceivedMessage::from_slot(lease, &right) else {
        return;
    };
    assert!(right.offset + right.length <= SLOT);
    let mut head = Vec::new();
    if let Ok(fields) = message.copy_head(&mut head) {
        assert!(fields.count() <= 256);
    }
    assert_eq!(message.body_copy().len(), message.body_len() as usize);
});
