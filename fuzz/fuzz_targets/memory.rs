//! What a neighbour in shared memory can send: a descriptor, and a slot with whatever it wrote there.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use nearpath_shm::geometry::{Geometry, Size};
use nearpath_shm::region::Pages;
use nearpath_shm::{Descriptor, Member, Message, Party, Pool};

const SLOT: u32 = 1024;

static PARTIES: LazyLock<[Arc<Member>; 2]> = LazyLock::new(|| {
    let pool = Arc::new(Pool::create(&[Size { size: SLOT, count: 4 }], Pages::Small).expect("memfd"));
    [1, 2].map(|number| Member::new(Arc::clone(&pool), Party::new(number).expect("not 0"), u64::MAX))
});

fuzz_target!(|input: &[u8]| {
    let _ = Geometry::from_bytes(input, 1 << 30);
    let Some((descriptor, content)) = input.split_first_chunk::<16>() else { return };
    let [sender, receiver] = &*PARTIES;
    let mut lease = sender.claim(SLOT).expect("nobody else claims");
    lease.write(0, &content[..content.len().min(SLOT as usize)]);
    let offer = lease.offer(receiver.party()).expect("held");
    // The fuzzer cannot guess slot and generation, and need not: `tests/random.rs` does that part.
    let words = Descriptor::from_bytes(*descriptor);
    let right = offer.descriptor(words.offset, words.length);
    assert!(receiver.accept(&words, sender.party()).is_err() || words == right, "forged");
    let Ok(lease) = receiver.accept(&right, sender.party()) else { return };
    offer.sent();
    let Ok(message) = Message::read(lease, &right) else { return };
    assert!(right.offset + right.length <= SLOT);
    let mut head = Vec::new();
    if let Ok(fields) = message.head(&mut head) {
        assert!(fields.count() <= 256);
    }
    assert_eq!(message.body().len(), message.body_len() as usize);
});
