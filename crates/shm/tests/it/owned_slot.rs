//! Bodies that are sent in place: whatever two endpoints do with them, each arrives unchanged, and
//! no slot is lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nearpath_shm::channel::Channel;
use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::message::DraftError;
use nearpath_shm::owned_slot::HEADROOM_BYTES;
use nearpath_shm::reclaim;
use nearpath_shm::region::PageKind;
use nearpath_shm::spin::SpinPolicy;
use nearpath_shm::wakeup_cell::{self, WakeupCell};
use nearpath_shm::{
    ChannelEnd, ChannelSide, EndpointId, Envelope, MessageKind, OwnedSlot, PoolEndpoint, SlotPool,
    copies,
};
use proptest::prelude::*;

const CLASS_SPECS: [ClassSpec; 3] = [
    ClassSpec {
        size: 256,
        count: 4,
    },
    ClassSpec {
        size: 1024,
        count: 4,
    },
    ClassSpec {
        size: 4096,
        count: 2,
    },
];

/// Two endpoints of one pool and the channel between them.
struct EndPair {
    pool: Arc<SlotPool>,
    ends: [ChannelEnd; 2],
    endpoints: [Arc<PoolEndpoint>; 2],
    _cells: [WakeupCell; 2],
}

fn end_pair() -> EndPair {
    let pool = Arc::new(SlotPool::create(&CLASS_SPECS, PageKind::Small).unwrap());
    let endpoint = |number| EndpointId::new(number).unwrap();
    let members =
        [1, 2].map(|number| PoolEndpoint::new(Arc::clone(&pool), endpoint(number), u64::MAX));
    let cells = [0, 1].map(|_| {
        WakeupCell::create(
            wakeup_cell::WakeupKind::Futex,
            SpinPolicy::new(Duration::ZERO),
        )
        .unwrap()
    });
    let channel = Channel::create(16).unwrap();
    let caller = channel.attach_end(
        ChannelSide::Caller,
        Arc::clone(&members[0]),
        endpoint(2),
        cells[1].wakeup_signal(),
    );
    let callee = channel.attach_end(
        ChannelSide::Callee,
        Arc::clone(&members[1]),
        endpoint(1),
        cells[0].wakeup_signal(),
    );
    EndPair {
        pool,
        ends: [caller, callee],
        endpoints: members,
        _cells: cells,
    }
}

/// A head of about the given number of bytes.
fn head_value(bytes: usize) -> Vec<u8> {
    vec![b'v'; bytes]
}

#[derive(Debug, Clone)]
enum SlotAction {
    Claim(u32),
    Fill(u8),
    Truncate(u32),
    Drop,
    /// Under a head of the given number of bytes.
    Send(usize),
    Receive,
}

fn any_action() -> impl Strategy<Value = SlotAction> {
    prop_oneof![
        4 => (0u32..4200).prop_map(SlotAction::Claim),
        3 => any::<u8>().prop_map(SlotAction::Fill),
        1 => (0u32..4200).prop_map(SlotAction::Truncate),
        1 => Just(SlotAction::Drop),
        4 => prop_oneof![0usize..200, 0usize..400].prop_map(SlotAction::Send),
        4 => Just(SlotAction::Receive),
    ]
}

/// Sends under a head; the slot comes back when it did not go.
fn send_with_head(
    end: &mut ChannelEnd,
    slot: OwnedSlot,
    kind: MessageKind,
    fields: &[(&str, &[u8])],
) -> Result<(), OwnedSlot> {
    let draft = slot.into_draft(fields).map_err(|(slot, _)| slot)?;
    end.send_message(draft.finish(Envelope::new(kind, 1)))
        .map_err(|not| not.message.unwrap().into_owned_slot().unwrap())
}

proptest! {
    #[test]
    fn bodies_arrive_unchanged_and_no_slot_is_lost(acts in proptest::collection::vec((0usize..2, any_action()), 0..120)) {
        let mut pair = end_pair();
        let mut held: [VecDeque<OwnedSlot>; 2] = Default::default();
        let mut underway: [VecDeque<(usize, Vec<u8>)>; 2] = Default::default();
        let before = copies::copied_bytes();
        for (who, act) in acts {
            let front = held[who].front_mut();
            match (act, front) {
                (SlotAction::Claim(bytes), _) => {
                    let Ok(slot) = OwnedSlot::claim_zeroed(&pair.endpoints[who], bytes) else { continue };
                    prop_assert!(slot.bytes().len() == bytes as usize && slot.bytes().iter().all(|byte| *byte == 0));
                    held[who].push_back(slot);
                }
                (SlotAction::Fill(byte), Some(slot)) => slot.bytes_mut().fill(byte),
                (SlotAction::Truncate(bytes), Some(slot)) => slot.truncate(bytes),
                (SlotAction::Drop, _) => drop(held[who].pop_front()),
                (SlotAction::Send(bytes), Some(_)) => {
                    let (slot, value) = (held[who].pop_front().unwrap(), head_value(bytes));
                    let body = slot.bytes().to_vec();
                    let kind = [MessageKind::Event, MessageKind::Answer][who];
                    match send_with_head(&mut pair.ends[who], slot, kind, &[("x", &value)]) {
                        Ok(()) => underway[who].push_back((bytes, body)),
                        Err(slot) => {
                            prop_assert_eq!(slot.bytes(), &body, "it comes back as it was");
                            held[who].push_back(slot);
                        }
                    }
                }
                (SlotAction::Receive, _) => {
                    let message = pair.ends[who].receive_message().unwrap();
                    let sent = underway[1 - who].pop_front();
                    prop_assert_eq!(message.is_some(), sent.is_some());
                    let Some((message, (bytes, body))) = message.zip(sent) else { continue };
                    let mut copy = Vec::new();
                    prop_assert_eq!(message.copy_head(&mut copy).unwrap().get("x").unwrap().len(), bytes);
                    let slot = message.into_owned_slot().unwrap();
                    prop_assert_eq!(slot.bytes(), &body);
                    held[who].push_back(slot);
                }
                _ => {}
            }
        }
        prop_assert_eq!(copies::copied_bytes(), before, "nothing was copied");
        drop(held);
        for end in &mut pair.ends {
            while end.receive_message().unwrap().is_some() {}
        }
        prop_assert_eq!(reclaim::slot_usage(&pair.pool).len(), 0);
        prop_assert!(pair.endpoints.iter().all(|member| member.held_bytes() == 0));
    }
}

#[test]
fn a_claimed_slot_shows_no_earlier_bytes() {
    let pair = end_pair();
    let mut first = OwnedSlot::claim_zeroed(&pair.endpoints[0], 700).unwrap();
    first.bytes_mut().fill(7);
    drop(first);
    assert!(
        OwnedSlot::claim_zeroed(&pair.endpoints[1], 700)
            .unwrap()
            .bytes()
            .iter()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn a_refused_head_leaves_the_body_unchanged() {
    let pair = end_pair();
    let mut slot = OwnedSlot::claim_zeroed(&pair.endpoints[0], 5).unwrap();
    slot.bytes_mut().copy_from_slice(b"hello");
    let fits = HEADROOM_BYTES as usize - 64 - 5;
    for (name, value, why) in [
        ("x", head_value(fits + 1), Some(DraftError::SlotFull)),
        ("No Name", head_value(1), None),
    ] {
        let (back, fault) = slot.into_draft(&[(name, &value)]).unwrap_err();
        assert!(why.is_none_or(|why| why == fault), "{fault}");
        slot = back;
        assert_eq!(slot.bytes(), b"hello");
    }
    let lies = slot.bytes().as_ptr();
    let draft = slot.into_draft(&[("x", &head_value(fits))]).unwrap();
    let slot = draft
        .finish(Envelope::new(MessageKind::Call, 1))
        .into_owned_slot()
        .unwrap();
    assert_eq!((slot.bytes().as_ptr(), slot.bytes()), (lies, &b"hello"[..]));
}

/// Peers in a strict domain read all of an endpoint's pool.
#[test]
fn an_unsent_body_is_cleared_in_a_strict_pool() {
    let pool = Arc::new(SlotPool::create_strict(&CLASS_SPECS).unwrap());
    let member = PoolEndpoint::new(Arc::clone(&pool), EndpointId::new(1).unwrap(), u64::MAX);
    let mut slot = OwnedSlot::claim_zeroed(&member, 700).unwrap();
    slot.bytes_mut().fill(7);
    drop(slot);
    let lease = member.claim_slot(1024).unwrap();
    let mut there = [1; 1024];
    assert!(lease.read_bytes(0, &mut there) && there.iter().all(|byte| *byte == 0));
}
