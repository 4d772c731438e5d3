//! `contract/vectors/punch.json` matches the code to the byte.
//!
//! `NEARPATH_WRITE_VECTORS=1` writes the file.

use std::path::Path;
use std::time::Instant;

use nearpath_p2p::punch::probe::{PROBE_BYTES, ProbeError};
use nearpath_p2p::punch::session::{PunchGrant, SessionRole};
use nearpath_p2p::punch::{Probe, PunchSession};
use serde_json::{Value, json};

const LEADER: &str = "spiffe://example.org/ns/openfaas-fn/fn/map/instance/1";
const FOLLOWER: &str = "spiffe://example.org/ns/openfaas-fn/fn/reduce/instance/2";

fn punch_grant() -> PunchGrant {
    PunchGrant {
        id: std::array::from_fn(|n| n as u8),
        secret: [0xa5; 32],
        expires: 1_800_000_000,
    }
}

/// Creates the session of a role.
fn session_as(role: SessionRole) -> PunchSession {
    let (me, peer) = if role == SessionRole::Leader {
        (LEADER, FOLLOWER)
    } else {
        (FOLLOWER, LEADER)
    };
    PunchSession::new(
        &punch_grant(),
        &me.parse().unwrap(),
        &peer.parse().unwrap(),
        Instant::now(),
    )
    .unwrap()
}

fn other_role(role: SessionRole) -> SessionRole {
    if role == SessionRole::Leader {
        SessionRole::Follower
    } else {
        SessionRole::Leader
    }
}

fn hex_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named_probes() -> Vec<(&'static str, Probe)> {
    let ask = Probe {
        sender: SessionRole::Leader,
        nonce: 0x0102_0304,
        request: Some(1),
        response: None,
        nomination: None,
        mapped_addr: None,
    };
    let ipv4 = Some("192.0.2.7:40000".parse().unwrap());
    let ipv6 = Some("[2001:db8::7]:40001".parse().unwrap());
    let both = Probe {
        sender: SessionRole::Follower,
        nonce: 9,
        request: Some(1),
        response: Some(1),
        mapped_addr: ipv4,
        ..ask
    };
    let agrees = Probe {
        sender: SessionRole::Follower,
        nonce: 9,
        request: None,
        response: Some(3),
        nomination: Some(1),
        mapped_addr: ipv6,
    };
    vec![
        ("the leader asks", ask),
        ("the follower answers and asks", both),
        (
            "the leader answers",
            Probe {
                request: None,
                response: Some(1),
                mapped_addr: ipv6,
                ..ask
            },
        ),
        (
            "the leader nominates",
            Probe {
                request: Some(3),
                nomination: Some(1),
                ..ask
            },
        ),
        ("the follower agrees", agrees),
        (
            "late in a session",
            Probe {
                request: Some(u64::MAX),
                nomination: Some(u16::MAX),
                nonce: u64::MAX,
                ..ask
            },
        ),
    ]
}

fn valid_probes() -> Value {
    let one = |(name, probe): (&str, Probe)| {
        let bytes = probe.encode(&session_as(probe.sender));
        assert_eq!(
            Probe::decode(&bytes, &session_as(other_role(probe.sender))),
            Ok(probe),
            "{name}"
        );
        json!({
            "name": name,
            "from": if probe.sender == SessionRole::Leader { "leader" } else { "follower" },
            "nonce": probe.nonce.to_string(),
            "ask": probe.request.map(|number| number.to_string()),
            "answer": probe.response.map(|number| number.to_string()),
            "nomination": probe.nomination,
            "seen": probe.mapped_addr.map(|seen| seen.to_string()),
            "bytes": hex_text(&bytes),
        })
    };
    named_probes().into_iter().map(one).collect()
}

/// Returns probes that a follower must refuse.
fn invalid_probes() -> Value {
    let leader = session_as(SessionRole::Leader);
    let ask = named_probes()[0].1;
    let bytes = ask.encode(&leader).to_vec();
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        bytes
    };
    let encoded = |probe: Probe| probe.encode(&leader).to_vec();
    let with_request = |request| encoded(Probe { request, ..ask });
    let (empty_probe, no_number) = (with_request(None), with_request(Some(0)));
    let own = encoded(Probe {
        sender: SessionRole::Follower,
        ..ask
    });
    let foreign = PunchSession::new(
        &PunchGrant {
            expires: 1_800_000_001,
            ..punch_grant()
        },
        &LEADER.parse().unwrap(),
        &FOLLOWER.parse().unwrap(),
        Instant::now(),
    );
    let cases = [
        (
            "a byte short",
            bytes[..PROBE_BYTES - 1].to_vec(),
            ProbeError::Form,
        ),
        ("another version", with(4, 2), ProbeError::Form),
        ("another session", with(8, 0xff), ProbeError::Session),
        ("a changed flag", with(5, 7), ProbeError::Tag),
        (
            "a changed tag",
            with(PROBE_BYTES - 1, bytes[PROBE_BYTES - 1] ^ 1),
            ProbeError::Tag,
        ),
        (
            "a key with another end",
            ask.encode(&foreign.unwrap()).to_vec(),
            ProbeError::Tag,
        ),
        ("neither asks nor answers", empty_probe, ProbeError::Form),
        ("asks with number 0", no_number, ProbeError::Form),
        ("the follower's own", own, ProbeError::Own),
    ];
    let one = |(name, bytes, fault): (&str, Vec<u8>, ProbeError)| {
        assert_eq!(
            Probe::decode(&bytes, &session_as(SessionRole::Follower)),
            Err(fault),
            "{name}"
        );
        json!({ "name": name, "fault": format!("{fault:?}").to_lowercase(), "bytes": hex_text(&bytes) })
    };
    cases.into_iter().map(one).collect()
}

fn vectors() -> Value {
    let grant = punch_grant();
    json!({
        "about": "Examples for contract/punch.md. Bytes are in hexadecimal, 64-bit numbers are texts. `bad` is what the follower drops.",
        "session": { "id": hex_text(&grant.id), "secret": hex_text(&grant.secret), "expires": grant.expires.to_string() },
        "leader": LEADER,
        "follower": FOLLOWER,
        "probes": valid_probes(),
        "bad": invalid_probes(),
    })
}

#[test]
fn the_vectors_match_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contract/vectors/punch.json");
    let mut text = serde_json::to_string_pretty(&vectors()).unwrap();
    text.push('\n');
    if std::env::var_os("NEARPATH_WRITE_VECTORS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(
        file == text,
        "{} differs: see the top of this test",
        path.display()
    );
}
