//! Messages are read as they are written, and as the contract writes them.

use nearpath_types::{FunctionId, InstanceId};

use super::*;
use proptest::prelude::*;

fn function() -> impl Strategy<Value = Option<FunctionId>> {
    proptest::option::of("[a-z][a-z0-9]{0,62}".prop_map(|name| name.parse().unwrap()))
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Ring), Just(Mode::Sockmap), Just(Mode::Poll)]
}

fn isolation() -> impl Strategy<Value = Isolation> {
    prop_oneof![Just(Isolation::Shared), Just(Isolation::Strict)]
}

fn classes() -> impl Strategy<Value = Vec<[u32; 2]>> {
    proptest::collection::vec(any::<[u32; 2]>(), 0..=15)
}

fn terms() -> impl Strategy<Value = Terms> {
    let aliases = proptest::collection::vec(function().prop_filter_map("a name", |name| name), 0..3);
    let topics = proptest::collection::vec("[a-z+/#]{1,20}", 0..3);
    (aliases, topics, any::<bool>()).prop_map(|(aliases, topics, events_only)| Terms { aliases, topics, events_only })
}

fn from_node() -> impl Strategy<Value = FromNode> {
    let instance = || proptest::option::of(any::<u64>().prop_map(InstanceId));
    let end = || prop_oneof![Just(End::Withdrawn), Just(End::Dead)];
    let role = prop_oneof![Just(Role::Caller), Just(Role::Callee)];
    prop_oneof![
        (".{0,80}", any::<u16>(), function(), instance(), any::<(u64, u64, u32)>(), (mode(), isolation(), classes()))
            .prop_map(
                |(domain, party, function, instance, (pool, bound, capacity), (delivery, isolation, classes))| {
                    FromNode::Welcome(Welcome {
                        domain,
                        party,
                        function,
                        instance,
                        pool,
                        bound,
                        capacity,
                        delivery,
                        isolation,
                        classes,
                    })
                }
            ),
        (any::<(u32, u16, u32, Option<u64>)>(), role, function(), instance(), terms()).prop_map(
            |((channel, party, capacity, pool), side, function, instance, terms)| {
                FromNode::Peer(Peer { channel, side, party, function, instance, capacity, pool, terms })
            }
        ),
        (any::<u32>(), end()).prop_map(|(channel, state)| FromNode::Gone(Gone { channel, state })),
        ".{0,200}".prop_map(|why| FromNode::Refused(Refused { why })),
        (function().prop_filter_map("a name", |name| name), lack())
            .prop_map(|(function, lacks)| FromNode::Failed(Failed { function, lacks })),
    ]
}

fn lack() -> impl Strategy<Value = Lack> {
    prop_oneof![Just(Lack::Descriptors), Just(Lack::Memory), Just(Lack::Other)]
}

fn several<T: Strategy>(one: T) -> impl Strategy<Value = Vec<T::Value>> {
    proptest::collection::vec(one, 0..4)
}

fn from_party() -> impl Strategy<Value = FromParty> {
    let bell = prop_oneof![Just(Bell::Futex), Just(Bell::Eventfd), Just(Bell::None)];
    prop_oneof![
        (any::<u32>(), any::<[bool; 2]>(), bell, several(mode()), several(isolation())).prop_map(
            |(version, [serves, stands_in], bell, delivery, isolation)| {
                FromParty::Hello(Hello { version, serves, stands_in, bell, delivery, isolation })
            }
        ),
        Just(FromParty::Ready {}),
        any::<u64>().prop_map(|bytes| FromParty::Pool(OwnPool { bytes })),
        any::<u32>().prop_map(|channel| FromParty::Drained(Drained { channel })),
        any::<u32>().prop_map(|channel| FromParty::Broken(Broken { channel })),
    ]
}

proptest! {
    #[test]
    fn written_and_read(node in from_node(), party in from_party()) {
        let bytes = serde_json::to_vec(&node).unwrap();
        prop_assert!(bytes.len() <= MAX_PACKET);
        prop_assert_eq!(FromNode::read(&bytes).unwrap(), Some(node));
        let bytes = serde_json::to_vec(&party).unwrap();
        prop_assert_eq!(FromParty::read(&bytes).unwrap(), Some(party));
    }

    #[test]
    fn any_bytes_do_no_harm(bytes: Vec<u8>) {
        let _ = (FromNode::read(&bytes), FromParty::read(&bytes));
    }
}

#[test]
fn as_the_contract_writes_them() {
    let hello = br#"{"hello":{"version":1,"serves":true,"bell":"eventfd","new":[1]}}"#;
    let expected = FromParty::Hello(Hello {
        version: 1,
        serves: true,
        stands_in: false,
        bell: Bell::Eventfd,
        delivery: vec![],
        isolation: vec![],
    });
    assert_eq!(FromParty::read(hello).unwrap(), Some(expected));
    let hello =
        br#"{"hello":{"version":1,"bell":"none","delivery":["ring","sockmap","pigeon"],"isolation":["strict","x"]}}"#;
    let delivery = vec![Mode::Ring, Mode::Sockmap, Mode::Unknown];
    let isolation = vec![Isolation::Strict, Isolation::Unknown];
    let hello_in_full = Hello { version: 1, serves: false, stands_in: false, bell: Bell::None, delivery, isolation };
    let expected = FromParty::Hello(hello_in_full);
    assert_eq!(FromParty::read(hello).unwrap(), Some(expected));
    assert_eq!(FromParty::read(br#"{"ready":{}}"#).unwrap(), Some(FromParty::Ready {}));
    assert_eq!(serde_json::to_string(&FromParty::Ready {}).unwrap(), r#"{"ready":{}}"#);
    let pool = FromParty::read(br#"{"pool":{"bytes":4096}}"#).unwrap();
    assert_eq!(pool, Some(FromParty::Pool(OwnPool { bytes: 4096 })));
    let gone = FromNode::read(br#"{"gone":{"channel":12,"state":"withdrawn"}}"#).unwrap();
    assert_eq!(gone, Some(FromNode::Gone(Gone { channel: 12, state: End::Withdrawn })));
}

#[test]
fn what_is_not_known_is_passed_over() {
    assert_eq!(FromNode::read(br#"{"weather":{"rain":true}}"#).unwrap(), None);
    assert!(FromNode::read(br#"{"gone":{"channel":1,"state":"dead"},"refused":{"why":""}}"#).is_err());
    assert!(FromParty::read(b"GET / HTTP/1.1\r\n\r\n").is_err());
    assert!(FromParty::read(br#"{"drained":{"channel":-1}}"#).is_err());
}

#[test]
fn what_a_node_lacks_is_told_by_the_error_that_it_met() {
    for (number, lack) in [(24, Lack::Descriptors), (23, Lack::Descriptors), (12, Lack::Memory), (13, Lack::Other)] {
        assert_eq!(Lack::of(&std::io::Error::from_raw_os_error(number)), lack);
    }
    let unknown = br#"{"failed":{"function":"f.openfaas-fn","lacks":"patience"}}"#;
    let expected = Failed { function: "f".parse().unwrap(), lacks: Lack::Other };
    assert_eq!(FromNode::read(unknown).unwrap(), Some(FromNode::Failed(expected)));
}
