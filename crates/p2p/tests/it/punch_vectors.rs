//! `contract/vectors/punch.json` is what this crate says it is, to the byte.
//!
//! `NEARPATH_WRITE_VECTORS=1` writes the file.

use std::path::Path;
use std::time::Instant;

use nearpath_p2p::punch::probe::{NoProbe, SIZE};
use nearpath_p2p::punch::session::{Grant, Role};
use nearpath_p2p::punch::{Probe, Session};
use serde_json::{Value, json};

const LEADER: &str = "spiffe://example.org/ns/openfaas-fn/fn/map/instance/1";
const FOLLOWER: &str = "spiffe://example.org/ns/openfaas-fn/fn/reduce/instance/2";

fn grant() -> Grant {
    Grant { id: std::array::from_fn(|n| n as u8), secret: [0xa5; 32], expires: 1_800_000_000 }
}

/// A session as this role sees it.
fn session(role: Role) -> Session {
    let (me, peer) = if role == Role::Leader { (LEADER, FOLLOWER) } else { (FOLLOWER, LEADER) };
    Session::new(&grant(), &me.parse().unwrap(), &peer.parse().unwrap(), Instant::now()).unwrap()
}

fn other(role: Role) -> Role {
    if role == Role::Leader { Role::Follower } else { Role::Leader }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn probes() -> Vec<(&'static str, Probe)> {
    let ask = Probe { from: Role::Leader, nonce: 0x0102_0304, ask: Some(1), answer: None, nominates: None, seen: None };
    let four = Some("192.0.2.7:40000".parse().unwrap());
    let six = Some("[2001:db8::7]:40001".parse().unwrap());
    let both = Probe { from: Role::Follower, nonce: 9, ask: Some(1), answer: Some(1), seen: four, ..ask };
    let agrees = Probe { from: Role::Follower, nonce: 9, ask: None, answer: Some(3), nominates: Some(1), seen: six };
    vec![
        ("the leader asks", ask),
        ("the follower answers and asks", both),
        ("the leader answers", Probe { ask: None, answer: Some(1), seen: six, ..ask }),
        ("the leader nominates", Probe { ask: Some(3), nominates: Some(1), ..ask }),
        ("the follower agrees", agrees),
        ("late in a session", Probe { ask: Some(u64::MAX), nominates: Some(u16::MAX), nonce: u64::MAX, ..ask }),
    ]
}

fn good() -> Value {
    let one = |(name, probe): (&str, Probe)| {
        let bytes = probe.encode(&session(probe.from));
        assert_eq!(Probe::decode(&bytes, &session(other(probe.from))), Ok(probe), "{name}");
        json!({
            "name": name,
            "from": if probe.from == Role::Leader { "leader" } else { "follower" },
            "nonce": probe.nonce.to_string(),
            "ask": probe.ask.map(|number| number.to_string()),
            "answer": probe.answer.map(|number| number.to_string()),
            "nomination": probe.nominates,
            "seen": probe.seen.map(|seen| seen.to_string()),
            "bytes": hex(&bytes),
        })
    };
    probes().into_iter().map(one).collect()
}

/// What a follower must not take.
fn bad() -> Value {
    let leader = session(Role::Leader);
    let ask = probes()[0].1;
    let bytes = ask.encode(&leader).to_vec();
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        bytes
    };
    let says_nothing = Probe { ask: None, ..ask }.encode(&leader).to_vec();
    let no_number = Probe { ask: Some(0), ..ask }.encode(&leader).to_vec();
    let own = Probe { from: Role::Follower, ..ask }.encode(&leader).to_vec();
    let strange = Session::new(
        &Grant { expires: 1_800_000_001, ..grant() },
        &LEADER.parse().unwrap(),
        &FOLLOWER.parse().unwrap(),
        Instant::now(),
    );
    let cases = [
        ("a byte short", bytes[..SIZE - 1].to_vec(), NoProbe::Form),
        ("another version", with(4, 2), NoProbe::Form),
        ("another session", with(8, 0xff), NoProbe::Session),
        ("a changed flag", with(5, 7), NoProbe::Tag),
        ("a changed tag", with(SIZE - 1, bytes[SIZE - 1] ^ 1), NoProbe::Tag),
        ("a key with another end", ask.encode(&strange.unwrap()).to_vec(), NoProbe::Tag),
        ("neither asks nor answers", says_nothing, NoProbe::Form),
        ("asks with number 0", no_number, NoProbe::Form),
        ("the follower's own", own, NoProbe::Own),
    ];
    let one = |(name, bytes, fault): (&str, Vec<u8>, NoProbe)| {
        assert_eq!(Probe::decode(&bytes, &session(Role::Follower)), Err(fault), "{name}");
        json!({ "name": name, "fault": format!("{fault:?}").to_lowercase(), "bytes": hex(&bytes) })
    };
    cases.into_iter().map(one).collect()
}

fn vectors() -> Value {
    let grant = grant();
    json!({
        "about": "Examples for contract/punch.md. Bytes are in hexadecimal, 64-bit numbers are texts. `bad` is what the follower drops.",
        "session": { "id": hex(&grant.id), "secret": hex(&grant.secret), "expires": grant.expires.to_string() },
        "leader": LEADER,
        "follower": FOLLOWER,
        "probes": good(),
        "bad": bad(),
    })
}

#[test]
fn the_file_says_what_the_code_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contract/vectors/punch.json");
    let mut text = serde_json::to_string_pretty(&vectors()).unwrap();
    text.push('\n');
    if std::env::var_os("NEARPATH_WRITE_VECTORS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(file == text, "{} differs: see the top of this test", path.display());
}
