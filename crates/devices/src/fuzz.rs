//! Entry points of the fuzz target `devices`: decoding and decisions, without sockets and
//! functions.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::coap::fuzz::{SentDatagram, TestEndpoint};
use crate::limits::CoapLimits;
use crate::mqtt::fuzz::decode_packets;

/// Decodes MQTT packets and encodes PUBLISH again. Returns the number of packets.
///
/// `version` is the protocol level: 4 is MQTT 3.1.1, 5 is MQTT 5.0. Without a version, CONNECT
/// selects it.
pub fn decode_mqtt_packets(bytes: &[u8], version: Option<u8>) -> usize {
    decode_packets(BytesMut::from(bytes), version)
}

/// Feeds datagrams of two clients into a CoAP endpoint. Neither client has proved its address.
///
/// Each datagram is `[from, pause, length, bytes…]`: the lowest bit of `from` selects the client,
/// `pause` is the delay in units of 50 ms. After an even `pause` the function answers at once, with
/// 20 bytes per unit. After an odd `pause` it never answers.
///
/// # Panics
/// When a client gets more than three times the bytes that it sent (RFC 9175 section 2.4). A forged
/// source address would make the endpoint an amplifier.
pub fn run_coap_endpoint(mut bytes: &[u8]) {
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
        let answer = (pause & 1 == 0).then(|| vec![b'x'; usize::from(*pause) * 20]);
        for SentDatagram { to, bytes } in endpoint.handle_datagram(from, datagram, answer, now) {
            *sent.entry(to).or_default() += bytes;
        }
        for (to, sent) in &sent {
            let received = received.get(to).copied().unwrap_or(0);
            assert!(*sent <= 3 * received, "{sent} bytes for {received}");
        }
    }
}
