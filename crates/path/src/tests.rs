use super::*;

const NEAR: Edge =
    Edge { same_node: true, callee_in_domain: true, same_domain: true, caller_is_party: true, callee_is_party: true };
const APART: Edge = Edge { callee_in_domain: false, ..NEAR };
const FAR: Edge = Edge { same_node: false, ..NEAR };
const PLAIN: Call = Call { upgrade: false, grpc: false };
const UPGRADE: Call = Call { upgrade: true, ..PLAIN };
/// Every means there is.
const ABLE: Carrier =
    Carrier { transport: Transport::Auto, caller_named: true, callee_named: true, udp_blocked: false, tls: true };

fn chosen(edge: Edge, carrier: Carrier, call: Call) -> Choice {
    choose(&Facts { edge, carrier, call })
}

fn choice(path: Path, obstacle: Obstacle) -> Choice {
    Choice { path, obstacle: Some(obstacle) }
}

#[test]
fn nothing_in_the_way_is_shared_memory() {
    let every = [Transport::Auto, Transport::Quic, Transport::Tls13, Transport::Tls12, Transport::Tcp];
    for transport in every {
        let choice = chosen(NEAR, Carrier { transport, ..ABLE }, PLAIN);
        assert_eq!(choice, Choice { path: Path::Shm, obstacle: None });
    }
}

#[test]
fn what_stands_against_memory_leads_to_http_within_a_machine_and_is_told() {
    let table = [
        (Edge { callee_in_domain: false, ..NEAR }, PLAIN, Obstacle::NoDomain),
        (Edge { same_domain: false, ..NEAR }, PLAIN, Obstacle::OtherDomain),
        (Edge { caller_is_party: false, ..NEAR }, PLAIN, Obstacle::CallerNoParty),
        (Edge { callee_is_party: false, ..NEAR }, PLAIN, Obstacle::NoParty),
        (NEAR, UPGRADE, Obstacle::Upgrade),
        (NEAR, Call { grpc: true, ..PLAIN }, Obstacle::Grpc),
    ];
    for (edge, call, obstacle) in table {
        assert_eq!(chosen(edge, ABLE, call), choice(Path::Http, obstacle));
        assert_eq!(chosen(edge, Carrier::PLAIN, call), choice(Path::Http, obstacle));
    }
}

#[test]
fn each_transport_has_its_stand_ins_and_what_they_stand_in_for_is_told() {
    let (quic, tls13, tls12, tcp) = (Transport::Quic, Transport::Tls13, Transport::Tls12, Transport::Tcp);
    let of = |transport| Carrier { transport, ..ABLE };
    let (no_udp, nameless) =
        (|of: Carrier| Carrier { udp_blocked: true, ..of }, |of: Carrier| Carrier { callee_named: false, ..of });
    let no_tls = |of: Carrier| Carrier { tls: false, ..of };
    let mute = |of: Carrier| Carrier { caller_named: false, ..of };
    use Obstacle::{CallerNoIdentity, NoDomain, NoIdentity, OtherNode, UdpBlocked, Upgrade};
    let table = [
        (APART, of(quic), PLAIN, choice(Path::Quic, NoDomain)),
        (APART, of(quic), Call { grpc: true, ..PLAIN }, choice(Path::Quic, NoDomain)),
        (APART, of(quic), UPGRADE, choice(Path::Tls, Upgrade)),
        (APART, no_udp(of(quic)), PLAIN, choice(Path::Tls, UdpBlocked)),
        (APART, no_tls(no_udp(of(quic))), PLAIN, choice(Path::Tls, UdpBlocked)),
        (APART, nameless(of(quic)), PLAIN, choice(Path::Tls, NoIdentity)),
        (APART, mute(of(quic)), PLAIN, choice(Path::Http, CallerNoIdentity)),
        (APART, of(tls13), PLAIN, choice(Path::Tls, NoDomain)),
        (APART, of(tls12), UPGRADE, choice(Path::Tls, NoDomain)),
        (APART, mute(of(tls13)), PLAIN, choice(Path::Http, CallerNoIdentity)),
        (APART, nameless(of(tls13)), PLAIN, choice(Path::Tls, NoDomain)),
        (APART, of(tcp), PLAIN, choice(Path::Http, NoDomain)),
        (FAR, of(Transport::Auto), PLAIN, choice(Path::Quic, OtherNode)),
        (FAR, no_udp(of(Transport::Auto)), PLAIN, choice(Path::Tls, UdpBlocked)),
        (FAR, nameless(no_tls(of(quic))), PLAIN, choice(Path::Tls, NoIdentity)),
        (FAR, no_tls(of(tls13)), PLAIN, choice(Path::Tls, OtherNode)),
        (FAR, of(tcp), PLAIN, choice(Path::Http, OtherNode)),
    ];
    for (edge, carrier, call, wanted) in table {
        assert_eq!(chosen(edge, carrier, call), wanted, "{edge:?} {carrier:?} {call:?}");
    }
}

/// Plain TCP leaves the machine only when that was asked for.
#[test]
fn nothing_leaves_the_machine_unencrypted_by_itself() {
    for transport in [Transport::Auto, Transport::Quic, Transport::Tls13, Transport::Tls12] {
        for bits in 0..32u8 {
            let bit = |n: u8| bits & (1 << n) != 0;
            let carrier =
                Carrier { transport, caller_named: bit(0), callee_named: bit(1), udp_blocked: bit(2), tls: bit(3) };
            assert_ne!(chosen(FAR, carrier, Call { upgrade: bit(4), grpc: false }).path, Path::Http);
        }
    }
}

/// Who shows a certificate to others never speaks in clear to who asks for one: an instance without one is waited for.
#[test]
fn who_asks_for_encryption_gets_it_from_every_caller_that_can() {
    for transport in [Transport::Quic, Transport::Tls13, Transport::Tls12] {
        for bits in 0..32u8 {
            let bit = |n: u8| bits & (1 << n) != 0;
            let carrier =
                Carrier { transport, callee_named: bit(0), udp_blocked: bit(1), tls: bit(2), caller_named: true };
            let path = chosen(APART, carrier, Call { upgrade: bit(3), grpc: bit(4) }).path;
            assert!(path == Path::Quic || path == Path::Tls, "{carrier:?}");
        }
    }
}

#[test]
fn the_most_lasting_obstacle_is_told() {
    let edge = Edge { callee_in_domain: false, callee_is_party: false, ..NEAR };
    assert_eq!(chosen(edge, ABLE, UPGRADE).obstacle, Some(Obstacle::NoDomain));
}

#[test]
fn names_are_words_and_texts_are_sentences() {
    for obstacle in Obstacle::ALL {
        assert!(obstacle.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{obstacle}");
        assert!(obstacle.to_string().len() > 10, "{obstacle}");
    }
    assert_eq!(Path::ALL.map(Path::name), ["shm", "quic", "tls", "http"]);
}
