//! Messages between two endpoints of a strict domain, and attempts of a hostile one.

use std::os::fd::AsFd;
use std::sync::Arc;

use nearpath_shm::channel::{ChannelReceiveError, ChannelSendError, ChannelState};
use nearpath_shm::descriptor::DescriptorError;
use nearpath_shm::endpoint::{AcceptOfferError, ClaimError};
use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::region::{MapAccess, PageKind, Region};
use nearpath_shm::{Descriptor, Envelope, MessageKind, MessagePayload, PeerPool, SlotId, SlotPool};

use super::forging_endpoint::{
    CLASS_SPECS, RING_CAPACITY, StrictPair, new_message, peer_view, strict_endpoint,
};

const CALL_RING_HEAD: u64 = 4096 + 64;

/// The pair, and its channel as somebody sees it who writes there what he likes.
fn pair_with_raw_channel() -> (StrictPair, Arc<Region>) {
    let pair = StrictPair::new();
    let bytes = nearpath_shm::channel::channel_bytes(RING_CAPACITY) as usize;
    let fd = pair.channel.as_fd().try_clone_to_owned().unwrap();
    (
        pair,
        Region::open_sealed(fd, bytes, MapAccess::Write).unwrap(),
    )
}

fn push_raw(region: &Region, tail: u32, descriptor: Descriptor) {
    region.write_bytes(4096 + 192 + 16 * u64::from(tail), &descriptor.to_bytes());
    region.write_bytes(4096, &(tail + 1).to_le_bytes());
}

#[test]
fn a_call_is_answered() {
    let mut pair = StrictPair::new();
    pair.caller
        .send_message(new_message(
            &pair.endpoints[0],
            MessageKind::Call,
            7,
            b"how far?",
        ))
        .unwrap();
    pair.caller.flush_batch();
    assert_eq!(
        pair.endpoints[0].held_bytes(),
        256,
        "the slot stays the caller's"
    );
    let call = pair.callee.receive_message().unwrap().unwrap();
    assert_eq!(
        (call.envelope().call, call.body_copy()),
        (7, b"how far?".to_vec())
    );
    assert_eq!(
        call.copy_head(&mut Vec::new()).unwrap().get(":method"),
        Some(&b"POST"[..])
    );
    assert_eq!(
        pair.endpoints[1].held_bytes(),
        0,
        "and the callee has a copy"
    );
    pair.callee
        .send_message(new_message(
            &pair.endpoints[1],
            MessageKind::Answer,
            7,
            b"near",
        ))
        .unwrap();
    pair.callee.flush_batch();
    assert_eq!(
        pair.caller.receive_message().unwrap().unwrap().body_copy(),
        b"near"
    );
    pair.caller.flush_batch();
    pair.callee.flush_batch();
    assert_eq!(
        pair.endpoints.each_ref().map(|member| member.held_bytes()),
        [0, 0]
    );
    assert_eq!(
        MessagePayload::new(call).as_ref(),
        b"how far?",
        "it is kept as long as one likes"
    );
}

#[test]
fn a_copied_message_has_no_slot_to_forward() {
    let mut pair = StrictPair::new();
    let mut take = |call| {
        pair.caller
            .send_message(new_message(
                &pair.endpoints[0],
                MessageKind::Call,
                call,
                b"body",
            ))
            .unwrap();
        pair.callee.receive_message().unwrap().unwrap()
    };
    assert!(take(1).into_lease().is_none());
    assert!(
        take(2)
            .forward_with(Envelope::new(MessageKind::Answer, 2))
            .is_none()
    );
}

/// Slots come back when the peer has taken what was in them, not before: then there is none.
#[test]
fn slots_are_released_when_the_peer_moves_its_head() {
    let mut pair = StrictPair::new();
    let large = vec![1; 3000];
    for call in 0..4 {
        pair.caller
            .send_message(new_message(
                &pair.endpoints[0],
                MessageKind::Call,
                call,
                &large,
            ))
            .unwrap();
    }
    pair.caller.flush_batch();
    assert_eq!(
        pair.endpoints[0].claim_slot(4096).unwrap_err(),
        ClaimError::Exhausted
    );
    assert_eq!(
        pair.callee
            .receive_message()
            .unwrap()
            .unwrap()
            .envelope()
            .call,
        0
    );
    assert_eq!(pair.caller.release_consumed(), 1);
    drop(pair.endpoints[0].claim_slot(4096).unwrap());
    assert!(!pair.caller.is_drained(), "three are unread");
    (1..4).for_each(|call| {
        assert_eq!(
            pair.callee
                .receive_message()
                .unwrap()
                .unwrap()
                .envelope()
                .call,
            call
        )
    });
    assert!(pair.caller.is_drained() && pair.endpoints[0].held_bytes() == 0);
}

/// A consumed message is overwritten, so that later readers of the pool do not find it.
#[test]
fn a_consumed_message_is_cleared() {
    let mut pair = StrictPair::new();
    let marker = b"the secret of somebody else";
    pair.caller
        .send_message(new_message(
            &pair.endpoints[0],
            MessageKind::Call,
            1,
            marker,
        ))
        .unwrap();
    let bytes = |pair: &StrictPair| {
        let fd = pair.endpoints[0]
            .pool()
            .as_fd()
            .try_clone_to_owned()
            .unwrap();
        let region = Region::open_read_only(fd, pair.endpoints[0].pool().region_bytes()).unwrap();
        region.copy_bytes(0, region.len()).unwrap()
    };
    let holds = |bytes: &[u8]| bytes.windows(marker.len()).any(|window| window == marker);
    assert!(
        holds(&bytes(&pair)),
        "underway, a peer of its sender can read it"
    );
    pair.callee.receive_message().unwrap().unwrap();
    pair.caller.flush_batch();
    assert!(!holds(&bytes(&pair)));
}

#[test]
fn a_dead_callee_leaks_no_slots() {
    let mut pair = StrictPair::new();
    for call in 0..3 {
        pair.caller
            .send_message(new_message(
                &pair.endpoints[0],
                MessageKind::Call,
                call,
                b"",
            ))
            .unwrap();
    }
    std::mem::forget(pair.callee.receive_message().unwrap().unwrap()); // it dies with it
    pair.channel.close_with(ChannelState::CalleeDead);
    pair.caller.flush_batch();
    assert_eq!(pair.endpoints[0].held_bytes(), 0);
    let fault = pair
        .caller
        .send_message(new_message(&pair.endpoints[0], MessageKind::Call, 3, b""))
        .unwrap_err();
    assert_eq!(
        fault.error,
        ChannelSendError::Closed(ChannelState::CalleeDead)
    );
    drop(fault);
    assert_eq!(pair.endpoints[0].held_bytes(), 0);
}

#[test]
fn messages_of_a_dead_caller_still_arrive() {
    let mut pair = StrictPair::new();
    pair.caller
        .send_message(new_message(
            &pair.endpoints[0],
            MessageKind::Event,
            1,
            b"last words",
        ))
        .unwrap();
    pair.channel.close_with(ChannelState::CallerDead);
    drop((pair.caller, pair.endpoints)); // its mapping goes, the peer's stays
    assert_eq!(
        pair.callee.receive_message().unwrap().unwrap().body_copy(),
        b"last words"
    );
    assert_eq!(
        pair.callee.receive_message().unwrap_err(),
        ChannelReceiveError::Closed(ChannelState::CallerDead)
    );
}

/// A sender takes its slots back when the node says that the receiver is dead. If it is not, what
/// it reads is no message.
#[test]
fn an_endpoint_marked_dead_receives_nothing() {
    let mut pair = StrictPair::new();
    pair.caller
        .send_message(new_message(&pair.endpoints[0], MessageKind::Event, 1, b""))
        .unwrap();
    pair.channel.close_with(ChannelState::CalleeDead);
    assert_eq!(
        pair.callee.receive_message().unwrap_err(),
        ChannelReceiveError::Closed(ChannelState::CalleeDead)
    );
}

#[test]
fn a_descriptor_reaches_only_slots_of_its_sender() {
    let refused = |descriptor: Descriptor| {
        let (mut pair, region) = pair_with_raw_channel();
        push_raw(&region, 0, descriptor);
        let fault = pair.callee.receive_message().unwrap_err();
        assert_eq!(pair.channel.state(), ChannelState::Broken);
        fault
    };
    let right = Descriptor {
        slot: SlotId::new(0, 0),
        generation: 1,
        offset: 0,
        length: 64,
    };
    let bad = |fault| ChannelReceiveError::Refused(AcceptOfferError::Malformed(fault));
    let no_slot = bad(DescriptorError::NoSuchSlot);
    assert_eq!(
        refused(Descriptor {
            slot: SlotId::new(0, 24),
            ..right
        }),
        no_slot
    );
    assert_eq!(
        refused(Descriptor {
            slot: SlotId::new(2, 0),
            ..right
        }),
        no_slot
    );
    assert_eq!(
        refused(Descriptor {
            slot: SlotId(u32::MAX),
            ..right
        }),
        no_slot
    );
    assert_eq!(
        refused(Descriptor {
            generation: 0,
            ..right
        }),
        bad(DescriptorError::Generation)
    );
    assert_eq!(
        refused(Descriptor { offset: 4, ..right }),
        bad(DescriptorError::Unaligned)
    );
    assert_eq!(
        refused(Descriptor {
            length: 257,
            ..right
        }),
        bad(DescriptorError::TooLong)
    );
    assert_eq!(
        refused(Descriptor {
            offset: u32::MAX - 7,
            ..right
        }),
        bad(DescriptorError::TooLong)
    );
    assert!(
        matches!(refused(right), ChannelReceiveError::Malformed(_)),
        "a slot without a message"
    );
}

/// A descriptor of somebody else's, pushed by a third endpoint, names that endpoint's own bytes.
#[test]
fn a_copied_descriptor_names_a_slot_of_its_sender() {
    let (mut pair, region) = pair_with_raw_channel();
    let victim = strict_endpoint(3);
    let secret = new_message(&victim, MessageKind::Call, 9, b"not yours to send");
    let stolen = Descriptor {
        slot: secret.lease.slot(),
        generation: secret.lease.generation(),
        offset: 0,
        length: secret.length,
    };
    push_raw(&region, 0, stolen);
    assert!(
        matches!(
            pair.callee.receive_message().unwrap_err(),
            ChannelReceiveError::Malformed(_)
        ),
        "the thief's slot is empty"
    );
}

#[test]
fn a_receiver_with_a_forged_head_corrupts_only_its_own_messages() {
    let (mut pair, region) = pair_with_raw_channel();
    let channel = nearpath_shm::Channel::create(RING_CAPACITY).unwrap();
    let other = strict_endpoint(3);
    let [mut aside, mut third] =
        super::forging_endpoint::channel_ends(&channel, &pair.endpoints[0], &other);
    aside
        .send_message(new_message(
            &pair.endpoints[0],
            MessageKind::Call,
            1,
            b"for another",
        ))
        .unwrap();
    for call in 0..3 {
        pair.caller
            .send_message(new_message(
                &pair.endpoints[0],
                MessageKind::Call,
                call,
                b"",
            ))
            .unwrap();
    }
    region.write_bytes(CALL_RING_HEAD, &3u32.to_le_bytes());
    assert_eq!(pair.caller.release_consumed(), 3);
    region.write_bytes(CALL_RING_HEAD, &99u32.to_le_bytes());
    assert_eq!(pair.caller.release_consumed(), 0);
    let fault =
        pair.caller
            .send_message(new_message(&pair.endpoints[0], MessageKind::Call, 3, b""));
    drop(fault);
    pair.caller.flush_batch();
    aside.flush_batch();
    assert_eq!(
        third.receive_message().unwrap().unwrap().body_copy(),
        b"for another"
    );
}

#[test]
fn a_peer_pool_with_a_forged_header_is_refused() {
    let sizes = [ClassSpec { size: 64, count: 1 }];
    let pool = SlotPool::create_strict(&sizes).unwrap();
    let fd = || pool.as_fd().try_clone_to_owned().unwrap();
    assert!(PeerPool::open_read_only(fd(), pool.region_bytes()).is_ok());
    assert!(PeerPool::open_read_only(fd(), pool.region_bytes() + 4096).is_err());
    let huge = Region::create_read_only_for_others("np-test", 4096).unwrap();
    huge.write_bytes(0, &pool.geometry().to_bytes());
    let fd = huge.as_fd().try_clone_to_owned().unwrap();
    assert!(
        PeerPool::open_read_only(fd, 4096).is_err(),
        "the header promises more than there is"
    );
}

#[test]
fn a_pool_that_others_can_write_is_refused() {
    let pool = SlotPool::create(&CLASS_SPECS, PageKind::Small).unwrap();
    let fd = pool.as_fd().try_clone_to_owned().unwrap();
    assert_eq!(
        PeerPool::open_read_only(fd, pool.region_bytes())
            .unwrap_err()
            .kind(),
        std::io::ErrorKind::InvalidData
    );
    let own = strict_endpoint(1);
    drop(peer_view(&own));
}

/// An endpoint whose batch never ends flushes never: it needs no more slots than the ring has
/// places, and some.
#[test]
fn slots_are_released_without_a_flush() {
    let mut pair = StrictPair::new();
    for call in 0..1000 {
        pair.caller
            .send_message(new_message(
                &pair.endpoints[0],
                MessageKind::Event,
                call,
                b"",
            ))
            .unwrap();
        assert_eq!(
            pair.callee
                .receive_message()
                .unwrap()
                .unwrap()
                .envelope()
                .call,
            call
        );
    }
    assert!(pair.endpoints[0].held_bytes() <= 16 * 256);
}

/// Both at once, each on a thread of its own: every message is whole, and in its place.
#[test]
fn thousands_of_messages_pass_between_two_threads() {
    const MESSAGES: u64 = 50_000;
    let StrictPair {
        mut caller,
        mut callee,
        endpoints: [one, _two],
        ..
    } = StrictPair::new();
    let receiving = std::thread::spawn(move || {
        for expected in 0..MESSAGES {
            let message = loop {
                match callee.receive_message().unwrap() {
                    Some(message) => break message,
                    None => {
                        callee.flush_batch();
                        std::thread::yield_now();
                    }
                }
            };
            assert_eq!(message.envelope().call, expected);
            assert!(
                message
                    .body_copy()
                    .chunks(8)
                    .all(|chunk| chunk == expected.to_le_bytes())
            );
        }
        callee.flush_batch();
    });
    for number in 0..MESSAGES {
        let body = number.to_le_bytes().repeat(20);
        while caller.free_entries() == 0 {
            caller.flush_batch();
            std::thread::yield_now();
        }
        caller
            .send_message(new_message(&one, MessageKind::Event, number, &body))
            .unwrap();
        if number % 5 == 0 {
            caller.flush_batch();
        }
    }
    receiving.join().unwrap();
    caller.flush_batch();
    assert!(caller.is_drained() && one.held_bytes() == 0);
}
