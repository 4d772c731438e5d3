//! Messages survive a round trip, and unknown ones are ignored.

use crate::punch::Transport;
use crate::punch::agent::PunchMessage;
use crate::punch::candidate::{Candidate, CandidateKind};
use proptest::prelude::*;

use super::*;

fn worker_id(node: &str) -> SpiffeId {
    SpiffeId::for_gateway("job", node)
}

fn assert_round_trip<T: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug>(
    message: &T,
) {
    let text = serde_json::to_string(message).unwrap();
    assert_eq!(
        &serde_json::from_str::<T>(&text).unwrap(),
        message,
        "{text}"
    );
}

#[test]
fn every_worker_message_survives_a_round_trip() {
    let session = HexBytes([7; 16]);
    assert_round_trip(&WorkerMessage::Call {
        call: 1,
        peer: worker_id("b"),
        about: "edge".into(),
        within: 10,
        hello: None,
    });
    assert_round_trip(&WorkerMessage::Call {
        call: 1,
        peer: worker_id("b"),
        about: "edge".into(),
        within: 10,
        hello: Some(hello_bytes()),
    });
    assert_round_trip(&WorkerMessage::SessionMessage {
        session,
        message: SessionMessage::Relay,
    });
    assert_round_trip(&WorkerMessage::CloseSession { session });
    assert_round_trip(&WorkerMessage::Report {
        to: None,
        report: JobReport::Ready,
    });
    assert_round_trip(&WorkerMessage::Report {
        to: Some(worker_id("b")),
        report: JobReport::Failed {
            reason: "full".into(),
        },
    });
    assert_round_trip(&WorkerMessage::Report {
        to: None,
        report: JobReport::Other {
            body: serde_json::json!({"a": [1, null]}),
        },
    });
}

#[test]
fn every_rendezvous_message_survives_a_round_trip() {
    let session = HexBytes([7; 16]);
    let servers = vec![ObserverAddress {
        transport: Transport::Udp,
        addr: "192.0.2.1:3478".parse().unwrap(),
        second_address: true,
        second_port: false,
    }];
    let observe = ObserverAccess {
        token: HexBytes([1; 16]),
        key: HexBytes([2; 32]),
        servers,
    };
    let seen = "[2001:db8::1]:5".parse().unwrap();
    assert_round_trip(&RendezvousMessage::Welcome(ControlWelcome {
        worker: worker_id("a"),
        job: "j".into(),
        leader: true,
        mapped_addr: seen,
        lifetime_ms: 9,
        observe,
    }));
    assert_round_trip(&RendezvousMessage::Granted(session_grant()));
    assert_round_trip(&RendezvousMessage::Granted(SessionGrant {
        call: None,
        hello: Some(hello_bytes()),
        ..session_grant()
    }));
    assert_round_trip(&RendezvousMessage::Refused {
        call: 1,
        reason: CallRefusal::Absent,
    });
    assert_round_trip(&RendezvousMessage::SessionClosed {
        session,
        reason: SessionCloseReason::NoSuch,
    });
    assert_round_trip(&RendezvousMessage::Report {
        from: worker_id("a"),
        report: JobReport::Available {
            output: "part-1".into(),
        },
    });
    assert_round_trip(&RendezvousMessage::Undelivered { to: None });
    assert_round_trip(&RendezvousMessage::Close {
        reason: CloseReason::Draining,
    });
}

fn session_grant() -> SessionGrant {
    SessionGrant {
        call: Some(3),
        peer: worker_id("b"),
        about: String::new(),
        session: HexBytes([7; 16]),
        secret: HexBytes([77; 32]),
        expires: 9,
        lifetime_ms: 1000,
        relay_token: SignedToken("p77".into()),
        hello: None,
    }
}

fn hello_bytes() -> Base64Bytes {
    Base64Bytes((&b"hello"[..]).into())
}

#[test]
fn unknown_reasons_of_a_newer_rendezvous_are_read() {
    let message = serde_json::from_str(r#"{"type":"close","reason":"moon","since":3}"#).unwrap();
    assert_eq!(
        RendezvousMessage::Close {
            reason: CloseReason::Unknown
        },
        message
    );
    let message = serde_json::from_str(r#"{"type":"refused","call":1,"reason":"moon"}"#).unwrap();
    assert_eq!(
        RendezvousMessage::Refused {
            call: 1,
            reason: CallRefusal::Unknown
        },
        message
    );
}

#[test]
fn a_session_life_is_capped() {
    let now = Instant::now();
    let (grant, until) = SessionGrant {
        lifetime_ms: u64::MAX,
        ..session_grant()
    }
    .punch_grant(now);
    assert!(until <= now + Duration::from_millis(MAX_SESSION_LIFETIME_MS));
    assert_eq!(
        (grant.id, grant.secret, grant.expires),
        ([7; 16], [77; 32], 9)
    );
}

#[test]
fn debug_output_hides_the_secret() {
    assert!(
        !format!("{:?}", session_grant()).contains("77"),
        "{:?}",
        session_grant()
    );
}

proptest! {
    #[test]
    fn an_offer_is_the_machines_own(ports in prop::collection::vec(any::<(u16, bool, bool)>(), 0..20)) {
        let candidate = |&(port, udp, host): &(u16, bool, bool)| Candidate::new(
            if host { CandidateKind::Host } else { CandidateKind::Reflexive },
            if udp { Transport::Udp } else { Transport::Tcp },
            ([192, 0, 2, 1], port).into(),
            port,
        );
        let message = PunchMessage::Offer(ports.iter().map(candidate).take(16).collect());
        let text = serde_json::to_string(&SessionMessage::from(message.clone())).unwrap();
        prop_assert!(text.len() < MAX_TEXT_BYTES / 2);
        prop_assert_eq!(PunchMessage::try_from(serde_json::from_str::<SessionMessage>(&text).unwrap()), Ok(message));
    }

    #[test]
    fn any_text_is_read_without_harm(text: String) {
        let _ = serde_json::from_str::<WorkerMessage>(&text);
        let _ = serde_json::from_str::<RendezvousMessage>(&text);
    }
}
