use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::policy::ZeroRtt;
use crate::{FunctionId, Locality};

fn function() -> impl Strategy<Value = FunctionId> {
    "[a-z][a-z0-9-]{0,20}[a-z0-9](\\.[a-z]{1,9})?".prop_map(|name| name.parse().unwrap())
}

fn callee() -> impl Strategy<Value = Callee> {
    let zero_rtt = prop_oneof![Just(ZeroRtt::Always), Just(ZeroRtt::Idempotent), Just(ZeroRtt::Never)];
    let locality = prop_oneof![Just(Locality::SameNode), Just(Locality::OtherNode)];
    let peer = ("[a-z0-9.]{0,60}", any::<std::net::SocketAddr>(), locality, any::<bool>());
    let peer = peer.prop_map(|(name, addr, locality, leaving)| {
        let addr = std::net::SocketAddr::new(addr.ip().to_canonical(), addr.port()); // scopes and flows stay on their machine
        Peer { name, addr, locality, leaving }
    });
    let peers = proptest::collection::vec(peer, 0..4);
    (function(), proptest::collection::vec(function(), 0..3), zero_rtt, peers)
        .prop_map(|(function, aliases, zero_rtt, peers)| Callee { function, aliases, zero_rtt, peers })
}

fn tally() -> impl Strategy<Value = Tally> {
    let counts = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<[u32; BUCKETS]>());
    (function(), counts).prop_map(|(callee, (open, ended, failed, micros, latency))| Tally {
        callee,
        open,
        ended,
        failed,
        micros,
        latency,
    })
}

/// A frame without its length, which is right.
fn body(frame: &[u8]) -> &[u8] {
    let (length, body) = frame.split_first_chunk().unwrap();
    assert_eq!(u32::from_le_bytes(*length) as usize, body.len());
    body
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        all in proptest::collection::vec(callee(), 0..4), tallied in proptest::collection::vec(tally(), 0..4),
        name in "[a-z0-9.]{0,60}", datagrams in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..DATAGRAMS),
    ) {
        let frame = callees(&all);
        prop_assert_eq!(FromNode::read(body(&frame)), Ok(FromNode::Callees(all)));
        prop_assert_eq!(FromWatchdog::read(body(&tallies(&tallied))), Ok(FromWatchdog::Tallies(tallied)));
        let half = Handshake { callee: name, datagrams };
        let frame = handshake(&half);
        prop_assert_eq!(FromWatchdog::read(body(&frame)), Ok(FromWatchdog::Handshake(half.clone())));
        prop_assert_eq!(FromNode::read(body(&frame)), Ok(FromNode::Handshake(half)));
    }

    #[test]
    fn a_part_is_never_the_whole(all in proptest::collection::vec(callee(), 1..4), cut: usize, more: u8) {
        let frame = callees(&all);
        let body = body(&frame);
        prop_assert!(FromNode::read(&body[..1 + cut % (body.len() - 1)]).is_err());
        let longer = [body, &[more]].concat();
        prop_assert_eq!(FromNode::read(&longer), Err(BadFrame::Length));
    }

    #[test]
    fn any_bytes_are_read_without_harm(kind in 0u8..6, bytes: Vec<u8>) {
        let frame = [&[kind], &bytes[..]].concat();
        let _ = FromNode::read(&frame);
        let _ = FromWatchdog::read(&frame);
    }
}

#[test]
fn faults_are_told_apart() {
    assert_eq!(FromNode::read(&[]), Err(BadFrame::Length));
    assert_eq!(FromNode::read(&[kind::TALLIES, 0, 0]), Err(BadFrame::Kind(4)), "a node counts nothing");
    assert_eq!(FromWatchdog::read(&[kind::PROVISION]), Err(BadFrame::Kind(1)), "nor is it provisioned");
    assert_eq!(FromWatchdog::read(&[kind::TALLIES, 255, 255]), Err(BadFrame::TooMuch));
    assert_eq!(FromWatchdog::read(&[kind::HANDSHAKE, 1, 255, 0, 0]), Err(BadFrame::Name));
    assert_eq!(FromWatchdog::read(&[kind::HANDSHAKE, 0, 1, 0, 255, 255]), Err(BadFrame::TooMuch));
    assert_eq!(FromNode::read(&[kind::CALLEES, 1, 0, 1, b'f', 0, 0, 3, 0, 0]), Err(BadFrame::Number));
    let peer = [&[0; 18][..], b"\x01i", &[4]].concat(); // a bit that has no meaning
    let frame = [&[kind::CALLEES, 1, 0, 1, b'f', 0, 0, 0, 1, 0], &peer[..]].concat();
    assert_eq!(FromNode::read(&frame), Err(BadFrame::Number));
}

/// The bytes that the contract shows.
#[test]
fn as_the_contract_has_it() {
    let (name, addr) = ("i7".to_owned(), "10.62.0.9:8080".parse().unwrap());
    let peer = Peer { name, addr, locality: Locality::SameNode, leaving: true };
    let callee = |peer: &Peer| Callee {
        function: "f.n".parse().unwrap(),
        aliases: vec!["a.n".parse().unwrap()],
        zero_rtt: ZeroRtt::Idempotent,
        peers: vec![peer.clone()],
    };
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 62, 0, 9];
    let head = b"\x26\0\0\0\x02\x01\0\x03f.n\x01\0\x03a.n\x01\x01\0";
    assert_eq!(callees(&[callee(&peer)]), [&head[..], &mapped, b"\x90\x1f\x02i7\x01"].concat());
    let elsewhere = Peer { locality: Locality::OtherNode, ..peer };
    assert_eq!(callees(&[callee(&elsewhere)]), [&head[..], &mapped, b"\x90\x1f\x02i7\x03"].concat());
    let half = Handshake { callee: "i7".into(), datagrams: vec![b"abc".to_vec()] };
    assert_eq!(handshake(&half), b"\x0b\0\0\0\x03\x02i7\x01\0\x03\0abc");
}

#[test]
fn buckets_are_powers_of_four() {
    let of = |micros| Tally::bucket(Duration::from_micros(micros));
    assert_eq!([0, 3, 4, 15, 16, 63, 64].map(of), [0, 0, 1, 1, 2, 2, 3]);
    assert_eq!(Tally::bucket(Duration::MAX), BUCKETS - 1);
}
