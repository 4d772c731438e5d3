//! `contract/vectors/rendezvous.json` matches the code to the byte.
//!
//! `NEARPATH_WRITE_VECTORS=1` writes the file.

use std::path::Path;

use nearpath_p2p::message::{
    Base64Bytes, CallRefusal, CloseReason, ControlWelcome, HexBytes, JobReport, ObserverAccess,
    ObserverAddress, OfferedCandidate, RendezvousMessage, SessionCloseReason, SessionGrant,
    SessionMessage, SignedToken, WorkerMessage,
};
use nearpath_p2p::punch::candidate::CandidateKind;
use nearpath_p2p::punch::{Candidate, Transport};
use nearpath_p2p::reflexive_address::{
    BindingClient, BindingDecision, BindingRequest, ObserverPolicy, ResponseOrigin,
};
use nearpath_p2p::ticket::{JobName, RelayToken, RendezvousKey, WorkerTicket};
use nearpath_types::SpiffeId;
use serde_json::{Value, json};

const KEY: [u8; 32] = [0xa5; 32];
const EXPIRES_AT: u64 = 1_800_000_000;
const NOW: u64 = 1_799_999_000;

fn job_name() -> JobName {
    "sort".parse().unwrap()
}

fn worker_identity(name: &str, number: u64) -> SpiffeId {
    job_name().worker_identity(&name.parse().unwrap(), number)
}

fn session_id() -> HexBytes<16> {
    HexBytes(std::array::from_fn(|n| n as u8))
}

fn ticket_vectors() -> Value {
    let key = RendezvousKey::new(KEY);
    let ticket = WorkerTicket {
        worker: worker_identity("map", 3),
        job: job_name(),
        leader: false,
        until: EXPIRES_AT,
    };
    let leader = WorkerTicket {
        worker: worker_identity("lead", 0),
        leader: true,
        ..ticket.clone()
    };
    let (worker, peer) = (worker_identity("map", 3), worker_identity("reduce", 1));
    let relay_token = RelayToken {
        session: session_id(),
        job: job_name(),
        worker,
        peer,
        until: EXPIRES_AT,
    };
    for one in [&ticket, &leader] {
        assert_eq!(
            WorkerTicket::verify(&one.mint(&key).0, &key, NOW).as_ref(),
            Ok(one)
        );
    }
    assert_eq!(
        RelayToken::verify(&relay_token.mint(&key).0, &key, NOW),
        Ok(relay_token.clone())
    );
    json!({
        "key": HexBytes(KEY),
        "ticket": { "is": ticket, "text": ticket.mint(&key) },
        "leader": { "is": leader, "text": leader.mint(&key) },
        "relay_token": { "is": relay_token, "text": relay_token.mint(&key) },
    })
}

fn call_message(hello: Option<Base64Bytes>) -> WorkerMessage {
    WorkerMessage::Call {
        call: 1,
        peer: worker_identity("reduce", 1),
        about: "map to reduce".into(),
        within: 30_000,
        hello,
    }
}

fn hello_bytes() -> Base64Bytes {
    Base64Bytes((&b"the first ones"[..]).into())
}

fn worker_messages() -> Vec<WorkerMessage> {
    let session = session_id();
    let candidate = |kind, transport, addr: &str| {
        OfferedCandidate::from(Candidate::new(kind, transport, addr.parse().unwrap(), 7))
    };
    let candidates = vec![
        candidate(CandidateKind::Host, Transport::Tcp, "192.0.2.7:40000"),
        candidate(
            CandidateKind::Reflexive,
            Transport::Udp,
            "[2001:db8::7]:40001",
        ),
    ];
    let to_peer = |message| WorkerMessage::SessionMessage { session, message };
    let report = |to, report| WorkerMessage::Report { to, report };
    vec![
        call_message(None),
        call_message(Some(hello_bytes())),
        to_peer(SessionMessage::Offer { candidates }),
        to_peer(SessionMessage::Relay),
        to_peer(SessionMessage::Text {
            number: 4,
            acknowledged: 2,
            text: r#"{"moved":{"at":517}}"#.into(),
        }),
        to_peer(SessionMessage::Ack { acknowledged: 5 }),
        WorkerMessage::CloseSession { session },
        report(None, JobReport::Ready),
        report(None, JobReport::Finished),
        report(
            Some(worker_identity("reduce", 1)),
            JobReport::Available {
                output: "part-3".into(),
            },
        ),
        report(
            None,
            JobReport::Failed {
                reason: "no room on the disk".into(),
            },
        ),
        report(
            None,
            JobReport::Other {
                body: json!({ "rows": 44 }),
            },
        ),
    ]
}

fn control_welcome() -> ControlWelcome {
    let server = |transport, addr: &str, second_address, second_port| ObserverAddress {
        transport,
        addr: addr.parse().unwrap(),
        second_address,
        second_port,
    };
    let servers = vec![
        server(Transport::Udp, "203.0.113.7:7844", false, false),
        server(Transport::Tcp, "0.0.0.0:7845", true, true),
    ];
    let observe = ObserverAccess {
        token: HexBytes([1; 16]),
        key: HexBytes([2; 32]),
        servers,
    };
    let seen = "192.0.2.7:50000".parse().unwrap();
    ControlWelcome {
        worker: worker_identity("map", 3),
        job: "sort".into(),
        leader: false,
        mapped_addr: seen,
        lifetime_ms: 900_000,
        observe,
    }
}

fn rendezvous_messages() -> Vec<RendezvousMessage> {
    let session = session_id();
    let granted = SessionGrant {
        call: Some(1),
        peer: worker_identity("reduce", 1),
        about: "map to reduce".into(),
        session,
        secret: HexBytes([3; 32]),
        expires: EXPIRES_AT,
        lifetime_ms: 600_000,
        relay_token: SignedToken("e30.AA".into()),
        hello: None,
    };
    let incoming = SessionGrant {
        call: None,
        ..granted.clone()
    };
    let greeted = SessionGrant {
        hello: Some(hello_bytes()),
        ..incoming.clone()
    };
    let mut all = vec![RendezvousMessage::Welcome(control_welcome())];
    all.extend([granted, incoming, greeted].map(RendezvousMessage::Granted));
    let refusals = [
        CallRefusal::Absent,
        CallRefusal::SelfCall,
        CallRefusal::TooMany,
        CallRefusal::TooLong,
    ];
    all.extend(refusals.map(|reason| RendezvousMessage::Refused { call: 1, reason }));
    all.push(RendezvousMessage::SessionMessage {
        session,
        message: SessionMessage::Relay,
    });
    let hang_up_reasons = [
        SessionCloseReason::Peer,
        SessionCloseReason::Expired,
        SessionCloseReason::NoSuch,
        SessionCloseReason::Absent,
    ];
    all.extend(hang_up_reasons.map(|reason| RendezvousMessage::SessionClosed { session, reason }));
    all.push(RendezvousMessage::Report {
        from: worker_identity("map", 3),
        report: JobReport::Ready,
    });
    all.extend(
        [None, Some(worker_identity("reduce", 1))].map(|to| RendezvousMessage::Undelivered { to }),
    );
    let close_reasons = [
        CloseReason::Draining,
        CloseReason::Displaced,
        CloseReason::Expired,
        CloseReason::Unreadable,
        CloseReason::Slow,
        CloseReason::TooMany,
    ];
    all.extend(close_reasons.map(|reason| RendezvousMessage::Close { reason }));
    all
}

fn hex_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn binding_vectors() -> Value {
    let policy = ObserverPolicy::new(&RendezvousKey::new(KEY));
    let (token, key) = policy.mint_token(EXPIRES_AT, [9; 8]);
    let client = BindingClient::new(token, &key);
    let one = |addr: &str| {
        let question = client.encode_request(&BindingRequest {
            origin: ResponseOrigin::SameSocket,
            transaction_id: 7,
            cookie: [0; 16],
        });
        let decision = policy.decide(&question, (false, false), addr.parse().unwrap(), NOW);
        let BindingDecision::Respond { bytes, .. } = decision else {
            panic!("no answer")
        };
        let cookie = client.decode_response(&bytes).unwrap().cookie;
        json!({ "from": addr, "question": hex_text(&question), "answer": hex_text(&bytes), "cookie": hex_text(&cookie) })
    };
    json!({ "token": token, "key": key, "asked": [one("192.0.2.7:40000"), one("[2001:db8::7]:40001")] })
}

#[test]
fn the_vectors_match_the_code() {
    let vectors = json!({
        "about": "Examples for contract/rendezvous.md. Bytes are in hexadecimal. `from_worker` and `to_worker` are messages of a control connection.",
        "tickets": ticket_vectors(),
        "from_worker": worker_messages(),
        "to_worker": rendezvous_messages(),
        "observing": binding_vectors(),
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contract/vectors/rendezvous.json");
    if std::env::var_os("NEARPATH_WRITE_VECTORS").is_some() {
        std::fs::write(&path, format!("{vectors:#}\n")).unwrap();
    }
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(written, vectors);
    for (text, message) in written["from_worker"]
        .as_array()
        .unwrap()
        .iter()
        .zip(worker_messages())
    {
        assert_eq!(WorkerMessage::parse(&text.to_string()), Some(message));
    }
    for (text, message) in written["to_worker"]
        .as_array()
        .unwrap()
        .iter()
        .zip(rendezvous_messages())
    {
        assert_eq!(
            serde_json::from_value::<RendezvousMessage>(text.clone()).unwrap(),
            message
        );
    }
}
