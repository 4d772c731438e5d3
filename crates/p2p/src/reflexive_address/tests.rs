//! Who is answered, and with how much.

use proptest::prelude::*;

use super::*;
use crate::ticket::Key;

const NOW: u64 = 1_000_000;

fn pair() -> (Judge, Asker) {
    let judge = Judge::new(&Key::new([3; 32]));
    let (token, key) = judge.token(NOW + 60, [5; 8]);
    let asker = Asker::new(token, &key);
    (judge, asker)
}

fn here(port: u16) -> SocketAddr {
    ([198, 51, 100, 7], port).into()
}

fn answer(judge: &Judge, asker: &Asker, question: Question, from: SocketAddr, unix: u64) -> Option<(From, Answer)> {
    match judge.judge(&asker.ask(&question), (false, false), from, unix) {
        Verdict::Drop => None,
        Verdict::Answer { from, bytes } => Some((from, asker.read(&bytes).expect("an answer is authentic"))),
    }
}

#[test]
fn who_has_a_token_is_told_where_it_is_seen() {
    let (judge, asker) = pair();
    let question = Question { from: From::Here, number: 8, cookie: [0; 16] };
    for seen in [here(4000), "[2001:db8::9]:77".parse().unwrap()] {
        let (from, answer) = answer(&judge, &asker, question, seen, NOW).unwrap();
        assert_eq!((from, answer.seen, answer.number), (From::Here, seen, 8));
    }
}

#[test]
fn an_address_in_ipv4s_clothes_is_an_ipv4_address() {
    let (judge, asker) = pair();
    let question = Question { from: From::Here, number: 8, cookie: [0; 16] };
    let (_, answer) = answer(&judge, &asker, question, "[::ffff:198.51.100.7]:4000".parse().unwrap(), NOW).unwrap();
    assert_eq!(answer.seen, here(4000));
}

#[test]
fn only_a_proven_address_hears_from_other_sockets() {
    let (judge, asker) = pair();
    let ask = |from, cookie| Question { from, number: 1, cookie };
    let (from, first) = answer(&judge, &asker, ask(From::OtherPort, [0; 16]), here(1), NOW).unwrap();
    assert_eq!(from, From::Here, "nothing was proven yet");
    let (from, second) = answer(&judge, &asker, ask(From::OtherPort, first.cookie), here(1), NOW).unwrap();
    assert_eq!((from, second.second_address, second.second_port), (From::OtherPort, false, true));
    let (from, second) = answer(&judge, &asker, ask(From::OtherAddress, first.cookie), here(1), NOW).unwrap();
    assert_eq!((from, second.second_address, second.second_port), (From::OtherAddress, true, false));
    let (from, _) = answer(&judge, &asker, ask(From::OtherPort, first.cookie), here(2), NOW).unwrap();
    assert_eq!(from, From::Here, "another address proves nothing with it");
    let (from, _) = answer(&judge, &asker, ask(From::OtherPort, first.cookie), here(1), NOW + 59).unwrap();
    assert_eq!(from, From::OtherPort, "the span before counts");
}

#[test]
fn a_token_ends_and_a_made_up_one_is_none() {
    let (judge, asker) = pair();
    let question = Question { from: From::Here, number: 8, cookie: [0; 16] };
    assert!(answer(&judge, &asker, question, here(1), NOW + 60).is_none());
    let (token, _) = judge.token(NOW + 60, [6; 8]);
    let stranger = Asker::new(token, &Hex([7; 32]));
    assert!(answer(&judge, &stranger, question, here(1), NOW).is_none());
    let (other, _) = (Judge::new(&Key::new([4; 32])), ());
    assert!(answer(&other, &asker, question, here(1), NOW).is_none());
}

proptest! {
    #[test]
    fn nobody_is_sent_more_than_he_sent(bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
        let (judge, _) = pair();
        let bytes = if magic { [&encoding::MAGIC[..], &bytes].concat() } else { bytes };
        prop_assert_eq!(judge.judge(&bytes, (false, false), here(1), NOW), Verdict::Drop);
    }

    #[test]
    fn a_changed_bit_is_dropped_on_both_sides(at in 0..SIZE * 8, number: u64) {
        let (judge, asker) = pair();
        let question = asker.ask(&Question { from: From::Here, number, cookie: [1; 16] });
        let Verdict::Answer { bytes: answer, .. } = judge.judge(&question, (true, false), here(9), NOW) else { panic!() };
        let flip = |mut bytes: [u8; SIZE]| { bytes[at / 8] ^= 1 << (at % 8); bytes };
        prop_assert_eq!(judge.judge(&flip(question), (true, false), here(9), NOW), Verdict::Drop);
        prop_assert_eq!(asker.read(&flip(answer)), None);
        prop_assert!(asker.read(&answer).is_some_and(|answer| answer.number == number && answer.second_address));
    }
}
