//! `contract/vectors/rendezvous.json` is what this crate says it is, to the byte.
//!
//! `NEARPATH_WRITE_VECTORS=1` writes the file.

use std::path::Path;

use nearpath_p2p::message::{
    Base64, Bye, Granted, Hex, HungUp, Observe, Observer, Offered, Pass, Refusal, Report, Said, Told, Welcome, Word,
};
use nearpath_p2p::punch::candidate::Kind;
use nearpath_p2p::punch::{Candidate, Transport};
use nearpath_p2p::reflexive_address::{Asker, From, Judge, Question, Verdict};
use nearpath_p2p::ticket::{Crossing, Job, Key, Ticket};
use nearpath_types::SpiffeId;
use serde_json::{Value, json};

const KEY: [u8; 32] = [0xa5; 32];
const UNTIL: u64 = 1_800_000_000;
const NOW: u64 = 1_799_999_000;

fn job() -> Job {
    "sort".parse().unwrap()
}

fn worker(name: &str, number: u64) -> SpiffeId {
    job().worker(&name.parse().unwrap(), number)
}

fn session() -> Hex<16> {
    Hex(std::array::from_fn(|n| n as u8))
}

fn tickets() -> Value {
    let key = Key::new(KEY);
    let ticket = Ticket { you: worker("map", 3), job: job(), leader: false, until: UNTIL };
    let leader = Ticket { you: worker("lead", 0), leader: true, ..ticket.clone() };
    let (you, peer) = (worker("map", 3), worker("reduce", 1));
    let pass = Crossing { session: session(), job: job(), you, peer, until: UNTIL };
    for one in [&ticket, &leader] {
        assert_eq!(Ticket::open(&one.mint(&key).0, &key, NOW).as_ref(), Ok(one));
    }
    assert_eq!(Crossing::open(&pass.mint(&key).0, &key, NOW), Ok(pass.clone()));
    json!({
        "key": Hex(KEY),
        "ticket": { "is": ticket, "text": ticket.mint(&key) },
        "leader": { "is": leader, "text": leader.mint(&key) },
        "pass": { "is": pass, "text": pass.mint(&key) },
    })
}

fn call(hello: Option<Base64>) -> Said {
    Said::Call { call: 1, peer: worker("reduce", 1), about: "map to reduce".into(), within: 30_000, hello }
}

fn hello() -> Base64 {
    Base64((&b"the first ones"[..]).into())
}

fn said() -> Vec<Said> {
    let session = session();
    let candidate =
        |kind, transport, addr: &str| Offered::from(Candidate::new(kind, transport, addr.parse().unwrap(), 7));
    let candidates = vec![
        candidate(Kind::Host, Transport::Tcp, "192.0.2.7:40000"),
        candidate(Kind::Reflexive, Transport::Udp, "[2001:db8::7]:40001"),
    ];
    vec![
        call(None),
        call(Some(hello())),
        Said::Tell { session, word: Word::Offer { candidates } },
        Said::Tell { session, word: Word::Relay },
        Said::Tell { session, word: Word::Text { piece: 4, has: 2, text: r#"{"moved":{"at":517}}"#.into() } },
        Said::Tell { session, word: Word::Has { pieces: 5 } },
        Said::HangUp { session },
        Said::Report { to: None, report: Report::Ready },
        Said::Report { to: None, report: Report::Finished },
        Said::Report { to: Some(worker("reduce", 1)), report: Report::Available { output: "part-3".into() } },
        Said::Report { to: None, report: Report::Failed { why: "no room on the disk".into() } },
        Said::Report { to: None, report: Report::Other { body: json!({ "rows": 44 }) } },
    ]
}

fn told() -> Vec<Told> {
    let session = session();
    let server = |transport, addr: &str, second_address, second_port| Observer {
        transport,
        addr: addr.parse().unwrap(),
        second_address,
        second_port,
    };
    let servers = vec![
        server(Transport::Udp, "203.0.113.7:7844", false, false),
        server(Transport::Tcp, "0.0.0.0:7845", true, true),
    ];
    let observe = Observe { token: Hex([1; 16]), key: Hex([2; 32]), servers };
    let seen = "192.0.2.7:50000".parse().unwrap();
    let welcome = Welcome { you: worker("map", 3), job: "sort".into(), leader: false, seen, life: 900_000, observe };
    let granted = Granted {
        call: Some(1),
        peer: worker("reduce", 1),
        about: "map to reduce".into(),
        session,
        secret: Hex([3; 32]),
        expires: UNTIL,
        life: 600_000,
        pass: Pass("e30.AA".into()),
        hello: None,
    };
    let called = Granted { call: None, ..granted.clone() };
    let greeted = Granted { hello: Some(hello()), ..called.clone() };
    let mut all = vec![Told::Welcome(welcome)];
    all.extend([granted, called, greeted].map(Told::Granted));
    let refusals = [Refusal::Absent, Refusal::Oneself, Refusal::TooMany, Refusal::TooLong];
    all.extend(refusals.map(|why| Told::Refused { call: 1, why }));
    all.push(Told::Tell { session, word: Word::Relay });
    let ends = [HungUp::Peer, HungUp::Expired, HungUp::NoSuch, HungUp::Absent];
    all.extend(ends.map(|why| Told::HungUp { session, why }));
    all.push(Told::Report { from: worker("map", 3), report: Report::Ready });
    all.extend([None, Some(worker("reduce", 1))].map(|to| Told::Undelivered { to }));
    let byes = [Bye::Draining, Bye::Displaced, Bye::Expired, Bye::Unreadable, Bye::Slow, Bye::TooMany];
    all.extend(byes.map(|why| Told::Bye { why }));
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn observing() -> Value {
    let judge = Judge::new(&Key::new(KEY));
    let (token, key) = judge.token(UNTIL, [9; 8]);
    let asker = Asker::new(token, &key);
    let one = |addr: &str| {
        let question = asker.ask(&Question { from: From::Here, number: 7, cookie: [0; 16] });
        let verdict = judge.judge(&question, (false, false), addr.parse().unwrap(), NOW);
        let Verdict::Answer { bytes, .. } = verdict else { panic!("no answer") };
        let cookie = asker.read(&bytes).unwrap().cookie;
        json!({ "from": addr, "question": hex(&question), "answer": hex(&bytes), "cookie": hex(&cookie) })
    };
    json!({ "token": token, "key": key, "asked": [one("192.0.2.7:40000"), one("[2001:db8::7]:40001")] })
}

#[test]
fn the_vectors_are_what_is_said() {
    let vectors = json!({
        "about": "Examples for contract/rendezvous.md. Bytes are in hexadecimal. `said` and `told` are messages of a line.",
        "tickets": tickets(),
        "said": said(),
        "told": told(),
        "observing": observing(),
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contract/vectors/rendezvous.json");
    if std::env::var_os("NEARPATH_WRITE_VECTORS").is_some() {
        std::fs::write(&path, format!("{vectors:#}\n")).unwrap();
    }
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(written, vectors);
    for (text, message) in written["said"].as_array().unwrap().iter().zip(said()) {
        assert_eq!(Said::read(&text.to_string()), Some(message));
    }
    for (text, message) in written["told"].as_array().unwrap().iter().zip(told()) {
        assert_eq!(serde_json::from_value::<Told>(text.clone()).unwrap(), message);
    }
}
