//! Observers over real sockets.

use std::net::SocketAddr;

use nearpath_p2p::control::ControlEvent;
use nearpath_p2p::message::{HexBytes, ObserverAccess};
use nearpath_p2p::punch::Transport;
use nearpath_p2p::reflexive_address::{
    BindingClient, BindingRequest, MESSAGE_BYTES, ResponseOrigin,
};
use nearpath_rendezvous::{RateLimit, RendezvousLimits};
use nearpath_testkit::{eventually, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use nearpath_testkit::p2p::rendezvous::TestRendezvous;

async fn observer_access(fixture: &TestRendezvous) -> ObserverAccess {
    let worker = fixture.connect_worker("sort", "a").await;
    worker.connection.welcome().await.unwrap().observe
}

fn first_observer(access: &ObserverAccess, transport: Transport) -> SocketAddr {
    let one = |one: &&nearpath_p2p::message::ObserverAddress| {
        one.transport == transport && !one.second_port
    };
    access.servers.iter().find(one).unwrap().addr
}

fn request_from(from: ResponseOrigin, cookie: [u8; 16]) -> BindingRequest {
    BindingRequest {
        origin: from,
        transaction_id: 7,
        cookie,
    }
}

#[tokio::test]
async fn a_worker_learns_the_mapped_addresses_of_its_sockets() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let access = observer_access(&fixture).await;
    let client = BindingClient::new(access.token, &access.key);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let here = socket.local_addr().unwrap();
    let server = first_observer(&access, Transport::Udp);
    let mut cookie = [0; 16];
    for (origin, other_port) in [
        (ResponseOrigin::SameSocket, false),
        (ResponseOrigin::OtherPort, true),
    ] {
        socket
            .send_to(
                &client.encode_request(&request_from(origin, cookie)),
                server,
            )
            .await
            .unwrap();
        let mut bytes = [0; 200];
        let (n, from) = within(socket.recv_from(&mut bytes)).await.unwrap();
        let answer = client.decode_response(&bytes[..n]).unwrap();
        assert_eq!(
            (n, answer.mapped_addr, answer.second_port, from != server),
            (MESSAGE_BYTES, here, other_port, other_port)
        );
        cookie = answer.cookie;
    }
    let mut stream = TcpStream::connect(first_observer(&access, Transport::Tcp))
        .await
        .unwrap();
    stream
        .write_all(&client.encode_request(&request_from(ResponseOrigin::SameSocket, [0; 16])))
        .await
        .unwrap();
    let mut bytes = [0; MESSAGE_BYTES];
    within(stream.read_exact(&mut bytes)).await.unwrap();
    assert_eq!(
        client.decode_response(&bytes).unwrap().mapped_addr,
        stream.local_addr().unwrap()
    );
}

/// No datagram goes to an unproven address: without a token there is no response, and another
/// socket sends nothing before a response was read.
#[tokio::test]
async fn unproven_addresses_get_no_datagram() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let access = observer_access(&fixture).await;
    let client = BindingClient::new(access.token, &access.key);
    let forger = BindingClient::new(access.token, &HexBytes([1; 32]));
    let server = first_observer(&access, Transport::Udp);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let good = client.encode_request(&request_from(ResponseOrigin::SameSocket, [0; 16]));
    let long = [&good[..], &[0]].concat();
    for bad in [
        &forger.encode_request(&request_from(ResponseOrigin::SameSocket, [0; 16]))[..],
        &good[..79],
        &long,
        b"",
        &[0; MESSAGE_BYTES],
    ] {
        socket.send_to(bad, server).await.unwrap();
    }
    eventually("they are dropped", async || {
        fixture.metric_value("nearpath_rendezvous_binding_requests_dropped_total") == 5
    })
    .await;
    assert!(
        socket.try_recv(&mut [0; 200]).is_err(),
        "an unauthenticated request was answered"
    );
    socket
        .send_to(
            &client.encode_request(&request_from(ResponseOrigin::OtherPort, [9; 16])),
            server,
        )
        .await
        .unwrap();
    let (n, from) = within(socket.recv_from(&mut [0; 200])).await.unwrap();
    assert_eq!(
        (n, from),
        (MESSAGE_BYTES, server),
        "without a cookie from the asked socket only"
    );
}

#[tokio::test]
async fn a_flood_of_requests_is_not_answered() {
    let fixture = TestRendezvous::start(RendezvousLimits {
        observer_rate: RateLimit {
            per_second: 1,
            burst: 5,
        },
        ..RendezvousLimits::default()
    });
    let access = observer_access(&fixture).await;
    let client = BindingClient::new(access.token, &access.key);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for _ in 0..50 {
        socket
            .send_to(
                &client.encode_request(&request_from(ResponseOrigin::SameSocket, [0; 16])),
                first_observer(&access, Transport::Udp),
            )
            .await
            .unwrap();
    }
    let counts = || {
        [
            "nearpath_rendezvous_binding_responses_total",
            "nearpath_rendezvous_binding_requests_dropped_total",
        ]
        .map(|name| fixture.metric_value(name))
    };
    eventually("all are judged", async || {
        counts().iter().sum::<u64>() == 50
    })
    .await;
    assert!(counts()[0] >= 5 && counts()[1] > 0, "{:?}", counts());
}

#[tokio::test]
async fn tcp_observers_close_on_invalid_requests() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let access = observer_access(&fixture).await;
    let mut stream = TcpStream::connect(first_observer(&access, Transport::Tcp))
        .await
        .unwrap();
    stream.write_all(&[0; MESSAGE_BYTES]).await.unwrap();
    assert_eq!(within(stream.read(&mut [0; 10])).await.unwrap_or(0), 0);
}

/// Observers without an address have that of the control connection.
#[tokio::test]
async fn observers_without_an_address_use_that_of_the_rendezvous() {
    let fixture = TestRendezvous::start(RendezvousLimits::default());
    let mut worker = fixture.connect_worker("sort", "a").await;
    let observers = worker.connection.observers().await.unwrap();
    assert_eq!((observers.udp.len(), observers.tcp.len()), (2, 2));
    assert!(
        observers
            .udp
            .iter()
            .chain(&observers.tcp)
            .all(|addr| addr.ip().is_loopback() && addr.port() != 0)
    );
    drop(fixture);
    assert!(matches!(
        worker.next_event().await,
        ControlEvent::Disconnected { .. }
    ));
}
