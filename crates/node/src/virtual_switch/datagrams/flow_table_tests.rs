use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Forwarding of tests: the flow's number.
type TestTable = FlowTable<FlowNumber>;

const COLD_TIMEOUT: Duration = Duration::from_secs(10);

fn parties(caller: u8, callee: u8) -> FlowParties {
    FlowParties {
        caller: format!("caller{caller}").parse().unwrap(),
        callee: format!("callee{callee}").parse().unwrap(),
    }
}

fn key(caller: u8, callee: u8, port: u16) -> FlowKey {
    let address = |network, number| Ipv4Addr::new(10, network, 0, number);
    FlowKey {
        source: SocketAddrV4::new(address(62, caller), port),
        destination: SocketAddrV4::new(address(60, callee), 7000),
    }
}

fn open(table: &mut TestTable, key: &FlowKey) -> Option<Vec<Box<[u8]>>> {
    let held = table.open(key, |number| number)?;
    Some(held.into_iter().map(|one| one.content).collect())
}

#[test]
fn a_caller_fills_half_of_a_callee_and_leaves_the_rest() {
    let (mut table, now) = (TestTable::default(), Instant::now());
    let content = [7; 1_000];
    // A caller alone gets half.
    let held = (0..100)
        .map_while(|_| {
            table
                .hold(key(1, 9, 5000), &parties(1, 9), &content, now)
                .ok()
        })
        .count();
    assert_eq!(
        held,
        MAX_HELD_PER_CALLEE / 2 / (1_000 + DATAGRAM_OVERHEAD_BYTES)
    );
    let refused = table.hold(key(1, 9, 5001), &parties(1, 9), &content, now);
    assert_eq!(refused, Err(DropReason::NoSpace));
    // Another caller, and another callee of the same caller.
    assert_eq!(
        table.hold(key(2, 9, 5000), &parties(2, 9), &content, now),
        Ok(())
    );
    assert_eq!(
        table.hold(key(1, 8, 5000), &parties(1, 8), &content, now),
        Ok(())
    );
    let first = open(&mut table, &key(1, 9, 5000)).unwrap();
    assert_eq!(first.len(), held);
    assert_eq!(
        table.hold(key(1, 9, 5001), &parties(1, 9), &content, now),
        Ok(())
    );
}

#[test]
fn a_caller_has_its_share_of_flows() {
    let (mut table, now) = (TestTable::default(), Instant::now());
    for port in 0..LIMITS.max_each as u16 {
        // Over several callees: their bytes are another bound.
        let callee = (port % 16) as u8;
        let held = table.hold(key(1, callee, port), &parties(1, callee), b"", now);
        assert_eq!(held, Ok(()));
    }
    let more = table.hold(key(1, 20, 1), &parties(1, 20), b"", now);
    assert_eq!(more, Err(DropReason::TooManyFlows));
    assert_eq!(table.hold(key(2, 20, 1), &parties(2, 20), b"", now), Ok(()));
    assert_eq!(table.len(), LIMITS.max_each + 1);
    let ended = table.end_where(|_, of, _| *of == parties(1, 3));
    assert_eq!(ended, 16);
    assert_eq!(table.hold(key(1, 20, 1), &parties(1, 20), b"", now), Ok(()));
}

#[test]
fn each_datagram_has_its_own_deadline() {
    let (mut table, start) = (TestTable::default(), Instant::now());
    let later = start + Duration::from_secs(1);
    let flow = key(1, 2, 1);
    for (content, deadline) in [(b"a", start), (b"b", later)] {
        table.hold(flow, &parties(1, 2), content, deadline).unwrap();
    }
    assert_eq!(table.next_deadline(), Some(start));
    assert_eq!(table.expire(start), [(flow, parties(1, 2), 1)]);
    assert_eq!(table.next_deadline(), Some(later));
    assert_eq!(table.expire(start), []);
    assert_eq!(table.expire(later), [(flow, parties(1, 2), 1)]);
    assert!(table.is_empty() && table.next_deadline().is_none());
}

#[test]
fn the_end_of_an_earlier_flow_does_not_end_a_later_one() {
    let (mut table, now) = (TestTable::default(), Instant::now());
    let flow = key(1, 2, 1);
    table.hold(flow, &parties(1, 2), b"a", now).unwrap();
    open(&mut table, &flow).unwrap();
    // The task of the first flow reports its end late.
    let first = *table.find(&flow).unwrap().1.unwrap();
    table.end(&flow, first);
    table.hold(flow, &parties(1, 2), b"b", now).unwrap();
    assert_eq!(table.end(&flow, first), 0);
    assert_eq!(open(&mut table, &flow).unwrap(), [(*b"b").into()]);
    assert_eq!(open(&mut table, &flow), None, "it is open");
    assert_eq!(table.end_waiting(&flow), 0);
    assert_eq!(table.len(), 1);
}

#[test]
fn a_flow_may_open_without_a_held_datagram() {
    let mut table = TestTable::default();
    let flow = key(1, 2, 1);
    table.begin(flow, &parties(1, 2)).unwrap();
    assert_eq!(table.next_deadline(), None);
    assert_eq!(open(&mut table, &flow), Some(Vec::new()));
    // If it cannot be opened, it is ended.
    let other = key(1, 2, 2);
    table.begin(other, &parties(1, 2)).unwrap();
    assert_eq!((table.end_waiting(&other), table.len()), (0, 1));
}

#[derive(Debug, Clone)]
enum Step {
    Receive {
        caller: u8,
        callee: u8,
        port: u16,
        len: usize,
    },
    OpenCallee(u8),
    EndCaller(u8),
    EndOpen {
        caller: u8,
        callee: u8,
        port: u16,
    },
    Pass(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..3u8, 0..3u8, 0..3u16, prop_oneof![0..100usize, 0..70_000usize])
            .prop_map(|(caller, callee, port, len)| Step::Receive { caller, callee, port, len }),
        2 => (0..3u8).prop_map(Step::OpenCallee),
        1 => (0..3u8).prop_map(Step::EndCaller),
        1 => (0..3u8, 0..3u8, 0..3u16)
            .prop_map(|(caller, callee, port)| Step::EndOpen { caller, callee, port }),
        1 => (0..12_000u64).prop_map(Step::Pass),
    ]
}

/// Datagrams that a table must hold, by flow, and the table.
#[derive(Default)]
struct TableModel {
    table: TestTable,
    waiting: BTreeMap<FlowKey, VecDeque<(Vec<u8>, Instant)>>,
    next: u64,
}

impl TableModel {
    fn apply(&mut self, step: Step, now: &mut Instant) {
        match step {
            Step::Receive {
                caller,
                callee,
                port,
                len,
            } => {
                self.receive(
                    key(caller, callee, port),
                    &parties(caller, callee),
                    len,
                    *now,
                );
            }
            Step::OpenCallee(callee) => {
                for (key, _) in self.table.waiting_flows(&parties(0, callee).callee) {
                    let expected = self.waiting.remove(&key).unwrap();
                    let expected: Vec<_> =
                        expected.into_iter().map(|(one, _)| one.into()).collect();
                    // All that was held, in order, once.
                    assert_eq!(open(&mut self.table, &key), Some(expected));
                }
            }
            Step::EndCaller(caller) => {
                let is_own = |key: &FlowKey| key.source.ip().octets()[3] == caller;
                let own = self.waiting.iter().filter(|(key, _)| is_own(key));
                let expected: usize = own.map(|(_, held)| held.len()).sum();
                self.waiting.retain(|key, _| !is_own(key));
                assert_eq!(self.table.end_where(|key, _, _| is_own(key)), expected);
            }
            Step::EndOpen {
                caller,
                callee,
                port,
            } => {
                let key = key(caller, callee, port);
                let number = self.table.find(&key).and_then(|(_, open)| open.copied());
                if let Some(number) = number {
                    assert_eq!(self.table.end(&key, number), 0);
                }
            }
            Step::Pass(millis) => {
                *now += Duration::from_millis(millis);
                self.expire(*now);
            }
        }
    }

    fn receive(&mut self, key: FlowKey, parties: &FlowParties, len: usize, now: Instant) {
        if matches!(self.table.find(&key), Some((_, Some(_)))) {
            return; // it is forwarded
        }
        let mut content = self.next.to_ne_bytes().to_vec();
        content.resize(len.max(8), 0);
        self.next += 1;
        let deadline = now + COLD_TIMEOUT;
        if self.table.hold(key, parties, &content, deadline).is_ok() {
            let held = self.waiting.entry(key).or_default();
            held.push_back((content, deadline));
        }
    }

    fn expire(&mut self, now: Instant) {
        let expired: usize = self.table.expire(now).iter().map(|(.., count)| count).sum();
        let count = |waiting: &BTreeMap<_, VecDeque<_>>| waiting.values().map(VecDeque::len).sum();
        let before: usize = count(&self.waiting);
        for held in self.waiting.values_mut() {
            held.retain(|(_, deadline)| *deadline > now);
        }
        self.waiting.retain(|_, held| !held.is_empty());
        assert_eq!(expired, before - count(&self.waiting));
    }

    /// Checks the bounds, and that nothing is counted that is not held.
    fn check(&self) {
        let size = |held: &VecDeque<(Vec<u8>, Instant)>| -> usize {
            held.iter()
                .map(|(content, _)| content.len() + DATAGRAM_OVERHEAD_BYTES)
                .sum()
        };
        let held_for = |callee: u8| -> usize {
            let own = self.waiting.iter();
            let own = own.filter(|(key, _)| key.destination.ip().octets()[3] == callee);
            own.map(|(_, held)| size(held)).sum()
        };
        assert!((0..3).all(|callee| held_for(callee) <= MAX_HELD_PER_CALLEE));
        let total: usize = self.waiting.values().map(size).sum();
        assert_eq!(self.table.held.is_empty(), total == 0);
        assert!(total <= MAX_HELD_BYTES && self.table.len() <= LIMITS.max_total);
        let deadlines = self
            .waiting
            .values()
            .flatten()
            .map(|(_, deadline)| *deadline);
        assert_eq!(self.table.next_deadline(), deadlines.min());
        for callee in 0..3 {
            let of_callee = self.table.held_by_callee.get(&parties(0, callee).callee);
            assert_eq!(of_callee.is_some(), held_for(callee) > 0);
        }
    }
}

proptest! {
    #[test]
    fn held_datagrams_are_delivered_in_order_or_counted(
        steps in prop::collection::vec(any_step(), 0..120)
    ) {
        let (mut model, mut now) = (TableModel::default(), Instant::now());
        for step in steps {
            model.apply(step, &mut now);
            model.check();
        }
        let ended: usize = model.waiting.values().map(VecDeque::len).sum();
        prop_assert_eq!(model.table.end_where(|_, _, _| true), ended);
        prop_assert!(model.table.is_empty() && model.table.held_by_callee.is_empty());
    }
}
