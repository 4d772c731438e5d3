//! What each side may believe of the other.

use nearpath_ca::Authority;
use nearpath_testkit::p2p::introduction::credentials;
use nearpath_wire::identity::Trust;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Who leads, and who follows.
fn pairs() -> [Arc<Pair>; 2] {
    let hour = Duration::from_secs(3600);
    let authority = Authority::new("test", SystemTime::now(), hour).unwrap();
    let trust = Trust::new("test", &[authority.certificate().clone()]).unwrap();
    let [a, b] = ["a", "b"].map(|node| SpiffeId::gateway("test", node));
    [(&a, &b), (&b, &a)].map(|(me, peer)| {
        let credentials = credentials(&authority, me);
        Arc::new(Pair::new(&credentials, &trust, peer.clone()).unwrap())
    })
}

fn socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    (socket, addr)
}

/// Otherwise it moves to a connection which the follower gives up at that very moment.
#[tokio::test]
async fn a_leader_has_a_connection_once_the_follower_has_answered() {
    let ([leads, follows], (near, at), (far, to)) = (pairs(), socket(), socket());
    let server = follows.quic_server(&TokenKey::random().unwrap()).unwrap();
    let endpoint = Endpoint::new(EndpointConfig::default(), Some(server), far, Arc::new(TokioRuntime)).unwrap();
    let (probes, _passed) = mpsc::channel(1);
    let leader = tokio::spawn(open(near, probes, to, Role::Leader, leads));
    let connection = endpoint.accept().await.unwrap().await.unwrap();
    assert_eq!(connection.remote_address(), at);
    let (mut send, mut recv) = connection.accept_bi().await.unwrap();
    recv.read_exact(&mut [0]).await.unwrap();
    tokio::task::yield_now().await;
    assert!(!leader.is_finished(), "it has not been answered");
    send.write_all(&[GREETING]).await.unwrap();
    leader.await.unwrap().unwrap();
}

#[tokio::test]
async fn both_have_it() {
    let ([leads, follows], (near, at), (far, to)) = (pairs(), socket(), socket());
    let (probes, _passed) = mpsc::channel(1);
    let leader = open(near, probes.clone(), to, Role::Leader, leads);
    let follower = open(far, probes, at, Role::Follower, follows);
    let (mut one, mut other) = tokio::try_join!(leader, follower).unwrap();
    one.write_all(b"to you").await.unwrap();
    other.write_all(b"to me").await.unwrap();
    let (mut here, mut there) = ([0; 5], [0; 6]);
    one.read_exact(&mut here).await.unwrap();
    other.read_exact(&mut there).await.unwrap();
    assert_eq!((&here, &there), (b"to me", b"to you"), "and nothing before");
}
