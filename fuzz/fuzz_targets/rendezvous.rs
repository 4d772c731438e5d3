//! Input of a rendezvous from workers and others: messages and their state, tickets, address
//! probes.
#![no_main]

use std::time::Instant;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use nearpath_p2p::message::{RelayedFrame, RendezvousMessage, WorkerMessage};
use nearpath_p2p::reflexive_address::{BindingDecision, ObserverPolicy};
use nearpath_p2p::ticket::{RelayToken, RendezvousKey, WorkerTicket};
use nearpath_rendezvous::state::{ClockReading, RendezvousState, SecretRng, StateLimits};

struct Counting(u64);

impl SecretRng for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0 += 1;
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
    }
}

fuzz_target!(|data: &[u8]| {
    let frame = Bytes::copy_from_slice(data);
    let parcel = RelayedFrame::decode(&frame);
    assert_eq!(
        parcel.as_ref().map(|parcel| parcel.session),
        RelayedFrame::session_of(&frame)
    );
    assert!(
        parcel.is_none_or(|parcel| parcel.encode() == frame),
        "as it was written"
    );
    let key = RendezvousKey::new([1; 32]);
    let from = ([192, 0, 2, 1], 9).into();
    assert_eq!(
        ObserverPolicy::new(&key).decide(data, (false, false), from, 5),
        BindingDecision::Drop,
        "nobody has a token"
    );
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    assert!(
        WorkerTicket::verify(text, &key, 5).is_err() && RelayToken::verify(text, &key, 5).is_err(),
        "nobody has the key"
    );
    let _ = serde_json::from_str::<RendezvousMessage>(text);
    new_state(text, key);
});

/// Each line of the text is said by one of three workers; what comes of it is a message of the
/// contract.
fn new_state(text: &str, key: RendezvousKey) {
    let now = ClockReading {
        at: Instant::now(),
        unix: 5,
    };
    let mut state = RendezvousState::new(
        key,
        StateLimits {
            max_sessions: 3,
            max_waiting_calls: 3,
            max_kept_messages: 2,
            ..StateLimits::default()
        },
        Counting(0),
    );
    for (line, name) in ["a", "b", "leader"].iter().enumerate() {
        let you = format!("spiffe://job/node/{name}/gateway")
            .parse()
            .expect("a name");
        let ticket = WorkerTicket {
            worker: you,
            job: "job".parse().expect("a job"),
            leader: line == 2,
            until: 50,
        };
        state.connect(line as u64, &ticket, now);
    }
    for (at, said) in text.lines().filter_map(WorkerMessage::parse).enumerate() {
        for action in state.handle_message(at as u64 % 3, said, now) {
            if let nearpath_rendezvous::state::RendezvousAction::Send(_, told) = action {
                let text = serde_json::to_string(&told).expect("messages are JSON");
                assert_eq!(
                    serde_json::from_str::<RendezvousMessage>(&text).expect("as it was written"),
                    told
                );
            }
        }
    }
    (0..3).for_each(|line| state.disconnect(line));
}
