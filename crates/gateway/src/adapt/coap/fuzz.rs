//! An endpoint with functions that answer at once or never, for the fuzz target.

use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use coap_lite::ResponseType;

use super::endpoint::{Answer, Effect, Endpoint};
use crate::adapt::CoapLimits;

/// See the module.
pub(crate) struct Bench(Endpoint);

/// What was sent.
pub(crate) struct Seen {
    pub to: SocketAddr,
    pub bytes: usize,
}

impl Bench {
    pub(crate) fn new(limits: CoapLimits, now: Instant) -> Self {
        Self(Endpoint::new(limits, 7, now))
    }

    /// A datagram comes, and the function called for it answers with `answer`, or not at all.
    pub(crate) fn hear(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        answer: Option<Vec<u8>>,
        now: Instant,
    ) -> Vec<Seen> {
        let mut effects = Vec::new();
        self.0.hear(from, datagram, now, &mut effects);
        let calls: Vec<u64> = effects.iter().filter_map(call).collect();
        if let Some(body) = answer {
            for call in calls {
                let answer = Answer { code: ResponseType::Content, format: None, body: Bytes::from(body.clone()) };
                self.0.answered(call, answer, now, &mut effects);
            }
        }
        self.0.tick(now, &mut effects);
        effects.into_iter().filter_map(seen).collect()
    }
}

fn call(effect: &Effect) -> Option<u64> {
    match effect {
        Effect::Call(call, ..) => Some(*call),
        _ => None,
    }
}

fn seen(effect: Effect) -> Option<Seen> {
    match effect {
        Effect::Send(to, bytes) => Some(Seen { to, bytes: bytes.len() }),
        _ => None,
    }
}
