use super::*;
use proptest::prelude::*;

fn connect(version: Version) -> Connect {
    Connect {
        version,
        client_id: "device".into(),
        clean_session: true,
        keep_alive: 60,
        user: None,
        password: None,
        will: None,
        receive_max: u16::MAX,
        max_packet: u32::MAX,
        enhanced_auth: false,
    }
}

fn limits() -> MqttLimits {
    MqttLimits {
        max_in_flight: 3,
        max_subscriptions: 2,
        max_keep_alive: Duration::from_secs(100),
        ..MqttLimits::default()
    }
}

fn session(version: Version) -> Session {
    Session::accept_connect(&connect(version), &limits(), true, "fresh")
        .unwrap()
        .0
}

fn publish(topic: &str, packet_id: Option<u16>) -> Publish {
    Publish {
        topic: topic.into(),
        qos: u8::from(packet_id.is_some()),
        packet_id,
        ..Publish::default()
    }
}

#[test]
fn a_client_without_keep_alive_gets_the_default() {
    for (requested, granted, timeout) in
        [(0, Some(100), 150), (60, None, 90), (7_000, Some(100), 150)]
    {
        let connect = Connect {
            keep_alive: requested,
            ..connect(Version::V5)
        };
        let (session, welcome) =
            Session::accept_connect(&connect, &limits(), true, "fresh").unwrap();
        assert_eq!(
            (welcome.keep_alive, session.keep_alive_timeout()),
            (granted, Duration::from_secs(timeout))
        );
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn invalid_connects_are_refused() {
    let will = |topic: &str, qos, retain| {
        Some(Publish {
            topic: topic.into(),
            qos,
            retain,
            ..Publish::default()
        })
    };
    let base = connect(Version::V5);
    for (connect, password_ok, end) in [
        (base.clone(), false, DisconnectReason::BadCredentials),
        (
            Connect {
                enhanced_auth: true,
                ..base.clone()
            },
            true,
            DisconnectReason::BadAuthMethod,
        ),
        (
            Connect {
                client_id: "x".repeat(257).into(),
                ..base.clone()
            },
            true,
            DisconnectReason::BadClientId,
        ),
        (
            Connect {
                client_id: "".into(),
                clean_session: false,
                ..connect(Version::V311)
            },
            true,
            DisconnectReason::BadClientId,
        ),
        (
            Connect {
                will: will("a", 2, false),
                ..base.clone()
            },
            true,
            DisconnectReason::QosUnsupported,
        ),
        (
            Connect {
                will: will("a", 1, true),
                ..base.clone()
            },
            true,
            DisconnectReason::RetainUnsupported,
        ),
        (
            Connect {
                will: will("functions/echo/result", 1, false),
                ..base.clone()
            },
            true,
            DisconnectReason::TopicInvalid,
        ),
        (
            Connect {
                will: will(&"x".repeat(2000), 0, false),
                ..base.clone()
            },
            true,
            DisconnectReason::TopicInvalid,
        ),
    ] {
        assert_eq!(
            Session::accept_connect(&connect, &limits(), password_ok, "fresh")
                .map(drop)
                .unwrap_err(),
            end
        );
    }
    let nameless = Connect {
        client_id: "".into(),
        ..base
    };
    assert_eq!(
        Session::accept_connect(&nameless, &limits(), true, "fresh")
            .unwrap()
            .1
            .assigned_id
            .as_deref(),
        Some("fresh")
    );
}

#[test]
fn a_repeated_message_runs_once_at_a_time() {
    let mut session = session(Version::V311);
    let message = publish("functions/echo", Some(7));
    assert_eq!(
        session.handle_packet(ClientPacket::Publish(message.clone()), |_| true),
        SessionAction::Call(message.clone())
    );
    assert_eq!(
        session.handle_packet(ClientPacket::Publish(message.clone()), |_| true),
        SessionAction::Nothing
    );
    assert_eq!(
        session.finish_call(Some(7), PublishOutcome::Done),
        SessionAction::Send(ServerPacket::Puback(7, PublishOutcome::Done))
    );
    assert_eq!(
        session.handle_packet(ClientPacket::Publish(message.clone()), |_| true),
        SessionAction::Call(message)
    );
}

#[test]
fn a_failure_is_acknowledged_in_version_5_only() {
    let failed = || PublishOutcome::Failed("500".into());
    assert_eq!(
        session(Version::V5).finish_call(Some(1), failed()),
        SessionAction::Send(ServerPacket::Puback(1, failed()))
    );
    let mut old = session(Version::V311);
    assert_eq!(old.finish_call(Some(1), failed()), SessionAction::Nothing);
    assert_eq!(old.finish_call(Some(2), failed()), SessionAction::Nothing);
    assert_eq!(
        old.finish_call(Some(3), failed()),
        SessionAction::Disconnect(DisconnectReason::Quota),
        "its window is full"
    );
    let refused = PublishOutcome::Refused("400".into());
    assert_eq!(
        old.finish_call(Some(4), refused.clone()),
        SessionAction::Send(ServerPacket::Puback(4, refused))
    );
}

#[test]
fn unsupported_features_end_the_connection() {
    for (message, end) in [
        (
            Publish {
                qos: 2,
                ..publish("a", Some(1))
            },
            DisconnectReason::QosUnsupported,
        ),
        (
            Publish {
                retain: true,
                ..publish("a", None)
            },
            DisconnectReason::RetainUnsupported,
        ),
        (
            Publish {
                has_topic_alias: true,
                ..publish("", None)
            },
            DisconnectReason::AliasInvalid,
        ),
        (
            Publish {
                response_topic: Some("a/#".into()),
                ..publish("a", None)
            },
            DisconnectReason::TopicInvalid,
        ),
        (
            publish(&"/".repeat(40), None),
            DisconnectReason::TopicInvalid,
        ),
        (publish("", None), DisconnectReason::TopicInvalid),
    ] {
        assert_eq!(
            session(Version::V5).handle_packet(ClientPacket::Publish(message), |_| true),
            SessionAction::Disconnect(end)
        );
    }
    assert_eq!(
        session(Version::V5).handle_packet(ClientPacket::Unexpected, |_| true),
        SessionAction::Disconnect(DisconnectReason::Protocol)
    );
    let reserved = session(Version::V5).handle_packet(
        ClientPacket::Publish(publish("functions/echo/result", Some(1))),
        |_| true,
    );
    assert_eq!(
        reserved,
        SessionAction::Send(ServerPacket::Puback(1, PublishOutcome::Reserved))
    );
}

#[test]
fn subscriptions_need_an_existing_function_and_are_limited() {
    let mut session = session(Version::V5);
    let mut ask = |filter: &str| {
        let requested = ClientPacket::Subscribe {
            packet_id: 1,
            filters: vec![(filter.into(), true)],
            has_identifier: false,
        };
        let SessionAction::Subscribe(1, granted) =
            session.handle_packet(requested, |name| name == "echo")
        else {
            panic!("{filter}")
        };
        granted[0].1
    };
    for (filter, granted) in [
        ("functions/missing/result", SubscribeResult::NotAuthorized),
        ("$SYS/#", SubscribeResult::NotAuthorized),
        ("$share/g/functions/echo/result", SubscribeResult::Shared),
        ("a/#/b", SubscribeResult::Invalid),
        ("functions/echo/result", SubscribeResult::Qos1),
        ("functions/+/result", SubscribeResult::Qos1),
        ("functions/echo/result", SubscribeResult::Qos1),
        ("answers", SubscribeResult::Quota),
    ] {
        assert_eq!(ask(filter), granted, "{filter}");
    }
}

proptest! {
    #[test]
    fn packet_identifiers_are_unique_until_acknowledged(acks in prop::collection::vec(any::<bool>(), 1..200)) {
        let mut session = session(Version::V5);
        let mut out = std::collections::VecDeque::new();
        for ack in acks {
            if session.has_window() {
                let next_packet_id = session.next_packet_id();
                prop_assert!(next_packet_id != 0 && !out.contains(&next_packet_id));
                out.push_back(next_packet_id);
            }
            prop_assert!(out.len() <= 3);
            if ack && let Some(next_packet_id) = out.pop_front() {
                session.handle_packet(ClientPacket::Puback(next_packet_id), |_| true);
            }
        }
    }
}
