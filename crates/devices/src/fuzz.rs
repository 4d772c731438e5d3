//! Entry points of the fuzz target `devices`: decoding and decisions, without sockets and functions.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::coap::fuzz::{SentDatagram, TestEndpoint};
use crate::limits::CoapLimits;
use crate::mqtt::fuzz::decode_packets;

/// Decodes MQTT packets, of the given version or the one that the first packet names, and encodes them again. Returns their number.
pub fn mqtt(bytes: &[u8], version: Option<u8>) -> usize {
    decode_packets(BytesMut::from(bytes), version)
}

/// Feeds a CoAP endpoint datagrams of two unproven clients, each `[from, pause, length, bytes…]`. Functions answer at once or never.
///
/// # Panics
/// When it sends an address, which may be forged, more than three times the bytes that came from there.
pub fn coap(mut bytes: &[u8]) {
    let mut now = Instant::now();
    let mut endpoint = TestEndpoint::new(
        CoapLimits {
            trust_loopback: false,
            ..CoapLimits::default()
        },
        now,
    );
    let (mut received, mut sent): (HashMap<SocketAddr, usize>, HashMap<SocketAddr, usize>) =
        Default::default();
    while let [from, pause, length, rest @ ..] = bytes {
        let (datagram, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        bytes = rest;
        let from = SocketAddr::from(([192, 0, 2, from & 1], 5_683));
        now += Duration::from_millis(u64::from(*pause) * 50);
        *received.entry(from).or_default() += datagram.len();
        let answers = (pause & 1 == 0).then(|| vec![b'x'; usize::from(*pause) * 20]);
        for SentDatagram { to, bytes } in endpoint.handle_datagram(from, datagram, answers, now) {
            *sent.entry(to).or_default() += bytes;
        }
        for (to, sent) in &sent {
            let received = received.get(to).copied().unwrap_or(0);
            assert!(*sent <= 3 * received, "{sent} bytes for {received}");
        }
    }
}
