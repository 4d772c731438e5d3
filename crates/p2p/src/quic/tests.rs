//! Guarantees that each side has about the other.

use nearpath_ca::Authority;
use nearpath_testkit::p2p::introduction::credentials;
use nearpath_wire::identity::Trust;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Creates the TLS settings of leader and follower.
fn leader_and_follower() -> [Arc<PeerTlsConfig>; 2] {
    let hour = Duration::from_secs(3600);
    let authority = Authority::new("test", SystemTime::now(), hour).unwrap();
    let trust = Trust::new("test", &[authority.certificate().clone()]).unwrap();
    let [a, b] = ["a", "b"].map(|node| SpiffeId::for_gateway("test", node));
    [(&a, &b), (&b, &a)].map(|(me, peer)| {
        let credentials = credentials(&authority, me);
        Arc::new(PeerTlsConfig::new(&credentials, &trust, peer.clone()).unwrap())
    })
}

fn bound_socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

/// Otherwise it would move to a connection that the follower gives up at that very moment.
#[tokio::test]
async fn a_leader_gets_the_stream_after_the_follower_has_answered() {
    let ([leads, follows], (near, at), (far, to)) =
        (leader_and_follower(), bound_socket(), bound_socket());
    let server = follows
        .quic_server_config(&TokenKey::generate().unwrap())
        .unwrap();
    let endpoint = Endpoint::new(
        EndpointConfig::default(),
        Some(server),
        far,
        Arc::new(TokioRuntime),
    )
    .unwrap();
    let (probes, _passed) = mpsc::channel(1);
    let leader = tokio::spawn(open_stream(near, probes, to, SessionRole::Leader, leads));
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    assert_eq!(connection.remote_address(), at);
    let (mut send, mut recv) = connection.accept_bi().await.unwrap();
    recv.read_exact(&mut [0]).await.unwrap();
    tokio::task::yield_now().await;
    assert!(!leader.is_finished(), "it has not been answered");
    send.write_all(&[OPEN_BYTE]).await.unwrap();
    leader.await.unwrap().unwrap();
}

#[tokio::test]
async fn both_sides_get_a_working_stream() {
    let ([leads, follows], (near, at), (far, to)) =
        (leader_and_follower(), bound_socket(), bound_socket());
    let (probes, _passed) = mpsc::channel(1);
    let leader = open_stream(near, probes.clone(), to, SessionRole::Leader, leads);
    let follower = open_stream(far, probes, at, SessionRole::Follower, follows);
    let (mut one, mut other) = tokio::try_join!(leader, follower).unwrap();
    one.write_all(b"to you").await.unwrap();
    other.write_all(b"to me").await.unwrap();
    let (mut here, mut there) = ([0; 5], [0; 6]);
    one.read_exact(&mut here).await.unwrap();
    other.read_exact(&mut there).await.unwrap();
    assert_eq!((&here, &there), (b"to me", b"to you"), "and nothing before");
}
