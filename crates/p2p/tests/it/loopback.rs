//! Two workers on one machine, with foreign clients, false candidates and a silent rendezvous.
//! Needs no root.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nearpath_p2p::driver::{
    BindingProtocol, DriverSettings, LocalPorts, ObserverSet, PeerIntroduction, PunchDriver,
    RelayReason, SearchOutcome, SignalingChannel,
};
use nearpath_p2p::link::connect_link;
use nearpath_p2p::migrate::{MigratingStream, RelayConnection, memory_relays};
use nearpath_p2p::punch::Transport::{self, Tcp, Udp};
use nearpath_p2p::punch::agent::PunchMessage;
use nearpath_p2p::punch::candidate::{Candidate, CandidateKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;

use nearpath_testkit::p2p::exchange::{self, EXCHANGE_TIMEOUT, ExchangeResult};
use nearpath_testkit::p2p::introduction::{block_on, introduce_pair, side_of};

/// Protocol without authentication.
#[derive(Debug)]
struct PlainTextProtocol;

impl BindingProtocol for PlainTextProtocol {
    fn request(&self) -> Vec<u8> {
        b"?".to_vec()
    }

    fn parse_response(&self, bytes: &[u8]) -> Option<SocketAddr> {
        std::str::from_utf8(bytes).ok()?.parse().ok()
    }
}

fn no_observers() -> ObserverSet {
    ObserverSet {
        udp: Vec::new(),
        tcp: Vec::new(),
        protocol: Arc::new(PlainTextProtocol),
    }
}

fn settings() -> DriverSettings {
    DriverSettings {
        loopback: true,
        ..exchange::migration_settings()
    }
}

fn memory_relay_pair() -> [Option<Box<dyn RelayConnection>>; 2] {
    let (near, far) = memory_relays(8);
    [Some(Box::new(near)), Some(Box::new(far))]
}

async fn run_both(
    sides: [PeerIntroduction; 2],
    relays: [Option<Box<dyn RelayConnection>>; 2],
    transports: &[Transport],
) -> [ExchangeResult; 2] {
    let ([a, b], [near, far]) = (sides, relays);
    let both = async {
        tokio::try_join!(
            exchange::run_exchange(a, near, transports, 100_000, settings()),
            exchange::run_exchange(b, far, transports, 100_000, settings())
        )
    };
    let (a, b) = both.await.unwrap();
    assert_eq!((a.sent, b.sent), (b.received, a.received));
    [a, b]
}

fn transports_of(went: &[ExchangeResult; 2]) -> [Option<Transport>; 2] {
    [&went[0], &went[1]].map(|went| match went.verdict {
        SearchOutcome::Direct { transport, .. } => Some(transport),
        _ => None,
    })
}

#[test]
fn two_workers_connect_over_the_bound_transports() {
    for (transports, taken) in [(&[Tcp][..], Tcp), (&[Udp], Udp), (&[Tcp, Udp], Tcp)] {
        let went = block_on(run_both(
            introduce_pair(&no_observers()),
            memory_relay_pair(),
            transports,
        ));
        assert_eq!(transports_of(&went), [Some(taken); 2]);
    }
}

/// Creates introductions whose messages pass through the test.
fn tapped_introductions() -> (
    [PeerIntroduction; 2],
    [mpsc::UnboundedReceiver<PunchMessage>; 2],
    [mpsc::UnboundedSender<PunchMessage>; 2],
) {
    let [mut a, mut b] = introduce_pair(&no_observers());
    let ((to_a, incoming_a), (to_b, incoming_b)) =
        (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let ((outgoing_a, from_a), (outgoing_b, from_b)) =
        (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    a.signaling = SignalingChannel {
        outgoing: outgoing_a,
        incoming: incoming_a,
    };
    b.signaling = SignalingChannel {
        outgoing: outgoing_b,
        incoming: incoming_b,
    };
    ([a, b], [from_a, from_b], [to_a, to_b])
}

async fn forward_messages(
    mut from: mpsc::UnboundedReceiver<PunchMessage>,
    to: mpsc::UnboundedSender<PunchMessage>,
) {
    while let Some(message) = from.recv().await {
        let _ = to.send(message);
    }
}

fn offered_candidates(message: &PunchMessage) -> &[Candidate] {
    match message {
        PunchMessage::Offer(candidates) => candidates,
        PunchMessage::FallBack => &[],
    }
}

/// Foreign clients know every port, and come before the peer.
#[test]
fn foreign_traffic_at_the_ports_changes_nothing() {
    block_on(async {
        let (sides, [mut from_a, from_b], [to_a, to_b]) = tapped_introductions();
        tokio::spawn(forward_messages(from_b, to_a));
        tokio::spawn(async move {
            let offer = from_a.recv().await.unwrap();
            let foreign_streams = send_garbage(offered_candidates(&offer)).await;
            to_b.send(offer).unwrap();
            forward_messages(from_a, to_b).await;
            drop(foreign_streams);
        });
        let went = run_both(sides, memory_relay_pair(), &[Tcp, Udp]).await;
        assert_eq!(transports_of(&went), [Some(Tcp); 2]);
    });
}

/// Opens silent and invalid connections, and sends datagrams of all lengths.
async fn send_garbage(ports: &[Candidate]) -> Vec<TcpStream> {
    let mut foreign_streams = Vec::new();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for port in ports.iter().filter(|port| port.addr.is_ipv4()) {
        for n in 0..40 {
            let garbage = vec![0x0e; n * 13];
            if port.transport == Udp {
                let _ = socket.send_to(&garbage, port.addr).await;
            } else if let Ok(Ok(mut stream)) =
                tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(port.addr))
                    .await
            {
                let _ = stream.write_all(&garbage).await;
                foreign_streams.push(stream);
            }
        }
    }
    foreign_streams
}

/// The peer offers sixteen addresses, none of them its own.
#[test]
fn a_peer_with_false_candidates_is_reached_over_the_relay() {
    block_on(async {
        let (sides, from, [to_a, to_b]) = tapped_introductions();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let expected = silent.local_addr().unwrap();
        let false_candidate = |n: u16| match n {
            0 => Candidate::new(CandidateKind::Host, Tcp, expected, n),
            _ => Candidate::new(
                CandidateKind::Host,
                if n < 8 { Tcp } else { Udp },
                ([127, 0, 0, 1], 1024 + n).into(),
                n,
            ),
        };
        for to in [&to_a, &to_b] {
            to.send(PunchMessage::Offer((0..16).map(false_candidate).collect()))
                .unwrap();
        }
        let went = run_both(sides, memory_relay_pair(), &[Tcp, Udp]).await;
        let outcomes = [&went[0], &went[1]].map(|went| went.verdict);
        assert_eq!(outcomes, [SearchOutcome::Relayed(RelayReason::NoPath); 2]);
        drop((from, to_a, to_b));
    });
}

#[test]
fn losing_the_rendezvous_after_the_offers_does_not_matter() {
    block_on(async {
        let (sides, [mut from_a, mut from_b], [to_a, to_b]) = tapped_introductions();
        tokio::spawn(async move {
            let (offer, other) = (from_a.recv().await.unwrap(), from_b.recv().await.unwrap());
            to_b.send(offer).unwrap();
            to_a.send(other).unwrap();
        });
        let went = run_both(sides, memory_relay_pair(), &[Udp]).await;
        assert_eq!(transports_of(&went), [Some(Udp); 2]);
    });
}

#[test]
fn a_peer_without_an_offer_stays_on_the_relay() {
    block_on(async {
        let (sides, kept, also_kept) = tapped_introductions();
        let went = run_both(sides, memory_relay_pair(), &[Tcp, Udp]).await;
        let outcomes = [&went[0], &went[1]].map(|went| went.verdict);
        assert_eq!(outcomes, [SearchOutcome::Relayed(RelayReason::NoOffer); 2]);
        drop((kept, also_kept));
    });
}

/// Observers respond wrongly, not at all, or with garbage.
#[test]
fn wrong_reflexive_addresses_do_not_prevent_a_direct_connection() {
    block_on(async {
        let (wrong, silent) = (
            UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await,
        );
        let silent = silent.unwrap();
        let (udp, tcp) = (wrong.local_addr().unwrap(), silent.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((_, from)) = wrong.recv_from(&mut [0; 9]).await {
                let _ = wrong.send_to(b"garbage", from).await;
                let _ = wrong.send_to(b"127.0.0.1:9", from).await;
            }
        });
        let observers = ObserverSet {
            udp: vec![udp],
            tcp: vec![tcp],
            protocol: Arc::new(PlainTextProtocol),
        };
        let went = run_both(introduce_pair(&observers), memory_relay_pair(), &[Tcp, Udp]).await;
        assert_eq!(transports_of(&went), [Some(Tcp); 2]);
        drop(silent);
    });
}

/// Nothing runs in the background for a dropped link.
#[test]
fn a_driver_ends_with_its_stream() {
    block_on(async {
        let [introduction, _peer] = introduce_pair(&no_observers());
        let ports = LocalPorts::bind(&[Tcp, Udp]).unwrap();
        let (driver, arrivals, _) = PunchDriver::new(ports, introduction, settings()).unwrap();
        let running = tokio::spawn(driver.run());
        drop(MigratingStream::without_relay(arrivals));
        tokio::time::timeout(EXCHANGE_TIMEOUT, running)
            .await
            .unwrap()
            .unwrap();
    });
}

/// The worker ends before anything is decided; its peer gets an error.
#[test]
fn a_dropped_peer_is_an_error_and_no_end() {
    block_on(async {
        let ([a, b], [near, far]) = (introduce_pair(&no_observers()), memory_relay_pair());
        let ports = [(); 2].map(|()| LocalPorts::bind(&[Tcp]).unwrap());
        let [first, second] = ports;
        let (caller, called) = (side_of(&a), side_of(&b));
        let links = tokio::join!(
            connect_link(first, a, caller, near, settings()),
            connect_link(second, b, called, far, settings())
        );
        let (mut kept, dropped) = (links.0.unwrap(), links.1.unwrap());
        drop(dropped);
        let read = tokio::time::timeout(EXCHANGE_TIMEOUT, kept.read_to_end(&mut Vec::new()))
            .await
            .unwrap();
        assert!(read.is_err(), "{read:?}");
    });
}
