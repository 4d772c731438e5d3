use super::*;
use proptest::prelude::*;

fn connect(version: Version) -> Connect {
    Connect {
        version,
        id: "device".into(),
        clean: true,
        keep_alive: 60,
        user: None,
        password: None,
        will: None,
        receive_max: u16::MAX,
        max_packet: u32::MAX,
        enhanced: false,
    }
}

fn limits() -> MqttLimits {
    MqttLimits { in_flight: 3, subscriptions: 2, keep_alive: Duration::from_secs(100), ..MqttLimits::default() }
}

fn session(version: Version) -> Session {
    Session::open(&connect(version), &limits(), true, "fresh").unwrap().0
}

fn publish(topic: &str, pid: Option<u16>) -> Publish {
    Publish { topic: topic.into(), qos: u8::from(pid.is_some()), pid, ..Publish::default() }
}

#[test]
fn a_client_without_keep_alive_gets_one() {
    for (asked, told, patience) in [(0, Some(100), 150), (60, None, 90), (7_000, Some(100), 150)] {
        let connect = Connect { keep_alive: asked, ..connect(Version::V5) };
        let (session, welcome) = Session::open(&connect, &limits(), true, "fresh").unwrap();
        assert_eq!((welcome.keep_alive, session.patience()), (told, Duration::from_secs(patience)));
    }
}

#[test]
fn who_is_turned_away() {
    let will = |topic: &str, qos, retain| Some(Publish { topic: topic.into(), qos, retain, ..Publish::default() });
    let base = connect(Version::V5);
    for (connect, known, end) in [
        (base.clone(), false, End::BadCredentials),
        (Connect { enhanced: true, ..base.clone() }, true, End::BadAuthMethod),
        (Connect { id: "x".repeat(257).into(), ..base.clone() }, true, End::BadClientId),
        (Connect { id: "".into(), clean: false, ..connect(Version::V311) }, true, End::BadClientId),
        (Connect { will: will("a", 2, false), ..base.clone() }, true, End::QosUnsupported),
        (Connect { will: will("a", 1, true), ..base.clone() }, true, End::RetainUnsupported),
        (Connect { will: will("functions/echo/result", 1, false), ..base.clone() }, true, End::TopicInvalid),
        (Connect { will: will(&"x".repeat(2000), 0, false), ..base.clone() }, true, End::TopicInvalid),
    ] {
        assert_eq!(Session::open(&connect, &limits(), known, "fresh").map(drop).unwrap_err(), end);
    }
    let nameless = Connect { id: "".into(), ..base };
    assert_eq!(Session::open(&nameless, &limits(), true, "fresh").unwrap().1.assigned_id.as_deref(), Some("fresh"));
}

#[test]
fn a_message_is_worked_on_once_at_a_time() {
    let mut session = session(Version::V311);
    let message = publish("functions/echo", Some(7));
    assert_eq!(session.hear(In::Publish(message.clone()), |_| true), Step::Call(message.clone()));
    assert_eq!(session.hear(In::Publish(message.clone()), |_| true), Step::Nothing);
    assert_eq!(session.called(Some(7), Ack::Done), Step::Say(Out::Puback(7, Ack::Done)));
    assert_eq!(session.hear(In::Publish(message.clone()), |_| true), Step::Call(message));
}

#[test]
fn a_failure_is_told_to_version_5_and_left_open_in_3() {
    let failed = || Ack::Failed("500".into());
    assert_eq!(session(Version::V5).called(Some(1), failed()), Step::Say(Out::Puback(1, failed())));
    let mut old = session(Version::V311);
    assert_eq!(old.called(Some(1), failed()), Step::Nothing);
    assert_eq!(old.called(Some(2), failed()), Step::Nothing);
    assert_eq!(old.called(Some(3), failed()), Step::End(End::Quota), "its window is full");
    let refused = Ack::Refused("400".into());
    assert_eq!(old.called(Some(4), refused.clone()), Step::Say(Out::Puback(4, refused)));
}

#[test]
fn what_is_not_offered_ends_the_connection() {
    for (message, end) in [
        (Publish { qos: 2, ..publish("a", Some(1)) }, End::QosUnsupported),
        (Publish { retain: true, ..publish("a", None) }, End::RetainUnsupported),
        (Publish { alias: true, ..publish("", None) }, End::AliasInvalid),
        (Publish { response_topic: Some("a/#".into()), ..publish("a", None) }, End::TopicInvalid),
        (publish(&"/".repeat(40), None), End::TopicInvalid),
        (publish("", None), End::TopicInvalid),
    ] {
        assert_eq!(session(Version::V5).hear(In::Publish(message), |_| true), Step::End(end));
    }
    assert_eq!(session(Version::V5).hear(In::Unexpected, |_| true), Step::End(End::Protocol));
    let reserved = session(Version::V5).hear(In::Publish(publish("functions/echo/result", Some(1))), |_| true);
    assert_eq!(reserved, Step::Say(Out::Puback(1, Ack::Reserved)));
}

#[test]
fn subscriptions_are_for_what_exists_and_counted() {
    let mut session = session(Version::V5);
    let mut ask = |filter: &str| {
        let asked = In::Subscribe { pid: 1, filters: vec![(filter.into(), true)], identified: false };
        let Step::Subscribe(1, granted) = session.hear(asked, |name| name == "echo") else { panic!("{filter}") };
        granted[0].1
    };
    for (filter, granted) in [
        ("functions/missing/result", Granted::NotAuthorized),
        ("$SYS/#", Granted::NotAuthorized),
        ("$share/g/functions/echo/result", Granted::Shared),
        ("a/#/b", Granted::Invalid),
        ("functions/echo/result", Granted::Qos1),
        ("functions/+/result", Granted::Qos1),
        ("functions/echo/result", Granted::Qos1),
        ("answers", Granted::Quota),
    ] {
        assert_eq!(ask(filter), granted, "{filter}");
    }
}

proptest! {
    #[test]
    fn numbers_are_unique_while_they_are_out(acks in prop::collection::vec(any::<bool>(), 1..200)) {
        let mut session = session(Version::V5);
        let mut out = std::collections::VecDeque::new();
        for ack in acks {
            if session.has_window() {
                let number = session.number();
                prop_assert!(number != 0 && !out.contains(&number));
                out.push_back(number);
            }
            prop_assert!(out.len() <= 3);
            if ack && let Some(number) = out.pop_front() {
                session.hear(In::Puback(number), |_| true);
            }
        }
    }
}
