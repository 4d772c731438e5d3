//! What the fuzz target `adapters` reaches: each adapter's decoding and decisions, without sockets and functions.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::CoapLimits;
use super::coap::fuzz::{Bench, Seen};
use super::mqtt::fuzz::packets;

/// Cuts bytes into MQTT packets, of the version that the first one says or the one given, and writes back what can be. How many
/// there were.
pub fn mqtt(bytes: &[u8], version: Option<u8>) -> usize {
    packets(BytesMut::from(bytes), version)
}

/// A CoAP endpoint that hears datagrams of two strangers, each `[from, pause, length, bytes…]`, and whose functions answer at once
/// or never.
///
/// # Panics
/// When a stranger, who may have forged the address, makes it send more than three times what came from there.
pub fn coap(mut bytes: &[u8]) {
    let mut now = Instant::now();
    let mut bench = Bench::new(CoapLimits { trust_loopback: false, ..CoapLimits::default() }, now);
    let (mut heard, mut sent): (HashMap<SocketAddr, usize>, HashMap<SocketAddr, usize>) = Default::default();
    while let [from, pause, length, rest @ ..] = bytes {
        let (datagram, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        bytes = rest;
        let from = SocketAddr::from(([192, 0, 2, from & 1], 5_683));
        now += Duration::from_millis(u64::from(*pause) * 50);
        *heard.entry(from).or_default() += datagram.len();
        let answers = (pause & 1 == 0).then(|| vec![b'x'; usize::from(*pause) * 20]);
        for Seen { to, bytes } in bench.hear(from, datagram, answers, now) {
            *sent.entry(to).or_default() += bytes;
        }
        for (to, sent) in &sent {
            let heard = heard.get(to).copied().unwrap_or(0);
            assert!(*sent <= 3 * heard, "{sent} bytes for {heard}");
        }
    }
}
