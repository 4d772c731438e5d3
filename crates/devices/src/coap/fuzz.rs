//! An endpoint whose functions answer at once or never, for the fuzz target.

use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use coap_lite::ResponseType;

use super::endpoint::{CoapEffect, CoapEndpoint, CoapResponse};
use crate::limits::CoapLimits;

/// An endpoint without a socket.
pub(crate) struct TestEndpoint(CoapEndpoint);

/// A datagram that the endpoint sent.
pub(crate) struct SentDatagram {
    pub to: SocketAddr,
    pub bytes: usize,
}

impl TestEndpoint {
    pub(crate) fn new(limits: CoapLimits, now: Instant) -> Self {
        Self(CoapEndpoint::new(limits, 7, now))
    }

    /// Handles a datagram; the function called for it answers with `answer`, or not at all.
    pub(crate) fn handle_datagram(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        answer: Option<Vec<u8>>,
        now: Instant,
    ) -> Vec<SentDatagram> {
        let mut effects = Vec::new();
        self.0.handle_datagram(from, datagram, now, &mut effects);
        let calls: Vec<u64> = effects.iter().filter_map(call_id).collect();
        if let Some(body) = answer {
            for call_id in calls {
                let answer = CoapResponse {
                    code: ResponseType::Content,
                    format: None,
                    body: Bytes::from(body.clone()),
                };
                self.0.complete_call(call_id, answer, now, &mut effects);
            }
        }
        self.0.run_timers(now, &mut effects);
        effects.into_iter().filter_map(sent_datagram).collect()
    }
}

fn call_id(effect: &CoapEffect) -> Option<u64> {
    match effect {
        CoapEffect::Call(call_id, ..) => Some(*call_id),
        _ => None,
    }
}

fn sent_datagram(effect: CoapEffect) -> Option<SentDatagram> {
    match effect {
        CoapEffect::Send(to, bytes) => Some(SentDatagram {
            to,
            bytes: bytes.len(),
        }),
        _ => None,
    }
}
