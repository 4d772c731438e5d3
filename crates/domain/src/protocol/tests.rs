//! Messages are read as they are written, and as the contract writes them.

use nearpath_types::{FunctionId, InstanceId};

use super::*;
use proptest::prelude::*;

fn any_function() -> impl Strategy<Value = Option<FunctionId>> {
    proptest::option::of("[a-z][a-z0-9]{0,62}".prop_map(|name| name.parse().unwrap()))
}

fn any_mode() -> impl Strategy<Value = DeliveryMode> {
    prop_oneof![
        Just(DeliveryMode::Ring),
        Just(DeliveryMode::Sockmap),
        Just(DeliveryMode::Poll)
    ]
}

fn any_isolation() -> impl Strategy<Value = DomainIsolation> {
    prop_oneof![Just(DomainIsolation::Shared), Just(DomainIsolation::Strict)]
}

fn any_classes() -> impl Strategy<Value = Vec<[u32; 2]>> {
    proptest::collection::vec(any::<[u32; 2]>(), 0..=15)
}

fn any_terms() -> impl Strategy<Value = EdgeTerms> {
    let aliases =
        proptest::collection::vec(any_function().prop_filter_map("a name", |name| name), 0..3);
    let topics = proptest::collection::vec("[a-z+/#]{1,20}", 0..3);
    (aliases, topics, any::<bool>()).prop_map(|(aliases, topics, events_only)| EdgeTerms {
        aliases,
        topics,
        events_only,
    })
}

fn any_peer() -> impl Strategy<Value = PeerMessage> {
    let side = prop_oneof![Just(ChannelRole::Caller), Just(ChannelRole::Callee)];
    let instance = proptest::option::of(any::<u64>().prop_map(InstanceId));
    let numbers = any::<(u32, u16, u32, Option<u64>, bool)>();
    (numbers, side, any_function(), instance, any_terms()).prop_map(
        |((channel, endpoint, capacity, pool, watchdog), side, function, instance, terms)| {
            PeerMessage {
                channel,
                side,
                endpoint,
                function,
                instance,
                capacity,
                pool,
                watchdog,
                terms,
            }
        },
    )
}

fn any_node_message() -> impl Strategy<Value = NodeMessage> {
    let instance = || proptest::option::of(any::<u64>().prop_map(InstanceId));
    let end = || prop_oneof![Just(ChannelEnding::Withdrawn), Just(ChannelEnding::Dead)];
    prop_oneof![
        (
            ".{0,80}",
            any::<u16>(),
            any_function(),
            instance(),
            any::<(u64, u64, u32)>(),
            (any_mode(), any_isolation(), any_classes())
        )
            .prop_map(
                |(
                    domain,
                    endpoint,
                    function,
                    instance,
                    (pool, max_held_bytes, capacity),
                    (delivery, isolation, classes),
                )| {
                    NodeMessage::Welcome(WelcomeMessage {
                        domain,
                        endpoint,
                        function,
                        instance,
                        pool,
                        max_held_bytes,
                        capacity,
                        delivery,
                        isolation,
                        classes,
                    })
                }
            ),
        any_peer().prop_map(NodeMessage::Peer),
        (any::<u32>(), end())
            .prop_map(|(channel, state)| NodeMessage::Gone(ChannelGone { channel, state })),
        ".{0,200}".prop_map(|reason| NodeMessage::Refused(RefusedMessage { reason })),
        (
            any_function().prop_filter_map("a name", |name| name),
            any_channel_error()
        )
            .prop_map(|(function, missing)| NodeMessage::Failed(ChannelFailed {
                function,
                missing
            })),
    ]
}

fn any_channel_error() -> impl Strategy<Value = ChannelError> {
    prop_oneof![
        Just(ChannelError::Descriptors),
        Just(ChannelError::Memory),
        Just(ChannelError::Other)
    ]
}

fn up_to_three<T: Strategy>(one: T) -> impl Strategy<Value = Vec<T::Value>> {
    proptest::collection::vec(one, 0..4)
}

fn any_endpoint_message() -> impl Strategy<Value = EndpointMessage> {
    let wakeup = prop_oneof![
        Just(WakeupMode::Futex),
        Just(WakeupMode::Eventfd),
        Just(WakeupMode::None)
    ];
    prop_oneof![
        (
            any::<u32>(),
            any::<[bool; 3]>(),
            wakeup,
            up_to_three(any_mode()),
            up_to_three(any_isolation())
        )
            .prop_map(
                |(version, [serves, substitute, serves_only], wakeup, delivery, isolation)| {
                    EndpointMessage::Hello(HelloMessage {
                        version,
                        serves,
                        substitute,
                        serves_only,
                        wakeup,
                        delivery,
                        isolation,
                    })
                }
            ),
        Just(EndpointMessage::Ready {}),
        any::<u64>().prop_map(|bytes| EndpointMessage::Pool(OwnPoolMessage { bytes })),
        any::<u32>().prop_map(|channel| EndpointMessage::Drained(ChannelDrained { channel })),
        any::<u32>().prop_map(|channel| EndpointMessage::Broken(ChannelBroken { channel })),
    ]
}

proptest! {
    #[test]
    fn messages_survive_writing_and_parsing(node in any_node_message(), endpoint in any_endpoint_message()) {
        let bytes = serde_json::to_vec(&node).unwrap();
        prop_assert!(bytes.len() <= MAX_PACKET_BYTES);
        prop_assert_eq!(NodeMessage::parse_packet(&bytes).unwrap(), Some(node));
        let bytes = serde_json::to_vec(&endpoint).unwrap();
        prop_assert_eq!(EndpointMessage::parse_packet(&bytes).unwrap(), Some(endpoint));
    }

    #[test]
    fn any_packet_bytes_are_parsed_without_panic(bytes: Vec<u8>) {
        let _ = (NodeMessage::parse_packet(&bytes), EndpointMessage::parse_packet(&bytes));
    }
}

#[test]
fn messages_have_the_form_of_the_contract() {
    let hello = br#"{"hello":{"version":1,"serves":true,"wakeup":"eventfd","new":[1]}}"#;
    let expected = EndpointMessage::Hello(HelloMessage {
        version: 1,
        serves: true,
        substitute: false,
        serves_only: false,
        wakeup: WakeupMode::Eventfd,
        delivery: vec![],
        isolation: vec![],
    });
    assert_eq!(
        EndpointMessage::parse_packet(hello).unwrap(),
        Some(expected)
    );
    let hello =
        br#"{"hello":{"version":1,"wakeup":"none","delivery":["ring","sockmap","pigeon"],"isolation":["strict","x"]}}"#;
    let delivery = vec![
        DeliveryMode::Ring,
        DeliveryMode::Sockmap,
        DeliveryMode::Unknown,
    ];
    let isolation = vec![DomainIsolation::Strict, DomainIsolation::Unknown];
    let hello_in_full = HelloMessage {
        version: 1,
        serves: false,
        substitute: false,
        serves_only: false,
        wakeup: WakeupMode::None,
        delivery,
        isolation,
    };
    let expected = EndpointMessage::Hello(hello_in_full);
    assert_eq!(
        EndpointMessage::parse_packet(hello).unwrap(),
        Some(expected)
    );
    assert_eq!(
        EndpointMessage::parse_packet(br#"{"ready":{}}"#).unwrap(),
        Some(EndpointMessage::Ready {})
    );
    assert_eq!(
        serde_json::to_string(&EndpointMessage::Ready {}).unwrap(),
        r#"{"ready":{}}"#
    );
    let pool = EndpointMessage::parse_packet(br#"{"pool":{"bytes":4096}}"#).unwrap();
    assert_eq!(
        pool,
        Some(EndpointMessage::Pool(OwnPoolMessage { bytes: 4096 }))
    );
    let gone =
        NodeMessage::parse_packet(br#"{"gone":{"channel":12,"state":"withdrawn"}}"#).unwrap();
    assert_eq!(
        gone,
        Some(NodeMessage::Gone(ChannelGone {
            channel: 12,
            state: ChannelEnding::Withdrawn
        }))
    );
}

#[test]
fn unknown_messages_are_ignored() {
    assert_eq!(
        NodeMessage::parse_packet(br#"{"weather":{"rain":true}}"#).unwrap(),
        None
    );
    assert!(
        NodeMessage::parse_packet(
            br#"{"gone":{"channel":1,"state":"dead"},"refused":{"reason":""}}"#
        )
        .is_err()
    );
    assert!(EndpointMessage::parse_packet(b"GET / HTTP/1.1\r\n\r\n").is_err());
    assert!(EndpointMessage::parse_packet(br#"{"drained":{"channel":-1}}"#).is_err());
}

#[test]
fn a_channel_error_is_derived_from_the_errno() {
    for (number, expected) in [
        (24, ChannelError::Descriptors),
        (23, ChannelError::Descriptors),
        (12, ChannelError::Memory),
        (13, ChannelError::Other),
    ] {
        assert_eq!(
            ChannelError::from_io_error(&std::io::Error::from_raw_os_error(number)),
            expected
        );
    }
    let unknown = br#"{"failed":{"function":"f.openfaas-fn","missing":"patience"}}"#;
    let expected = ChannelFailed {
        function: "f".parse().unwrap(),
        missing: ChannelError::Other,
    };
    assert_eq!(
        NodeMessage::parse_packet(unknown).unwrap(),
        Some(NodeMessage::Failed(expected))
    );
}
