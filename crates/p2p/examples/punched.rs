//! How soon two workers behind NATs have a direct connection, and how fast it is, against plain TCP through the same
//! namespaces. In a debug build only the ratios say something.
//!
//! `cargo run -p nearpath-p2p --example punched -- [MEGABYTES]`, as root, with nft.
#![allow(clippy::unwrap_used)]

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use nearpath_p2p::driver::{Driver, Introduction, Ports, Settings, Verdict};
use nearpath_p2p::handshake::secure;
use nearpath_p2p::migrate::{Relay, Way, local};
use nearpath_p2p::punch::Transport;
use nearpath_p2p::punch::session::Role;
use nearpath_testkit::lab::nat::{Family, Kind, Pair, Plan};
use nearpath_testkit::lab::{Lab, Link as Line, Node};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use nearpath_testkit::p2p::introduction::{Watching, introduce, machines, on_a_runtime, side_of};

const ROUNDS: usize = 3;

fn main() {
    let megabytes = std::env::args().nth(1).map_or(256, |text| text.parse().unwrap());
    if !nearpath_testkit::lab::nat::available() {
        return eprintln!("needs nft: tools/need nft=nftables");
    }
    delays();
    speeds(megabytes << 20);
}

/// Both ready, until the leader has the connection: the rendezvous' stand-in passes words on at once.
fn delays() {
    println!("{:<34} {:>8} {:>8}", "time to a direct connection, ms", "TCP", "UDP");
    for (kinds, one_way) in [
        ([Kind::None, Kind::None], 0),
        ([Kind::PortRestricted, Kind::PortRestricted], 0),
        ([Kind::None, Kind::None], 20),
        ([Kind::PortRestricted, Kind::PortRestricted], 20),
        ([Kind::Symmetric, Kind::Restricted], 20),
    ] {
        let line = Line { delay: Duration::from_millis(one_way), ..Line::default() };
        let [first, second] = kinds.map(|kind| Plan { line: line.clone(), ..kind.into() });
        let pair = Lab::pair(first, second).unwrap();
        let watching = Watching::begin(&pair.internet);
        let after = [Transport::Tcp, Transport::Udp].map(|transport| {
            let mut all: Vec<f64> = (0..5).map(|_| time_to_direct(&pair, &watching, transport)).collect();
            all.sort_by(f64::total_cmp);
            all[2]
        });
        let name = format!("{:?} + {:?}, {} ms RTT", kinds[0], kinds[1], one_way * 4);
        println!("{name:<34} {:>8.1} {:>8.1}", after[0], after[1]);
    }
}

fn time_to_direct(pair: &Pair, watching: &Watching, transport: Transport) -> f64 {
    let went = both(pair, introduce(&watching.observers), |introduction, relay| async move {
        let role = introduction.session.role;
        let (driver, arrivals, mut verdict) =
            Driver::new(Ports::bind(&[transport]).unwrap(), introduction, Settings::default()).unwrap();
        let running = tokio::spawn(driver.run());
        let mut way = Way::on_relay(role == Role::Leader, relay, arrivals);
        let known = verdict.wait_for(|verdict| *verdict != Verdict::Looking).await.map(|known| *known).unwrap();
        way.write_all(b"x").await.unwrap();
        way.read_exact(&mut [0]).await.unwrap();
        way.close().await.unwrap();
        running.await.unwrap();
        known
    });
    match went[0] {
        Verdict::Direct { after, .. } => after.as_secs_f64() * 1e3,
        other => panic!("{other:?}"),
    }
}

/// Does the same on both machines.
fn both<T: Send, F: Future<Output = T>>(
    pair: &Pair,
    introductions: [Introduction; 2],
    work: impl Fn(Introduction, Box<dyn Relay>) -> F + Sync,
) -> Vec<T> {
    let (near, far) = local(8);
    let relays: [Box<dyn Relay>; 2] = [Box::new(near), Box::new(far)];
    let sides = machines(pair).into_iter().zip(introductions).zip(relays);
    thread::scope(|scope| {
        let threads: Vec<_> = sides
            .map(|((node, introduction), relay)| {
                let work = &work;
                scope.spawn(move || node.enter(|| on_a_runtime(async { work(introduction, relay).await })))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The one behind a NAT sends to the one that anybody reaches.
fn speeds(bytes: usize) {
    let pair = Lab::pair(Kind::PortRestricted, Kind::None).unwrap();
    let watching = Watching::begin(&pair.internet);
    println!("\n{:<34} Mbit/s, {ROUNDS} rounds, interleaved", "one direction");
    let mut all: [Vec<f64>; 5] = Default::default();
    for _ in 0..ROUNDS {
        all[0].push(plain(&pair, bytes, None, &watching));
        all[1].push(punched(&pair, bytes, false, Transport::Tcp, &watching));
        all[2].push(plain(&pair, bytes / 4, Some(()), &watching));
        all[3].push(punched(&pair, bytes / 4, true, Transport::Tcp, &watching));
        all[4].push(punched(&pair, bytes / 4, true, Transport::Udp, &watching));
    }
    let names = ["plain TCP", "punched TCP", "plain TCP, TLS", "punched TCP, TLS", "punched UDP, TLS in QUIC"];
    for (name, speeds) in names.iter().zip(&all) {
        println!("{name:<34} {}", speeds.iter().map(|one| format!("{one:>8.0}")).collect::<String>());
    }
}

fn plain(pair: &Pair, bytes: usize, tls: Option<()>, watching: &Watching) -> f64 {
    let to = SocketAddr::new(pair.second.machine().address(Family::V4).unwrap(), 9000);
    let listener = enter(machines(pair)[1], || std::net::TcpListener::bind(to).unwrap());
    listener.set_nonblocking(true).unwrap();
    let listener = std::sync::Mutex::new(Some(listener));
    let took = both(pair, introduce(&watching.observers), |introduction, _| {
        let leads = introduction.session.role == Role::Leader;
        let listener = if leads { None } else { listener.lock().unwrap().take() };
        async move {
            let stream = match listener {
                None => TcpStream::connect(to).await.unwrap(),
                Some(listener) => TcpListener::from_std(listener).unwrap().accept().await.unwrap().0,
            };
            let way = over(stream);
            match tls {
                None => transfer(way, leads, bytes).await,
                Some(()) => {
                    transfer(secure(way, side_of(&introduction), &introduction.pair).await.unwrap(), leads, bytes).await
                }
            }
        }
    });
    megabits(bytes, took[1])
}

/// The same code around it, on a connection that was not punched.
fn over(stream: TcpStream) -> Way {
    let (arrive, arrivals) = tokio::sync::mpsc::unbounded_channel();
    arrive.send(Ok(Box::new(stream) as Box<dyn nearpath_p2p::migrate::Direct>)).unwrap();
    Way::without_relay(arrivals)
}

fn punched(pair: &Pair, bytes: usize, tls: bool, transport: Transport, watching: &Watching) -> f64 {
    let took = both(pair, introduce(&watching.observers), |introduction, relay| async move {
        let (role, side, peers) = (introduction.session.role, side_of(&introduction), introduction.pair.clone());
        let (driver, arrivals, mut verdict) =
            Driver::new(Ports::bind(&[transport]).unwrap(), introduction, Settings::default()).unwrap();
        tokio::spawn(driver.run());
        let way = Way::on_relay(role == Role::Leader, relay, arrivals);
        verdict.wait_for(|verdict| matches!(verdict, Verdict::Direct { .. })).await.unwrap();
        if tls {
            transfer(secure(way, side, &peers).await.unwrap(), role == Role::Leader, bytes).await
        } else {
            transfer(way, role == Role::Leader, bytes).await
        }
    });
    megabits(bytes, took[1])
}

/// One side sends, after a word there and back; the other says how long it took.
async fn transfer(mut stream: impl AsyncRead + AsyncWrite + Unpin, sends: bool, bytes: usize) -> Duration {
    let mut buf = vec![7; 256 << 10];
    stream.write_all(b"x").await.unwrap();
    stream.read_exact(&mut buf[..1]).await.unwrap();
    let begun = Instant::now();
    if sends {
        for _ in 0..bytes / buf.len() {
            stream.write_all(&buf).await.unwrap();
        }
        stream.shutdown().await.unwrap();
        while stream.read(&mut buf).await.unwrap_or(0) > 0 {}
    } else {
        let mut left = bytes;
        while left > 0 {
            match stream.read(&mut buf).await.unwrap() {
                0 => panic!("{left} bytes are missing"),
                n => left -= n,
            }
        }
        let took = begun.elapsed();
        let _: io::Result<()> = stream.shutdown().await;
        return took;
    }
    begun.elapsed()
}

fn megabits(bytes: usize, took: Duration) -> f64 {
    bytes as f64 * 8.0 / took.as_secs_f64() / 1e6
}

fn enter<T: Send>(node: &Node, work: impl FnOnce() -> T + Send) -> T {
    node.enter(work)
}
