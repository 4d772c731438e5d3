//! What is written is read; what nobody knows does no harm.

use crate::punch::Transport;
use crate::punch::agent::Message;
use crate::punch::candidate::{Candidate, Kind};
use proptest::prelude::*;

use super::*;

fn id(node: &str) -> SpiffeId {
    SpiffeId::gateway("job", node)
}

fn reads<T: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug>(message: &T) {
    let text = serde_json::to_string(message).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), message, "{text}");
}

#[test]
fn every_word_up_is_read_as_it_was_said() {
    let session = Hex([7; 16]);
    reads(&Said::Call { call: 1, peer: id("b"), about: "edge".into(), within: 10, hello: None });
    reads(&Said::Call { call: 1, peer: id("b"), about: "edge".into(), within: 10, hello: Some(hello()) });
    reads(&Said::Tell { session, word: Word::Relay });
    reads(&Said::HangUp { session });
    reads(&Said::Report { to: None, report: Report::Ready });
    reads(&Said::Report { to: Some(id("b")), report: Report::Failed { why: "full".into() } });
    reads(&Said::Report { to: None, report: Report::Other { body: serde_json::json!({"a": [1, null]}) } });
}

#[test]
fn every_word_down_is_read_as_it_was_told() {
    let session = Hex([7; 16]);
    let servers = vec![Observer {
        transport: Transport::Udp,
        addr: "192.0.2.1:3478".parse().unwrap(),
        second_address: true,
        second_port: false,
    }];
    let observe = Observe { token: Hex([1; 16]), key: Hex([2; 32]), servers };
    let seen = "[2001:db8::1]:5".parse().unwrap();
    reads(&Told::Welcome(Welcome { you: id("a"), job: "j".into(), leader: true, seen, life: 9, observe }));
    reads(&Told::Granted(granted()));
    reads(&Told::Granted(Granted { call: None, hello: Some(hello()), ..granted() }));
    reads(&Told::Refused { call: 1, why: Refusal::Absent });
    reads(&Told::HungUp { session, why: HungUp::NoSuch });
    reads(&Told::Report { from: id("a"), report: Report::Available { output: "part-1".into() } });
    reads(&Told::Undelivered { to: None });
    reads(&Told::Bye { why: Bye::Draining });
}

fn granted() -> Granted {
    Granted {
        call: Some(3),
        peer: id("b"),
        about: String::new(),
        session: Hex([7; 16]),
        secret: Hex([77; 32]),
        expires: 9,
        life: 1000,
        pass: Pass("p77".into()),
        hello: None,
    }
}

fn hello() -> Base64 {
    Base64((&b"hello"[..]).into())
}

#[test]
fn a_newer_rendezvous_may_have_more_reasons() {
    let told = serde_json::from_str(r#"{"type":"bye","why":"moon","since":3}"#).unwrap();
    assert_eq!(Told::Bye { why: Bye::Unknown }, told);
    let told = serde_json::from_str(r#"{"type":"refused","call":1,"why":"moon"}"#).unwrap();
    assert_eq!(Told::Refused { call: 1, why: Refusal::Unknown }, told);
}

#[test]
fn no_life_is_endless() {
    let now = Instant::now();
    let (grant, until) = Granted { life: u64::MAX, ..granted() }.grant(now);
    assert!(until <= now + Duration::from_millis(MOST_OF_A_LIFE));
    assert_eq!((grant.id, grant.secret, grant.expires), ([7; 16], [77; 32], 9));
}

#[test]
fn nobody_prints_a_secret() {
    assert!(!format!("{:?}", granted()).contains("77"), "{:?}", granted());
}

proptest! {
    #[test]
    fn an_offer_is_the_machines_own(ports in prop::collection::vec(any::<(u16, bool, bool)>(), 0..20)) {
        let candidate = |&(port, udp, host): &(u16, bool, bool)| Candidate::new(
            if host { Kind::Host } else { Kind::Reflexive },
            if udp { Transport::Udp } else { Transport::Tcp },
            ([192, 0, 2, 1], port).into(),
            port,
        );
        let message = Message::Offer(ports.iter().map(candidate).take(16).collect());
        let text = serde_json::to_string(&Word::from(message.clone())).unwrap();
        prop_assert!(text.len() < LONGEST / 2);
        prop_assert_eq!(Message::try_from(serde_json::from_str::<Word>(&text).unwrap()), Ok(message));
    }

    #[test]
    fn any_text_is_read_without_harm(text: String) {
        let _ = serde_json::from_str::<Said>(&text);
        let _ = serde_json::from_str::<Told>(&text);
    }
}
