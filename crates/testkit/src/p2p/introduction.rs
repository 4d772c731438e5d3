//! An internet with two workers, observers of their addresses, and an introduction of the workers
//! to each other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::lab::LabNode;
use crate::lab::nat::{IpFamily, LabInternet, NatPair};
use nearpath_ca::Authority;
use nearpath_p2p::driver::{BindingProtocol, ObserverSet, PeerIntroduction, SignalingChannel};
use nearpath_p2p::handshake::HandshakeRole;
use nearpath_p2p::punch::session::{PunchGrant, PunchSession, SessionRole};
use nearpath_types::SpiffeId;
use nearpath_wire::identity::{CertificateRequest, Credentials, Trust};
use nearpath_wire::p2p_tls::{self, worker_dns_name};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

const OBSERVER_PORT: u16 = 3478;
const CERTIFICATE_LIFETIME: Duration = Duration::from_secs(3600);

/// Probe with a fixed question and an address as text in the response.
#[derive(Debug)]
struct TextProbe;

impl BindingProtocol for TextProbe {
    fn request(&self) -> Vec<u8> {
        b"where am I?".to_vec()
    }

    fn parse_response(&self, bytes: &[u8]) -> Option<SocketAddr> {
        std::str::from_utf8(bytes)
            .ok()?
            .strip_suffix('!')?
            .parse()
            .ok()
    }
}

/// Observers of the rendezvous. They end with this value.
pub struct LabObservers {
    pub observers: ObserverSet,
    _end: oneshot::Sender<()>,
}

impl LabObservers {
    pub fn start(internet: &LabInternet) -> Self {
        let (end, ended) = oneshot::channel();
        let addresses = [IpFamily::V4, IpFamily::V6]
            .map(|family| (internet.rendezvous_addresses(family)[0], OBSERVER_PORT).into());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let node = internet.rendezvous.clone();
        thread::spawn(move || node.enter(|| block_on(run_observers(addresses, ready, ended))));
        is_ready.recv().unwrap();
        let all = addresses.to_vec();
        Self {
            observers: ObserverSet {
                udp: all.clone(),
                tcp: all,
                protocol: Arc::new(TextProbe),
            },
            _end: end,
        }
    }
}

async fn run_observers(
    addresses: [SocketAddr; 2],
    ready: std::sync::mpsc::Sender<()>,
    ended: oneshot::Receiver<()>,
) {
    let mut tasks = tokio::task::JoinSet::new();
    for addr in addresses {
        let (udp, tcp) = (
            tokio::net::UdpSocket::bind(addr).await,
            tokio::net::TcpListener::bind(addr).await,
        );
        let (udp, tcp) = (udp.unwrap(), tcp.unwrap());
        tasks.spawn(async move {
            let mut bytes = [0; 64];
            while let Ok((_, from)) = udp.recv_from(&mut bytes).await {
                let _ = udp.send_to(format!("{from}!").as_bytes(), from).await;
            }
        });
        tasks.spawn(async move {
            while let Ok((mut stream, from)) = tcp.accept().await {
                tokio::spawn(async move {
                    let _ = stream.write_all(format!("{from}!").as_bytes()).await;
                    while stream.read(&mut [0; 64]).await.is_ok_and(|n| n > 0) {}
                });
            }
        });
    }
    ready.send(()).unwrap();
    let _ = ended.await;
}

pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

pub fn pair_machines(pair: &NatPair) -> [&LabNode; 2] {
    [
        &pair.first.first_machine().node,
        &pair.second.first_machine().node,
    ]
}

/// Introductions of both sides; the first one leads.
pub fn introduce_pair(observers: &ObserverSet) -> [PeerIntroduction; 2] {
    let [first, second] = ["a", "b"].map(|node| SpiffeId::for_gateway("test", node));
    let authority = Authority::new("test", SystemTime::now(), CERTIFICATE_LIFETIME).unwrap();
    introduce_as(observers, [&first, &second], [&authority, &authority])
}

/// Role of a side: the leader is the caller.
pub fn side_of(introduction: &PeerIntroduction) -> HandshakeRole {
    match introduction.session.role {
        SessionRole::Leader => HandshakeRole::Caller(None),
        SessionRole::Follower => HandshakeRole::Callee,
    }
}

/// Introduces workers with certificates from these authorities.
pub fn introduce_as(
    observers: &ObserverSet,
    ids: [&SpiffeId; 2],
    authorities: [&Authority; 2],
) -> [PeerIntroduction; 2] {
    let grant = PunchGrant {
        id: [7; 16],
        secret: [9; 32],
        expires: 4_000_000_000,
    };
    let trust = Trust::new("test", &[authorities[0].certificate().clone()]).unwrap();
    let ((a, from_a), (b, from_b)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let lines = [
        SignalingChannel {
            outgoing: a,
            incoming: from_b,
        },
        SignalingChannel {
            outgoing: b,
            incoming: from_a,
        },
    ];
    let mut sides = lines.into_iter().zip([0, 1]).map(|(line, at)| {
        let (me, peer) = (ids[at], ids[1 - at]);
        let session =
            PunchSession::new(&grant, me, peer, Instant::now() + CERTIFICATE_LIFETIME).unwrap();
        let pair =
            p2p_tls::PeerTlsConfig::new(&credentials(authorities[at], me), &trust, peer.clone())
                .unwrap();
        PeerIntroduction {
            session,
            signaling: line,
            observers: observers.clone(),
            pair: Arc::new(pair),
        }
    });
    [sides.next().unwrap(), sides.next().unwrap()]
}

pub fn credentials(authority: &Authority, id: &SpiffeId) -> Credentials {
    let (request, name) = (CertificateRequest::new().unwrap(), worker_dns_name(id));
    let issued = authority
        .issue(
            request.csr(),
            id,
            &name,
            SystemTime::now(),
            CERTIFICATE_LIFETIME,
        )
        .unwrap();
    request.into_credentials(id.clone(), name, issued)
}
