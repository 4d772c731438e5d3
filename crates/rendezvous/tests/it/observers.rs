//! Observers over real sockets.

use std::net::SocketAddr;

use nearpath_p2p::control::Heard;
use nearpath_p2p::message::{Hex, Observe};
use nearpath_p2p::punch::Transport;
use nearpath_p2p::reflexive_address::{Asker, From, Question, SIZE};
use nearpath_rendezvous::{Limits, Rate};
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use nearpath_testkit::p2p::rendezvous::House;

async fn told(house: &House) -> Observe {
    let worker = house.worker("sort", "a").await;
    worker.line.welcome().await.unwrap().observe
}

fn first(observe: &Observe, transport: Transport) -> SocketAddr {
    let one = |one: &&nearpath_p2p::message::Observer| one.transport == transport && !one.second_port;
    observe.servers.iter().find(one).unwrap().addr
}

fn question(from: From, cookie: [u8; 16]) -> Question {
    Question { from, number: 7, cookie }
}

#[tokio::test]
async fn a_worker_is_told_where_its_sockets_are() {
    let house = House::start(Limits::default());
    let observe = told(&house).await;
    let asker = Asker::new(observe.token, &observe.key);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let here = socket.local_addr().unwrap();
    let server = first(&observe, Transport::Udp);
    let mut cookie = [0; 16];
    for (wish, other_port) in [(From::Here, false), (From::OtherPort, true)] {
        socket.send_to(&asker.ask(&question(wish, cookie)), server).await.unwrap();
        let mut bytes = [0; 200];
        let (n, from) = within(socket.recv_from(&mut bytes)).await.unwrap();
        let answer = asker.read(&bytes[..n]).unwrap();
        assert_eq!((n, answer.seen, answer.second_port, from != server), (SIZE, here, other_port, other_port));
        cookie = answer.cookie;
    }
    let mut stream = TcpStream::connect(first(&observe, Transport::Tcp)).await.unwrap();
    stream.write_all(&asker.ask(&question(From::Here, [0; 16]))).await.unwrap();
    let mut bytes = [0; SIZE];
    within(stream.read_exact(&mut bytes)).await.unwrap();
    assert_eq!(asker.read(&bytes).unwrap().seen, stream.local_addr().unwrap());
}

/// No datagram goes to an address that has not proven itself: not to one that asks without a token, and none from another
/// socket to one that never read an answer.
#[tokio::test]
async fn strangers_get_no_datagram() {
    let house = House::start(Limits::default());
    let observe = told(&house).await;
    let asker = Asker::new(observe.token, &observe.key);
    let stranger = Asker::new(observe.token, &Hex([1; 32]));
    let server = first(&observe, Transport::Udp);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let good = asker.ask(&question(From::Here, [0; 16]));
    let long = [&good[..], &[0]].concat();
    for bad in [&stranger.ask(&question(From::Here, [0; 16]))[..], &good[..79], &long, b"", &[0; SIZE]] {
        socket.send_to(bad, server).await.unwrap();
    }
    eventually("they are dropped", async || house.metric("nearpath_rendezvous_observe_dropped_total") == 5).await;
    assert!(socket.try_recv(&mut [0; 200]).is_err(), "a stranger was answered");
    socket.send_to(&asker.ask(&question(From::OtherPort, [9; 16])), server).await.unwrap();
    let (n, from) = within(socket.recv_from(&mut [0; 200])).await.unwrap();
    assert_eq!((n, from), (SIZE, server), "without a cookie from the asked socket only");
}

#[tokio::test]
async fn a_flood_of_questions_is_not_answered() {
    let house = House::start(Limits { questions: Rate { per_second: 1, burst: 5 }, ..Limits::default() });
    let observe = told(&house).await;
    let asker = Asker::new(observe.token, &observe.key);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for _ in 0..50 {
        socket.send_to(&asker.ask(&question(From::Here, [0; 16])), first(&observe, Transport::Udp)).await.unwrap();
    }
    let counts = || {
        ["nearpath_rendezvous_observed_total", "nearpath_rendezvous_observe_dropped_total"]
            .map(|name| house.metric(name))
    };
    eventually("all are judged", async || counts().iter().sum::<u64>() == 50).await;
    assert!(counts()[0] >= 5 && counts()[1] > 0, "{:?}", counts());
}

#[tokio::test]
async fn tcp_observers_close_on_nonsense() {
    let house = House::start(Limits::default());
    let observe = told(&house).await;
    let mut stream = TcpStream::connect(first(&observe, Transport::Tcp)).await.unwrap();
    stream.write_all(&[0; SIZE]).await.unwrap();
    assert_eq!(within(stream.read(&mut [0; 10])).await.unwrap_or(0), 0);
}

/// Whoever asks when a rendezvous has no address of its own asks where the line goes.
#[tokio::test]
async fn a_driver_is_told_whom_to_ask() {
    let house = House::start(Limits::default());
    let mut worker = house.worker("sort", "a").await;
    let observers = worker.line.observers().await.unwrap();
    assert_eq!((observers.udp.len(), observers.tcp.len()), (2, 2));
    assert!(observers.udp.iter().chain(&observers.tcp).all(|addr| addr.ip().is_loopback() && addr.port() != 0));
    drop(house);
    assert!(matches!(worker.next().await, Heard::Away { .. }));
}
