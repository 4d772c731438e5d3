//! What workers and strangers send to a rendezvous: messages of a line and the desk behind them, tickets, questions.
#![no_main]

use std::time::Instant;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use nearpath_p2p::message::{Parcel, Said, Told};
use nearpath_p2p::reflexive_address::{Judge, Verdict};
use nearpath_rendezvous::state::{Chance, Desk, Limits, Moment};
use nearpath_p2p::ticket::{Crossing, Key, Ticket};

struct Counting(u64);

impl Chance for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0 += 1;
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
    }
}

fuzz_target!(|data: &[u8]| {
    let frame = Bytes::copy_from_slice(data);
    let parcel = Parcel::read(&frame);
    assert_eq!(parcel.as_ref().map(|parcel| parcel.session), Parcel::session_of(&frame));
    assert!(parcel.is_none_or(|parcel| parcel.write() == frame), "as it was written");
    let key = Key::new([1; 32]);
    let from = ([192, 0, 2, 1], 9).into();
    assert_eq!(Judge::new(&key).judge(data, (false, false), from, 5), Verdict::Drop, "nobody has a token");
    let Ok(text) = std::str::from_utf8(data) else { return };
    assert!(Ticket::open(text, &key, 5).is_err() && Crossing::open(text, &key, 5).is_err(), "nobody has the key");
    let _ = serde_json::from_str::<Told>(text);
    desk(text, key);
});

/// Each line of the text is said by one of three workers; what comes of it is a message of the contract.
fn desk(text: &str, key: Key) {
    let now = Moment { at: Instant::now(), unix: 5 };
    let mut desk = Desk::new(key, Limits { sessions: 3, waiting: 3, kept: 2, ..Limits::default() }, Counting(0));
    for (line, name) in ["a", "b", "leader"].iter().enumerate() {
        let you = format!("spiffe://job/node/{name}/gateway").parse().expect("a name");
        let ticket = Ticket { you, job: "job".parse().expect("a job"), leader: line == 2, until: 50 };
        desk.arrive(line as u64, &ticket, now);
    }
    for (at, said) in text.lines().filter_map(Said::read).enumerate() {
        for action in desk.say(at as u64 % 3, said, now) {
            if let nearpath_rendezvous::state::Action::Tell(_, told) = action {
                let text = serde_json::to_string(&told).expect("messages are JSON");
                assert_eq!(serde_json::from_str::<Told>(&text).expect("as it was written"), told);
            }
        }
    }
    (0..3).for_each(|line| desk.leave(line));
}
