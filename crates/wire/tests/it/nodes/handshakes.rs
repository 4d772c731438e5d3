//! Nodes that admit each other, over TLS and over QUIC.

use nearpath_wire::mtls::AlpnProtocol;
use rustls::{HandshakeKind, ProtocolVersion};

use super::fixture::{QuicNode, TlsNode, good_node, read_text};
use crate::quic::fixture::{QuicFixture, run};

#[test]
fn nodes_call_each_other_over_tls_and_learn_their_names() {
    run(async {
        let fixture = QuicFixture::new();
        let (a, b) = (good_node(&fixture, "a"), good_node(&fixture, "b.example"));
        let (at_a, at_b) = (TlsNode::of(&a).await, TlsNode::of(&b).await);
        let (from_a, from_b) = (a.caller_config(), b.caller_config());
        assert_eq!(at_b.call(from_a.mtls_connector(), "b.example").await, "a");
        assert_eq!(at_a.call(from_b.mtls_connector(), "a").await, "b.example");
    });
}

#[test]
fn both_protocols_are_agreed_upon_and_sessions_resumed() {
    run(async {
        let fixture = QuicFixture::new();
        let (a, b) = (good_node(&fixture, "a"), good_node(&fixture, "b"));
        let server = TlsNode::of(&b).await;
        let caller = a.caller_config().mtls_connector();
        let mut kinds = Vec::new();
        for (protocol, name) in [
            (AlpnProtocol::Http1, "http/1.1"),
            (AlpnProtocol::Http2, "h2"),
            (AlpnProtocol::Http2, "h2"),
        ] {
            let stream = server.dial(caller, "b", protocol).await.unwrap();
            let tls = stream.get_ref().1;
            assert_eq!(tls.alpn_protocol(), Some(name.as_bytes()));
            assert_eq!(tls.protocol_version(), Some(ProtocolVersion::TLSv1_3));
            kinds.push(tls.handshake_kind().unwrap());
            // The sessions follow the handshake, so the name is read first.
            assert_eq!(read_text(stream).await, "a");
        }
        assert_eq!(kinds[0], HandshakeKind::Full);
        assert_eq!(kinds[1..], [HandshakeKind::Resumed; 2]);
    });
}

#[test]
fn nodes_call_each_other_over_quic_and_the_next_time_in_the_first_flight() {
    run(async {
        let fixture = QuicFixture::new();
        let (a, b) = (good_node(&fixture, "a"), good_node(&fixture, "b"));
        let (at_a, at_b) = (QuicNode::of(&a), QuicNode::of(&b));
        assert_eq!(at_b.call(a.caller_config(), "b").await, "a early=false");
        assert_eq!(at_b.call(a.caller_config(), "b").await, "a early=true");
        assert_eq!(at_a.call(b.caller_config(), "a").await, "b early=false");
        assert_eq!(at_b.refusals.borrow().count, 0);
    });
}

/// A session that one thread's endpoint gave comes back to another's.
#[test]
fn endpoints_of_one_node_share_their_sessions() {
    run(async {
        let fixture = QuicFixture::new();
        let (a, b) = (good_node(&fixture, "a"), good_node(&fixture, "b"));
        let (first, second) = (QuicNode::of(&b), QuicNode::of(&b));
        assert_eq!(first.call(a.caller_config(), "b").await, "a early=false");
        assert_eq!(second.call(a.caller_config(), "b").await, "a early=true");
    });
}
