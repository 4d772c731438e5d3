//! Bodies that go where they lie: whatever two parties do with them, each arrives as it was, and no slot is lost.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nearpath_shm::channel::Channel;
use nearpath_shm::desk::{self, Desk};
use nearpath_shm::geometry::Size;
use nearpath_shm::message::NotWritten;
use nearpath_shm::parcel::HEADROOM;
use nearpath_shm::reclaim;
use nearpath_shm::region::Pages;
use nearpath_shm::spin::Spin;
use nearpath_shm::{End, Envelope, Kind, Member, Parcel, Party, Pool, Side, copies};
use proptest::prelude::*;

const SIZES: [Size; 3] = [Size { size: 256, count: 4 }, Size { size: 1024, count: 4 }, Size { size: 4096, count: 2 }];

/// Two parties of one pool and the channel between them.
struct Pair {
    pool: Arc<Pool>,
    ends: [End; 2],
    members: [Arc<Member>; 2],
    _desks: [Desk; 2],
}

fn pair() -> Pair {
    let pool = Arc::new(Pool::create(&SIZES, Pages::Small).unwrap());
    let party = |number| Party::new(number).unwrap();
    let members = [1, 2].map(|number| Member::new(Arc::clone(&pool), party(number), u64::MAX));
    let desks = [0, 1].map(|_| Desk::create(desk::Kind::Futex, Spin::new(Duration::ZERO)).unwrap());
    let channel = Channel::create(16).unwrap();
    let caller = channel.end(Side::Caller, Arc::clone(&members[0]), party(2), desks[1].knocker());
    let callee = channel.end(Side::Callee, Arc::clone(&members[1]), party(1), desks[0].knocker());
    Pair { pool, ends: [caller, callee], members, _desks: desks }
}

/// A head of about so many bytes.
fn head(bytes: usize) -> Vec<u8> {
    vec![b'v'; bytes]
}

#[derive(Debug, Clone)]
enum Act {
    Claim(u32),
    Fill(u8),
    Truncate(u32),
    Drop,
    /// Under a head of so many bytes.
    Send(usize),
    Receive,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0u32..4200).prop_map(Act::Claim),
        3 => any::<u8>().prop_map(Act::Fill),
        1 => (0u32..4200).prop_map(Act::Truncate),
        1 => Just(Act::Drop),
        4 => prop_oneof![0usize..200, 0usize..400].prop_map(Act::Send),
        4 => Just(Act::Receive),
    ]
}

/// Sends under a head; the parcel comes back when it did not go.
fn send(end: &mut End, parcel: Parcel, kind: Kind, fields: &[(&str, &[u8])]) -> Result<(), Parcel> {
    let draft = parcel.address(fields).map_err(|(parcel, _)| parcel)?;
    end.send(draft.finish(Envelope::new(kind, 1))).map_err(|not| not.message.unwrap().into_parcel().unwrap())
}

proptest! {
    #[test]
    fn each_arrives_as_it_was_and_none_is_lost(acts in proptest::collection::vec((0usize..2, act()), 0..120)) {
        let mut pair = pair();
        let mut held: [VecDeque<Parcel>; 2] = Default::default();
        let mut underway: [VecDeque<(usize, Vec<u8>)>; 2] = Default::default();
        let before = copies::so_far();
        for (who, act) in acts {
            let front = held[who].front_mut();
            match (act, front) {
                (Act::Claim(bytes), _) => {
                    let Ok(parcel) = Parcel::claim(&pair.members[who], bytes) else { continue };
                    prop_assert!(parcel.bytes().len() == bytes as usize && parcel.bytes().iter().all(|byte| *byte == 0));
                    held[who].push_back(parcel);
                }
                (Act::Fill(byte), Some(parcel)) => parcel.bytes_mut().fill(byte),
                (Act::Truncate(bytes), Some(parcel)) => parcel.truncate(bytes),
                (Act::Drop, _) => drop(held[who].pop_front()),
                (Act::Send(bytes), Some(_)) => {
                    let (parcel, value) = (held[who].pop_front().unwrap(), head(bytes));
                    let body = parcel.bytes().to_vec();
                    let kind = [Kind::Event, Kind::Answer][who];
                    match send(&mut pair.ends[who], parcel, kind, &[("x", &value)]) {
                        Ok(()) => underway[who].push_back((bytes, body)),
                        Err(parcel) => {
                            prop_assert_eq!(parcel.bytes(), &body, "it comes back as it was");
                            held[who].push_back(parcel);
                        }
                    }
                }
                (Act::Receive, _) => {
                    let message = pair.ends[who].receive().unwrap();
                    let sent = underway[1 - who].pop_front();
                    prop_assert_eq!(message.is_some(), sent.is_some());
                    let Some((message, (bytes, body))) = message.zip(sent) else { continue };
                    let mut copy = Vec::new();
                    prop_assert_eq!(message.head(&mut copy).unwrap().get("x").unwrap().len(), bytes);
                    let parcel = message.into_parcel().unwrap();
                    prop_assert_eq!(parcel.bytes(), &body);
                    held[who].push_back(parcel);
                }
                _ => {}
            }
        }
        prop_assert_eq!(copies::so_far(), before, "nothing was copied");
        drop(held);
        for end in &mut pair.ends {
            while end.receive().unwrap().is_some() {}
        }
        prop_assert_eq!(reclaim::usage(&pair.pool).len(), 0);
        prop_assert!(pair.members.iter().all(|member| member.held() == 0));
    }
}

#[test]
fn what_a_slot_held_before_is_not_seen() {
    let pair = pair();
    let mut first = Parcel::claim(&pair.members[0], 700).unwrap();
    first.bytes_mut().fill(7);
    drop(first);
    assert!(Parcel::claim(&pair.members[1], 700).unwrap().bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn a_head_without_room_or_sense_leaves_the_body_as_it_is() {
    let pair = pair();
    let mut parcel = Parcel::claim(&pair.members[0], 5).unwrap();
    parcel.bytes_mut().copy_from_slice(b"hello");
    let fits = HEADROOM as usize - 64 - 5;
    for (name, value, why) in [("x", head(fits + 1), Some(NotWritten::NoRoom)), ("No Name", head(1), None)] {
        let (back, fault) = parcel.address(&[(name, &value)]).unwrap_err();
        assert!(why.is_none_or(|why| why == fault), "{fault}");
        parcel = back;
        assert_eq!(parcel.bytes(), b"hello");
    }
    let lies = parcel.bytes().as_ptr();
    let draft = parcel.address(&[("x", &head(fits))]).unwrap();
    let parcel = draft.finish(Envelope::new(Kind::Call, 1)).into_parcel().unwrap();
    assert_eq!((parcel.bytes().as_ptr(), parcel.bytes()), (lies, &b"hello"[..]));
}

/// Peers in a strict domain read all of a party's pool.
#[test]
fn what_was_not_sent_is_not_left_in_a_pool_of_ones_own() {
    let pool = Arc::new(Pool::create_own(&SIZES).unwrap());
    let member = Member::new(Arc::clone(&pool), Party::new(1).unwrap(), u64::MAX);
    let mut parcel = Parcel::claim(&member, 700).unwrap();
    parcel.bytes_mut().fill(7);
    drop(parcel);
    let lease = member.claim(1024).unwrap();
    let mut there = [1; 1024];
    assert!(lease.read(0, &mut there) && there.iter().all(|byte| *byte == 0));
}
