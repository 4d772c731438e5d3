use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::policy::ZeroRttPolicy;
use crate::{FunctionId, InstanceLocality};

fn function() -> impl Strategy<Value = FunctionId> {
    "[a-z][a-z0-9-]{0,20}[a-z0-9](\\.[a-z]{1,9})?".prop_map(|name| name.parse().unwrap())
}

fn callee() -> impl Strategy<Value = CalleeEntry> {
    let zero_rtt = prop_oneof![
        Just(ZeroRttPolicy::Always),
        Just(ZeroRttPolicy::Idempotent),
        Just(ZeroRttPolicy::Never)
    ];
    let locality = prop_oneof![
        Just(InstanceLocality::SameNode),
        Just(InstanceLocality::OtherNode)
    ];
    let peer = (
        "[a-z0-9.]{0,60}",
        any::<std::net::SocketAddr>(),
        locality,
        any::<bool>(),
    );
    let peer = peer.prop_map(|(name, addr, locality, leaving)| {
        let addr = std::net::SocketAddr::new(addr.ip().to_canonical(), addr.port()); // scopes and flows stay on their machine
        CalleePeer {
            name,
            addr,
            locality,
            leaving,
        }
    });
    let peers = proptest::collection::vec(peer, 0..4);
    (
        function(),
        proptest::collection::vec(function(), 0..3),
        zero_rtt,
        peers,
    )
        .prop_map(|(function, aliases, zero_rtt, peers)| CalleeEntry {
            function,
            aliases,
            zero_rtt,
            peers,
        })
}

fn tally() -> impl Strategy<Value = CallTally> {
    let counts = (
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
        any::<u64>(),
        any::<[u32; LATENCY_BUCKETS]>(),
    );
    (function(), counts).prop_map(
        |(callee, (open, ended, failed, micros, latency))| CallTally {
            callee,
            open,
            ended,
            failed,
            micros,
            latency,
        },
    )
}

/// A frame without its length, which is right.
fn frame_body(frame: &[u8]) -> &[u8] {
    let (length, body) = frame.split_first_chunk().unwrap();
    assert_eq!(u32::from_le_bytes(*length) as usize, body.len());
    body
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        all in proptest::collection::vec(callee(), 0..4), tallied in proptest::collection::vec(tally(), 0..4),
        name in "[a-z0-9.]{0,60}", datagrams in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..MAX_DATAGRAMS),
    ) {
        let frame = callees_frame(&all);
        prop_assert_eq!(NodeFrame::read(frame_body(&frame)), Ok(NodeFrame::Callees(all)));
        prop_assert_eq!(WatchdogFrame::read(frame_body(&tallies_frame(&tallied))), Ok(WatchdogFrame::Tallies(tallied)));
        let half = HandshakeMessage { callee: name, datagrams };
        let frame = handshake_frame(&half);
        prop_assert_eq!(WatchdogFrame::read(frame_body(&frame)), Ok(WatchdogFrame::Handshake(half.clone())));
        prop_assert_eq!(NodeFrame::read(frame_body(&frame)), Ok(NodeFrame::Handshake(half)));
    }

    #[test]
    fn a_part_is_never_the_whole(all in proptest::collection::vec(callee(), 1..4), cut: usize, more: u8) {
        let frame = callees_frame(&all);
        let body = frame_body(&frame);
        prop_assert!(NodeFrame::read(&body[..1 + cut % (body.len() - 1)]).is_err());
        let longer = [body, &[more]].concat();
        prop_assert_eq!(NodeFrame::read(&longer), Err(IdentityFrameError::Length));
    }

    #[test]
    fn any_bytes_are_read_without_harm(kind in 0u8..6, bytes: Vec<u8>) {
        let frame = [&[kind], &bytes[..]].concat();
        let _ = NodeFrame::read(&frame);
        let _ = WatchdogFrame::read(&frame);
    }
}

#[test]
fn each_fault_has_its_own_error() {
    assert_eq!(NodeFrame::read(&[]), Err(IdentityFrameError::Length));
    assert_eq!(
        NodeFrame::read(&[kind::TALLIES, 0, 0]),
        Err(IdentityFrameError::Kind(4)),
        "a node counts nothing"
    );
    assert_eq!(
        WatchdogFrame::read(&[kind::PROVISION]),
        Err(IdentityFrameError::Kind(1)),
        "nor is it provisioned"
    );
    assert_eq!(
        WatchdogFrame::read(&[kind::TALLIES, 255, 255]),
        Err(IdentityFrameError::OverLimit)
    );
    assert_eq!(
        WatchdogFrame::read(&[kind::HANDSHAKE, 1, 255, 0, 0]),
        Err(IdentityFrameError::Name)
    );
    assert_eq!(
        WatchdogFrame::read(&[kind::HANDSHAKE, 0, 1, 0, 255, 255]),
        Err(IdentityFrameError::OverLimit)
    );
    assert_eq!(
        NodeFrame::read(&[kind::CALLEES, 1, 0, 1, b'f', 0, 0, 3, 0, 0]),
        Err(IdentityFrameError::Number)
    );
    let peer = [&[0; 18][..], b"\x01i", &[4]].concat(); // a bit that has no meaning
    let frame = [&[kind::CALLEES, 1, 0, 1, b'f', 0, 0, 0, 1, 0], &peer[..]].concat();
    assert_eq!(NodeFrame::read(&frame), Err(IdentityFrameError::Number));
}

/// The bytes that the contract shows.
#[test]
fn frames_have_the_bytes_of_the_contract() {
    let (name, addr) = ("i7".to_owned(), "10.62.0.9:8080".parse().unwrap());
    let peer = CalleePeer {
        name,
        addr,
        locality: InstanceLocality::SameNode,
        leaving: true,
    };
    let callee = |peer: &CalleePeer| CalleeEntry {
        function: "f.n".parse().unwrap(),
        aliases: vec!["a.n".parse().unwrap()],
        zero_rtt: ZeroRttPolicy::Idempotent,
        peers: vec![peer.clone()],
    };
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 62, 0, 9];
    let head = b"\x26\0\0\0\x02\x01\0\x03f.n\x01\0\x03a.n\x01\x01\0";
    assert_eq!(
        callees_frame(&[callee(&peer)]),
        [&head[..], &mapped, b"\x90\x1f\x02i7\x01"].concat()
    );
    let elsewhere = CalleePeer {
        locality: InstanceLocality::OtherNode,
        ..peer
    };
    assert_eq!(
        callees_frame(&[callee(&elsewhere)]),
        [&head[..], &mapped, b"\x90\x1f\x02i7\x03"].concat()
    );
    let half = HandshakeMessage {
        callee: "i7".into(),
        datagrams: vec![b"abc".to_vec()],
    };
    assert_eq!(
        handshake_frame(&half),
        b"\x0b\0\0\0\x03\x02i7\x01\0\x03\0abc"
    );
}

#[test]
fn buckets_are_powers_of_four() {
    let of = |micros| CallTally::bucket_index(Duration::from_micros(micros));
    assert_eq!([0, 3, 4, 15, 16, 63, 64].map(of), [0, 0, 1, 1, 2, 2, 3]);
    assert_eq!(CallTally::bucket_index(Duration::MAX), LATENCY_BUCKETS - 1);
}
