//! Against models: outcomes of calls, and who is chosen.

use std::task::Poll;

use super::*;
use proptest::prelude::*;

fn function_id(n: u8) -> FunctionId {
    format!("f{n}").parse().unwrap()
}

#[derive(Debug, Clone, Copy)]
enum TableEvent {
    Open(u8, u64),
    Settle(usize),
    Leave(usize),
    Take(usize),
    Due(u64),
    Die(u8),
}

fn any_event() -> impl Strategy<Value = TableEvent> {
    let any = any::<usize>;
    prop_oneof![
        4 => (0..4u8, 0..200u64).prop_map(|(channel, deadline)| TableEvent::Open(channel, deadline)),
        3 => any().prop_map(TableEvent::Settle),
        1 => any().prop_map(TableEvent::Leave),
        2 => any().prop_map(TableEvent::Take),
        1 => (0..200u64).prop_map(TableEvent::Due),
        1 => (0..4u8).prop_map(TableEvent::Die),
    ]
}

/// A call in the model.
#[derive(Debug, Clone, Copy)]
struct ModelCall {
    call: CallNumber,
    channel: u32,
    deadline: u64,
    owed: bool,
    /// None: a waiter waits. Some: the outcome, or none without a waiter.
    outcome: Option<Option<u32>>,
}

proptest! {
    #[test]
    fn every_call_has_exactly_one_outcome(events in proptest::collection::vec(any_event(), 0..200)) {
        let mut book: PeerTable<u32> = PeerTable::new(1);
        (0..4u8).for_each(|n| book.add_peer(u32::from(n), function_id(n), InstanceId(u64::from(n))));
        let mut known: Vec<ModelCall> = Vec::new();
        for event in events {
            match event {
                TableEvent::Open(channel, deadline) => {
                    let channel = u32::from(channel);
                    let call = book.open_call(channel, 0, deadline);
                    prop_assert!(known.iter().all(|k| k.call != call), "no number comes twice");
                    known.push(ModelCall { call, channel, deadline, owed: true, outcome: None });
                }
                TableEvent::Settle(n) if !known.is_empty() => {
                    let at = n % known.len();
                    let k = &mut known[at];
                    let settled = book.settle_call(k.call, 7);
                    prop_assert_eq!(settled.is_some(), k.owed);
                    prop_assert_eq!(settled.is_some_and(|s| s.wanted), k.owed && k.outcome.is_none());
                    if k.owed && k.outcome.is_none() { k.outcome = Some(Some(7)); }
                    k.owed = false;
                }
                TableEvent::Leave(n) if !known.is_empty() => {
                    let at = n % known.len();
                    let k = &mut known[at];
                    let must_cancel = k.owed && k.outcome.is_none();
                    prop_assert_eq!(book.abandon_call(k.call), must_cancel.then_some(k.channel));
                    k.outcome = Some(None);
                }
                TableEvent::Take(n) if !known.is_empty() => {
                    let at = n % known.len();
                    let k = &mut known[at];
                    match (book.poll_outcome(k.call, None), k.outcome) {
                        (Poll::Pending, outcome) => prop_assert!(outcome.is_none()),
                        (Poll::Ready(got), outcome) => prop_assert_eq!(Some(got), outcome),
                    }
                    if k.outcome.is_some() { k.outcome = Some(None); }
                }
                TableEvent::Due(now) => {
                    while let Some(call) = book.next_expired(now) {
                        let k = known.iter_mut().find(|k| k.call == call).unwrap();
                        prop_assert!(k.outcome.is_none() && k.deadline > 0 && k.deadline <= now);
                        prop_assert_eq!(book.expire_call(call, 9), Some(k.channel));
                        k.outcome = Some(Some(9));
                    }
                    let late = |k: &ModelCall| k.outcome.is_none() && k.deadline > 0 && k.deadline <= now;
                    prop_assert!(!known.iter().any(late), "a deadline was missed");
                }
                TableEvent::Die(channel) => {
                    let channel = u32::from(channel);
                    for call in book.retire_dead(channel) {
                        let k = known.iter_mut().find(|k| k.call == call).unwrap();
                        prop_assert!(k.owed && k.channel == channel);
                        book.settle_call(call, 8);
                        k.owed = false;
                        if k.outcome.is_none() { k.outcome = Some(Some(8)); }
                    }
                    prop_assert!(known.iter().all(|k| k.channel != channel || !k.owed));
                }
                _ => {}
            }
            for channel in 0..4 {
                let owed = known.iter().filter(|k| k.channel == channel && k.owed).count();
                prop_assert_eq!(book.in_flight(channel) as usize, owed);
            }
            let open = known.iter().filter(|k| k.owed || !matches!(k.outcome, Some(None))).count();
            prop_assert_eq!(book.open_calls(), open, "nothing is kept for ever");
        }
    }

    #[test]
    fn only_channels_with_credit_are_chosen(credits in proptest::collection::vec(any::<bool>(), 0..6), seed: u64) {
        let mut book: PeerTable<()> = PeerTable::new(seed);
        let id = function_id(0);
        (0..credits.len() as u32).for_each(|c| book.add_peer(c, id.clone(), InstanceId(u64::from(c))));
        let chosen = book.choose_channel(CallDestination::Function(&id), |c| credits[c as usize]);
        match chosen {
            Ok(channel) => prop_assert!(credits[channel as usize]),
            Err(NoPeer::Unknown | NoPeer::NoChannel(_)) => prop_assert!(credits.is_empty()),
            Err(NoPeer::Busy) => prop_assert!(!credits.is_empty() && !credits.contains(&true)),
        }
    }
}

#[test]
fn load_is_spread_over_the_channels() {
    let mut book: PeerTable<()> = PeerTable::new(3);
    let id = function_id(0);
    (0..4).for_each(|c| book.add_peer(c, id.clone(), InstanceId(u64::from(c))));
    for _ in 0..400 {
        let channel = book
            .choose_channel(CallDestination::Function(&id), |_| true)
            .unwrap();
        book.open_call(channel, 0, 0);
    }
    assert!(
        (0..4).all(|c| (80..120).contains(&book.in_flight(c))),
        "two choices keep all near 100"
    );
    book.retire_peer(2);
    assert!(
        (0..50).all(|_| book.choose_channel(CallDestination::Function(&id), |_| true) != Ok(2))
    );
}
