//! Measures the time to a direct connection between workers behind NATs, and its throughput beside
//! plain TCP.
//!
//! Both use the same namespaces; in a debug build only the ratios are meaningful.
//!
//! `cargo run -p nearpath-p2p --example punched -- [MEGABYTES]`, as root, with nft.
#![allow(clippy::unwrap_used)]

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use nearpath_p2p::driver::{
    DriverSettings, LocalPorts, PeerIntroduction, PunchDriver, SearchOutcome,
};
use nearpath_p2p::handshake::secure_stream;
use nearpath_p2p::migrate::{MigratingStream, RelayConnection, memory_relays};
use nearpath_p2p::punch::Transport;
use nearpath_p2p::punch::session::SessionRole;
use nearpath_testkit::lab::nat::{IpFamily, NatKind, NatPair, NatPlan};
use nearpath_testkit::lab::{LabNode, LinkConditions, NetworkLab};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use nearpath_testkit::p2p::introduction::{
    LabObservers, block_on, introduce_pair, pair_machines, side_of,
};

const ROUNDS: usize = 3;

fn main() {
    let megabytes = std::env::args()
        .nth(1)
        .map_or(256, |text| text.parse().unwrap());
    if !nearpath_testkit::lab::nat::check_available() {
        return eprintln!("needs nft: tools/need nft=nftables");
    }
    measure_delays();
    measure_speeds(megabytes << 20);
}

/// Measures from both sides ready to the leader's connection; the rendezvous is replaced by
/// channels.
fn measure_delays() {
    println!(
        "{:<34} {:>8} {:>8}",
        "time to a direct connection, ms", "TCP", "UDP"
    );
    for (kinds, one_way) in [
        ([NatKind::None, NatKind::None], 0),
        ([NatKind::PortRestricted, NatKind::PortRestricted], 0),
        ([NatKind::None, NatKind::None], 20),
        ([NatKind::PortRestricted, NatKind::PortRestricted], 20),
        ([NatKind::Symmetric, NatKind::Restricted], 20),
    ] {
        let conditions = LinkConditions {
            delay: Duration::from_millis(one_way),
            ..LinkConditions::default()
        };
        let [first, second] = kinds.map(|kind| NatPlan {
            conditions: conditions.clone(),
            ..kind.into()
        });
        let pair = NetworkLab::nat_pair(first, second).unwrap();
        let watching = LabObservers::start(&pair.internet);
        let after = [Transport::Tcp, Transport::Udp].map(|transport| {
            let mut all: Vec<f64> = (0..5)
                .map(|_| time_to_direct(&pair, &watching, transport))
                .collect();
            all.sort_by(f64::total_cmp);
            all[2]
        });
        let name = format!("{:?} + {:?}, {} ms RTT", kinds[0], kinds[1], one_way * 4);
        println!("{name:<34} {:>8.1} {:>8.1}", after[0], after[1]);
    }
}

fn time_to_direct(pair: &NatPair, watching: &LabObservers, transport: Transport) -> f64 {
    let outcomes = run_on_both(
        pair,
        introduce_pair(&watching.observers),
        |introduction, relay| async move {
            let role = introduction.session.role;
            let (driver, arrivals, mut verdict) = PunchDriver::new(
                LocalPorts::bind(&[transport]).unwrap(),
                introduction,
                DriverSettings::default(),
            )
            .unwrap();
            let running = tokio::spawn(driver.run());
            let mut stream =
                MigratingStream::on_relay(role == SessionRole::Leader, relay, arrivals);
            let outcome = verdict
                .wait_for(|verdict| *verdict != SearchOutcome::Searching)
                .await
                .map(|known| *known)
                .unwrap();
            stream.write_all(b"x").await.unwrap();
            stream.read_exact(&mut [0]).await.unwrap();
            stream.close().await.unwrap();
            running.await.unwrap();
            outcome
        },
    );
    match outcomes[0] {
        SearchOutcome::Direct { elapsed: after, .. } => after.as_secs_f64() * 1e3,
        other => panic!("{other:?}"),
    }
}

/// Does the same on both machines.
fn run_on_both<T: Send, F: Future<Output = T>>(
    pair: &NatPair,
    introductions: [PeerIntroduction; 2],
    work: impl Fn(PeerIntroduction, Box<dyn RelayConnection>) -> F + Sync,
) -> Vec<T> {
    let (near, far) = memory_relays(8);
    let relays: [Box<dyn RelayConnection>; 2] = [Box::new(near), Box::new(far)];
    let sides = pair_machines(pair)
        .into_iter()
        .zip(introductions)
        .zip(relays);
    thread::scope(|scope| {
        let threads: Vec<_> = sides
            .map(|((node, introduction), relay)| {
                let work = &work;
                scope.spawn(move || {
                    node.enter(|| block_on(async { work(introduction, relay).await }))
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// Sends from behind a NAT to a reachable machine.
fn measure_speeds(bytes: usize) {
    let pair = NetworkLab::nat_pair(NatKind::PortRestricted, NatKind::None).unwrap();
    let watching = LabObservers::start(&pair.internet);
    println!(
        "\n{:<34} Mbit/s, {ROUNDS} rounds, interleaved",
        "one direction"
    );
    let mut all: [Vec<f64>; 5] = Default::default();
    for _ in 0..ROUNDS {
        all[0].push(measure_plain(&pair, bytes, None, &watching));
        all[1].push(measure_punched(
            &pair,
            bytes,
            false,
            Transport::Tcp,
            &watching,
        ));
        all[2].push(measure_plain(&pair, bytes / 4, Some(()), &watching));
        all[3].push(measure_punched(
            &pair,
            bytes / 4,
            true,
            Transport::Tcp,
            &watching,
        ));
        all[4].push(measure_punched(
            &pair,
            bytes / 4,
            true,
            Transport::Udp,
            &watching,
        ));
    }
    let names = [
        "plain TCP",
        "punched TCP",
        "plain TCP, TLS",
        "punched TCP, TLS",
        "punched UDP, TLS in QUIC",
    ];
    for (name, speeds) in names.iter().zip(&all) {
        println!(
            "{name:<34} {}",
            speeds
                .iter()
                .map(|one| format!("{one:>8.0}"))
                .collect::<String>()
        );
    }
}

fn measure_plain(pair: &NatPair, bytes: usize, tls: Option<()>, watching: &LabObservers) -> f64 {
    let to = SocketAddr::new(
        pair.second
            .first_machine()
            .address_of(IpFamily::V4)
            .unwrap(),
        9000,
    );
    let listener = enter_node(pair_machines(pair)[1], || {
        std::net::TcpListener::bind(to).unwrap()
    });
    listener.set_nonblocking(true).unwrap();
    let listener = std::sync::Mutex::new(Some(listener));
    let took = run_on_both(
        pair,
        introduce_pair(&watching.observers),
        |introduction, _| {
            let leads = introduction.session.role == SessionRole::Leader;
            let listener = if leads {
                None
            } else {
                listener.lock().unwrap().take()
            };
            async move {
                let stream = match listener {
                    None => TcpStream::connect(to).await.unwrap(),
                    Some(listener) => {
                        TcpListener::from_std(listener)
                            .unwrap()
                            .accept()
                            .await
                            .unwrap()
                            .0
                    }
                };
                let stream = stream_over(stream);
                match tls {
                    None => transfer(stream, leads, bytes).await,
                    Some(()) => {
                        transfer(
                            secure_stream(stream, side_of(&introduction), &introduction.pair)
                                .await
                                .unwrap(),
                            leads,
                            bytes,
                        )
                        .await
                    }
                }
            }
        },
    );
    megabits_per_second(bytes, took[1])
}

/// Runs the same code on a connection that was not punched.
fn stream_over(stream: TcpStream) -> MigratingStream {
    let (arrive, arrivals) = tokio::sync::mpsc::unbounded_channel();
    arrive
        .send(Ok(
            Box::new(stream) as Box<dyn nearpath_p2p::migrate::DirectConnection>
        ))
        .unwrap();
    MigratingStream::without_relay(arrivals)
}

fn measure_punched(
    pair: &NatPair,
    bytes: usize,
    tls: bool,
    transport: Transport,
    watching: &LabObservers,
) -> f64 {
    let took = run_on_both(
        pair,
        introduce_pair(&watching.observers),
        |introduction, relay| async move {
            let (role, side, peers) = (
                introduction.session.role,
                side_of(&introduction),
                introduction.pair.clone(),
            );
            let (driver, arrivals, mut verdict) = PunchDriver::new(
                LocalPorts::bind(&[transport]).unwrap(),
                introduction,
                DriverSettings::default(),
            )
            .unwrap();
            tokio::spawn(driver.run());
            let stream = MigratingStream::on_relay(role == SessionRole::Leader, relay, arrivals);
            verdict
                .wait_for(|verdict| matches!(verdict, SearchOutcome::Direct { .. }))
                .await
                .unwrap();
            if tls {
                transfer(
                    secure_stream(stream, side, &peers).await.unwrap(),
                    role == SessionRole::Leader,
                    bytes,
                )
                .await
            } else {
                transfer(stream, role == SessionRole::Leader, bytes).await
            }
        },
    );
    megabits_per_second(bytes, took[1])
}

/// Sends from one side after a byte each way; the other side returns the time.
async fn transfer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    sends: bool,
    bytes: usize,
) -> Duration {
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

fn megabits_per_second(bytes: usize, took: Duration) -> f64 {
    bytes as f64 * 8.0 / took.as_secs_f64() / 1e6
}

fn enter_node<T: Send>(node: &LabNode, work: impl FnOnce() -> T + Send) -> T {
    node.enter(work)
}
