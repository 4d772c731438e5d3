//! Two workers on one machine, and what strangers, liars and a rendezvous that falls silent do to them. Needs no root.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nearpath_p2p::driver::{Ask, Driver, Introduction, Line, Observers, Ports, Settings, Verdict, Why};
use nearpath_p2p::link::connect;
use nearpath_p2p::migrate::{Relay, Way, local};
use nearpath_p2p::punch::Transport::{self, Tcp, Udp};
use nearpath_p2p::punch::agent::Message;
use nearpath_p2p::punch::candidate::{Candidate, Kind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;

use nearpath_testkit::p2p::exchange::{self, DEADLINE, Went};
use nearpath_testkit::p2p::introduction::{introduce, on_a_runtime, side_of};

/// Believes whatever it is told.
#[derive(Debug)]
struct Text;

impl Ask for Text {
    fn question(&self) -> Vec<u8> {
        b"?".to_vec()
    }

    fn answer(&self, bytes: &[u8]) -> Option<SocketAddr> {
        std::str::from_utf8(bytes).ok()?.parse().ok()
    }
}

fn nobody() -> Observers {
    Observers { udp: Vec::new(), tcp: Vec::new(), ask: Arc::new(Text) }
}

fn settings() -> Settings {
    Settings { loopback: true, ..exchange::settings() }
}

fn relays() -> [Option<Box<dyn Relay>>; 2] {
    let (near, far) = local(8);
    [Some(Box::new(near)), Some(Box::new(far))]
}

async fn run(sides: [Introduction; 2], relays: [Option<Box<dyn Relay>>; 2], transports: &[Transport]) -> [Went; 2] {
    let ([a, b], [near, far]) = (sides, relays);
    let both = async {
        tokio::try_join!(
            exchange::run(a, near, transports, 100_000, settings()),
            exchange::run(b, far, transports, 100_000, settings())
        )
    };
    let (a, b) = both.await.unwrap();
    assert_eq!((a.sent, b.sent), (b.came, a.came));
    [a, b]
}

fn over(went: &[Went; 2]) -> [Option<Transport>; 2] {
    [&went[0], &went[1]].map(|went| match went.verdict {
        Verdict::Direct { transport, .. } => Some(transport),
        _ => None,
    })
}

#[test]
fn they_meet_over_the_transport_that_there_is() {
    for (transports, taken) in [(&[Tcp][..], Tcp), (&[Udp], Udp), (&[Tcp, Udp], Tcp)] {
        let went = on_a_runtime(run(introduce(&nobody()), relays(), transports));
        assert_eq!(over(&went), [Some(taken); 2]);
    }
}

/// What each of the two says is put into a channel in between, which the test may look at and change.
fn tapped() -> ([Introduction; 2], [mpsc::UnboundedReceiver<Message>; 2], [mpsc::UnboundedSender<Message>; 2]) {
    let [mut a, mut b] = introduce(&nobody());
    let ((to_a, told_a), (to_b, told_b)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let ((tell_a, from_a), (tell_b, from_b)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    a.line = Line { tell: tell_a, told: told_a };
    b.line = Line { tell: tell_b, told: told_b };
    ([a, b], [from_a, from_b], [to_a, to_b])
}

async fn pass_on(mut from: mpsc::UnboundedReceiver<Message>, to: mpsc::UnboundedSender<Message>) {
    while let Some(message) = from.recv().await {
        let _ = to.send(message);
    }
}

fn candidates(message: &Message) -> &[Candidate] {
    match message {
        Message::Offer(candidates) => candidates,
        Message::Relay => &[],
    }
}

/// Strangers have every port's address, and come before the peer does.
#[test]
fn strangers_at_the_ports_change_nothing() {
    on_a_runtime(async {
        let (sides, [mut from_a, from_b], [to_a, to_b]) = tapped();
        tokio::spawn(pass_on(from_b, to_a));
        tokio::spawn(async move {
            let offer = from_a.recv().await.unwrap();
            let strangers = bother(candidates(&offer)).await;
            to_b.send(offer).unwrap();
            pass_on(from_a, to_b).await;
            drop(strangers);
        });
        let went = run(sides, relays(), &[Tcp, Udp]).await;
        assert_eq!(over(&went), [Some(Tcp); 2]);
    });
}

/// Connections that say nothing, some that say something wrong, and datagrams of all lengths.
async fn bother(ports: &[Candidate]) -> Vec<TcpStream> {
    let mut strangers = Vec::new();
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for port in ports.iter().filter(|port| port.addr.is_ipv4()) {
        for n in 0..40 {
            let garbage = vec![0x0e; n * 13];
            if port.transport == Udp {
                let _ = socket.send_to(&garbage, port.addr).await;
            } else if let Ok(Ok(mut stream)) =
                tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(port.addr)).await
            {
                let _ = stream.write_all(&garbage).await;
                strangers.push(stream);
            }
        }
    }
    strangers
}

/// A peer names sixteen addresses, none of which is its own.
#[test]
fn a_peer_that_is_nowhere_is_reached_over_the_relay() {
    on_a_runtime(async {
        let (sides, from, [to_a, to_b]) = tapped();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let taken = silent.local_addr().unwrap();
        let lies = |n: u16| match n {
            0 => Candidate::new(Kind::Host, Tcp, taken, n),
            _ => Candidate::new(Kind::Host, if n < 8 { Tcp } else { Udp }, ([127, 0, 0, 1], 1024 + n).into(), n),
        };
        for to in [&to_a, &to_b] {
            to.send(Message::Offer((0..16).map(lies).collect())).unwrap();
        }
        let went = run(sides, relays(), &[Tcp, Udp]).await;
        let whys = [&went[0], &went[1]].map(|went| went.verdict);
        assert_eq!(whys, [Verdict::Relayed(Why::NoPath); 2]);
        drop((from, to_a, to_b));
    });
}

#[test]
fn a_rendezvous_that_is_gone_after_the_offers_is_not_missed() {
    on_a_runtime(async {
        let (sides, [mut from_a, mut from_b], [to_a, to_b]) = tapped();
        tokio::spawn(async move {
            let (offer, other) = (from_a.recv().await.unwrap(), from_b.recv().await.unwrap());
            to_b.send(offer).unwrap();
            to_a.send(other).unwrap();
        });
        let went = run(sides, relays(), &[Udp]).await;
        assert_eq!(over(&went), [Some(Udp); 2]);
    });
}

#[test]
fn a_peer_that_never_says_where_it_is_stays_on_the_relay() {
    on_a_runtime(async {
        let (sides, kept, also_kept) = tapped();
        let went = run(sides, relays(), &[Tcp, Udp]).await;
        let verdicts = [&went[0], &went[1]].map(|went| went.verdict);
        assert_eq!(verdicts, [Verdict::Relayed(Why::NoOffer); 2]);
        drop((kept, also_kept));
    });
}

/// Observers that are mistaken, or that answer nothing, or with garbage.
#[test]
fn what_the_rendezvous_says_of_the_ports_is_only_a_hint() {
    on_a_runtime(async {
        let (wrong, silent) = (UdpSocket::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await);
        let silent = silent.unwrap();
        let (udp, tcp) = (wrong.local_addr().unwrap(), silent.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((_, from)) = wrong.recv_from(&mut [0; 9]).await {
                let _ = wrong.send_to(b"garbage", from).await;
                let _ = wrong.send_to(b"127.0.0.1:9", from).await;
            }
        });
        let observers = Observers { udp: vec![udp], tcp: vec![tcp], ask: Arc::new(Text) };
        let went = run(introduce(&observers), relays(), &[Tcp, Udp]).await;
        assert_eq!(over(&went), [Some(Tcp); 2]);
        drop(silent);
    });
}

/// Nothing goes on in the background for a link that nobody has any more.
#[test]
fn a_driver_ends_with_its_way() {
    on_a_runtime(async {
        let [introduction, _peer] = introduce(&nobody());
        let ports = Ports::bind(&[Tcp, Udp]).unwrap();
        let (driver, arrivals, _) = Driver::new(ports, introduction, settings()).unwrap();
        let running = tokio::spawn(driver.run());
        drop(Way::without_relay(arrivals));
        tokio::time::timeout(DEADLINE, running).await.unwrap().unwrap();
    });
}

/// A worker that ends while nothing has been decided: the other one hears of it.
#[test]
fn a_peer_that_is_dropped_is_an_error_and_no_end() {
    on_a_runtime(async {
        let ([a, b], [near, far]) = (introduce(&nobody()), relays());
        let ports = [(); 2].map(|()| Ports::bind(&[Tcp]).unwrap());
        let [first, second] = ports;
        let (caller, called) = (side_of(&a), side_of(&b));
        let links =
            tokio::join!(connect(first, a, caller, near, settings()), connect(second, b, called, far, settings()));
        let (mut kept, dropped) = (links.0.unwrap(), links.1.unwrap());
        drop(dropped);
        let read = tokio::time::timeout(DEADLINE, kept.read_to_end(&mut Vec::new())).await.unwrap();
        assert!(read.is_err(), "{read:?}");
    });
}
