//! TLS over TCP with the same identities: sessions, versions, and refused peers.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::identity::Credentials;
use nearpath_wire::mtls::{
    AlpnProtocol, CallerStream, MtlsAcceptor, MtlsConnector, TlsDialError, TlsVersion,
};
use nearpath_wire::zero_rtt::{CallerSessions, Provision, TokenKey};
use rustls::{HandshakeKind, ProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::quic::fixture::{DOMAIN, LIMIT, QuicFixture, run};

const HTTP1: AlpnProtocol = AlpnProtocol::Http1;

/// A worker that tells each peer whether it is admitted, and the test when a peer is refused later.
struct MtlsWorker {
    entrance: Rc<MtlsAcceptor>,
    provision: Provision,
    addr: SocketAddr,
    shut_out: mpsc::UnboundedReceiver<String>,
}

impl MtlsWorker {
    async fn start(fixture: &QuicFixture, number: u64) -> Self {
        let made = fixture.worker(number);
        let provision = Provision {
            credentials: made.credentials,
            authorities: vec![fixture.authority.certificate().clone()],
            callers: vec!["friend".parse().unwrap()],
            revoked: Vec::new(),
            foreign: Vec::new(),
            token_key: TokenKey([7; 32]),
            sessions: Vec::new(),
        };
        let entrance = Rc::new(MtlsAcceptor::new(true));
        entrance.apply_provision(&provision).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (out, shut_out) = mpsc::unbounded_channel();
        tokio::task::spawn_local(accept_connections(listener, entrance.clone(), out));
        Self {
            entrance,
            provision,
            addr,
            shut_out,
        }
    }

    fn name(&self) -> &str {
        &self.provision.credentials.name
    }

    async fn dial_version(
        &self,
        by: &MtlsConnector,
        version: TlsVersion,
    ) -> Result<CallerStream<TcpStream>, TlsDialError> {
        by.dial_worker(self.addr, self.name(), version, HTTP1, LIMIT)
            .await
            .map(|(stream, _)| stream)
    }
}

async fn accept_connections(
    listener: TcpListener,
    acceptor: Rc<MtlsAcceptor>,
    out: mpsc::UnboundedSender<String>,
) {
    while let Ok((stream, from)) = listener.accept().await {
        let (entrance, out) = (acceptor.clone(), out.clone());
        tokio::task::spawn_local(async move {
            let Ok((mut stream, mut peer)) = entrance.accept_peer(stream, from, LIMIT).await else {
                return;
            };
            let admitted = peer
                .admit_peer(SystemTime::now())
                .map_or_else(|refusal| refusal.to_string(), |peer| peer.name);
            stream
                .write_all(format!("{admitted}\n").as_bytes())
                .await
                .unwrap();
            stream.flush().await.unwrap();
            let _ = out.send(peer.wait_refused().await.to_string());
        });
    }
}

/// Response of the worker, which follows its sessions.
async fn read_answer(mut stream: CallerStream<TcpStream>) -> String {
    let mut text = String::new();
    while !text.ends_with('\n') {
        let mut part = [0; 256];
        match stream.read(&mut part).await {
            Ok(0) => return "nothing".to_owned(),
            Ok(count) => text.push_str(std::str::from_utf8(&part[..count]).unwrap()),
            Err(error) => return error.to_string(),
        }
    }
    text.trim_end().to_owned()
}

fn connector_for(
    fixture: &QuicFixture,
    credentials: &Credentials,
) -> (MtlsConnector, Arc<CallerSessions>) {
    let sessions = Arc::new(CallerSessions::default());
    (
        MtlsConnector::new(credentials, &fixture.trust, &sessions).unwrap(),
        sessions,
    )
}

fn gateway_credentials(fixture: &QuicFixture) -> Credentials {
    fixture.credentials(SpiffeId::for_gateway(DOMAIN, "node-a"), "gateway")
}

fn handshake_kind(stream: &CallerStream<TcpStream>) -> (ProtocolVersion, HandshakeKind) {
    let session = stream.get_ref().1;
    (
        session.protocol_version().unwrap(),
        session.handshake_kind().unwrap(),
    )
}

#[test]
fn tls13_resumes_with_each_session_once_and_tls12_never() {
    run(async {
        let fixture = QuicFixture::new();
        let worker = MtlsWorker::start(&fixture, 1).await;
        let (connector, sessions) = connector_for(&fixture, &gateway_credentials(&fixture));
        let first = worker
            .dial_version(&connector, TlsVersion::Tls13)
            .await
            .unwrap();
        assert_eq!(
            handshake_kind(&first),
            (ProtocolVersion::TLSv1_3, HandshakeKind::Full)
        );
        assert_eq!(read_answer(first).await, "gateway");
        let left = sessions.session_count(worker.name());
        let second = worker
            .dial_version(&connector, TlsVersion::Tls13)
            .await
            .unwrap();
        assert_eq!(
            (
                handshake_kind(&second).1,
                sessions.session_count(worker.name())
            ),
            (HandshakeKind::Resumed, left - 1)
        );
        assert_eq!(read_answer(second).await, "gateway");
        assert_eq!(worker.entrance.sessions().use_counts(), (1, 0));
        for _ in 0..2 {
            let old = worker
                .dial_version(&connector, TlsVersion::Tls12)
                .await
                .unwrap();
            assert_eq!(
                handshake_kind(&old),
                (ProtocolVersion::TLSv1_2, HandshakeKind::Full)
            );
            assert_eq!(read_answer(old).await, "gateway");
        }
        assert_eq!(
            worker.entrance.sessions().use_counts(),
            (1, 0),
            "TLS 1.2 leaves and asks for nothing"
        );
    });
}

#[test]
fn protocols_are_agreed_upon() {
    run(async {
        let fixture = QuicFixture::new();
        let worker = MtlsWorker::start(&fixture, 1).await;
        let (connector, _) = connector_for(&fixture, &gateway_credentials(&fixture));
        for (version, protocol, name) in [
            (TlsVersion::Tls13, AlpnProtocol::Http1, "http/1.1"),
            (TlsVersion::Tls13, AlpnProtocol::Http2, "h2"),
            (TlsVersion::Tls12, AlpnProtocol::Http2, "h2"),
        ] {
            let (stream, peer) = connector
                .dial_worker(worker.addr, worker.name(), version, protocol, LIMIT)
                .await
                .unwrap();
            assert_eq!(peer.name, worker.name());
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(name.as_bytes()));
        }
    });
}

#[test]
fn a_session_of_another_incarnation_is_of_no_use() {
    run(async {
        let fixture = QuicFixture::new();
        let (worker, successor) = (
            MtlsWorker::start(&fixture, 1).await,
            MtlsWorker::start(&fixture, 2).await,
        );
        let (connector, _) = connector_for(&fixture, &gateway_credentials(&fixture));
        read_answer(
            worker
                .dial_version(&connector, TlsVersion::Tls13)
                .await
                .unwrap(),
        )
        .await;
        let stream = successor
            .dial_version(&connector, TlsVersion::Tls13)
            .await
            .unwrap();
        assert_eq!(handshake_kind(&stream).1, HandshakeKind::Full);
        let wrong = connector
            .dial_worker(
                successor.addr,
                worker.name(),
                TlsVersion::Tls13,
                HTTP1,
                LIMIT,
            )
            .await
            .unwrap_err();
        assert!(matches!(&wrong, TlsDialError::Handshake { .. }), "{wrong}");
        assert!(wrong.to_string().contains(worker.name()), "{wrong}");
    });
}

#[test]
fn refused_peers_learn_the_reason() {
    run(async {
        let (fixture, other) = (QuicFixture::new(), QuicFixture::new());
        let worker = MtlsWorker::start(&fixture, 1).await;
        let function = |name: &str, number| {
            SpiffeId::for_instance(DOMAIN, name.parse().unwrap(), InstanceId(number))
        };
        let long_ago = SystemTime::now() - Duration::from_secs(7200);
        let expired = fixture.credentials_at(
            function("friend", 7),
            "i7",
            long_ago,
            Duration::from_secs(60),
        );
        for version in [TlsVersion::Tls13, TlsVersion::Tls12] {
            let hears = async |credentials: &Credentials| match worker
                .dial_version(&connector_for(&fixture, credentials).0, version)
                .await
            {
                Ok(stream) => read_answer(stream).await,
                Err(error) => error.to_string(),
            };
            assert_eq!(
                hears(&fixture.credentials(function("friend", 9), "i9")).await,
                "i9"
            );
            let message = hears(&fixture.credentials(function("stranger", 8), "i8")).await;
            assert_eq!(
                message,
                "no edge leads from spiffe://test.nearpath/ns/openfaas-fn/fn/stranger/instance/8 to here"
            );
            let message = hears(&expired).await;
            assert!(message.contains("CertificateExpired"), "{message}");
            let message = hears(&gateway_credentials(&other)).await;
            assert!(message.contains("alert"), "{version}: {message}");
        }
    });
}

/// The caller has completed its handshake by then. It learns that the worker has processed none of
/// its data.
#[test]
fn a_late_certificate_refusal_differs_from_a_broken_connection() {
    run(async {
        let (fixture, other) = (QuicFixture::new(), QuicFixture::new());
        let worker = MtlsWorker::start(&fixture, 1).await;
        /// More than the buffers between both hold: the worker reads it until the caller has
        /// received the alert.
        const LONG: usize = 16 << 20;
        for (credentials, length, refused) in [
            (gateway_credentials(&other), LONG, true),
            (gateway_credentials(&fixture), 1000, false),
        ] {
            let mut stream = worker
                .dial_version(&connector_for(&fixture, &credentials).0, TlsVersion::Tls13)
                .await
                .unwrap();
            let verdict = stream.verdict().clone();
            stream.write_all(&vec![b'x'; length]).await.unwrap();
            stream.flush().await.unwrap();
            assert_eq!(verdict.refusal(), None, "nothing was read");
            read_answer(stream).await;
            assert_eq!(verdict.refusal().is_some(), refused, "{verdict:?}");
        }
    });
}

#[test]
fn a_session_does_not_outlive_the_certificate_that_it_began_with() {
    run(async {
        let fixture = QuicFixture::new();
        let mut worker = MtlsWorker::start(&fixture, 1).await;
        let short = fixture.credentials_at(
            SpiffeId::for_gateway(DOMAIN, "node-a"),
            "gateway",
            SystemTime::now(),
            Duration::from_secs(3),
        );
        let (connector, _) = connector_for(&fixture, &short);
        assert_eq!(
            read_answer(
                worker
                    .dial_version(&connector, TlsVersion::Tls13)
                    .await
                    .unwrap()
            )
            .await,
            "gateway"
        );
        let expired = "the certificate of spiffe://test.nearpath/node/node-a/gateway has expired";
        assert_eq!(
            worker.shut_out.recv().await.unwrap(),
            expired,
            "the connection that was open"
        );
        let resumed = worker
            .dial_version(&connector, TlsVersion::Tls13)
            .await
            .unwrap();
        assert_eq!(handshake_kind(&resumed).1, HandshakeKind::Resumed);
        assert_eq!(read_answer(resumed).await, expired);
    });
}

#[test]
fn a_revoked_peer_is_refused_on_both_sides() {
    run(async {
        let fixture = QuicFixture::new();
        let mut worker = MtlsWorker::start(&fixture, 1).await;
        let (connector, sessions) = connector_for(&fixture, &gateway_credentials(&fixture));
        assert_eq!(
            read_answer(
                worker
                    .dial_version(&connector, TlsVersion::Tls13)
                    .await
                    .unwrap()
            )
            .await,
            "gateway"
        );
        worker
            .entrance
            .apply_provision(&Provision {
                revoked: vec!["gateway".into()],
                ..worker.provision.clone()
            })
            .unwrap();
        assert!(
            worker
                .shut_out
                .recv()
                .await
                .unwrap()
                .contains("was revoked")
        );
        let trust = fixture
            .trust
            .with_revoked([worker.name().to_owned()].into());
        let wary = MtlsConnector::new(&gateway_credentials(&fixture), &trust, &sessions).unwrap();
        let refused = worker
            .dial_version(&wary, TlsVersion::Tls13)
            .await
            .unwrap_err();
        assert!(
            matches!(&refused, TlsDialError::PeerRefused { .. })
                && refused.to_string().contains("was revoked"),
            "{refused}"
        );
    });
}

#[test]
fn a_dial_without_an_answer_ends_in_time() {
    run(async {
        let fixture = QuicFixture::new();
        let (connector, _) = connector_for(&fixture, &gateway_credentials(&fixture));
        // the backlog accepts, but no process responds
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (addr, limit) = (silent.local_addr().unwrap(), Duration::from_millis(50));
        let dialed = connector
            .dial_worker(addr, "i1", TlsVersion::Tls13, HTTP1, limit)
            .await;
        assert!(matches!(dialed.unwrap_err(), TlsDialError::Timeout { .. }));
        drop(silent);
        let dialed = connector
            .dial_worker(addr, "i1", TlsVersion::Tls13, HTTP1, LIMIT)
            .await;
        assert!(matches!(dialed.unwrap_err(), TlsDialError::Io { .. }));
    });
}

#[test]
fn without_an_identity_there_is_no_tls() {
    run(async {
        let fixture = QuicFixture::new();
        let entrance = MtlsAcceptor::new(true);
        assert!(entrance.may_accept_tls());
        entrance.stop_waiting();
        assert!(!entrance.may_accept_tls() && !MtlsAcceptor::new(false).may_accept_tls());
        let (here, _there) = tokio::io::duplex(64);
        let shut = entrance
            .accept_peer(here, ([127, 0, 0, 1], 1).into(), LIMIT)
            .await
            .unwrap_err();
        assert!(shut.to_string().contains("no certificate"), "{shut}");
        let worker = MtlsWorker::start(&fixture, 1).await;
        worker.entrance.stop_waiting();
        assert!(
            worker.entrance.may_accept_tls(),
            "what was given stays good"
        );
    });
}
