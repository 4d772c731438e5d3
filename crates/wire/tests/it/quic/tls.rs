//! TLS over TCP with the same identities: sessions, versions, and who is not let in.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::early::{Provision, Sessions, TokenKey};
use nearpath_wire::identity::Credentials;
use nearpath_wire::mutual::{CallerStream, Connector, DialError, Entrance, Protocol, Version};
use rustls::{HandshakeKind, ProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::quic::site::{DOMAIN, LIMIT, Site, run};

const HTTP1: Protocol = Protocol::Http1;

/// A worker that says to each peer whether it is admitted, and to the test when a peer is shut out later.
struct Worker {
    entrance: Rc<Entrance>,
    provision: Provision,
    addr: SocketAddr,
    shut_out: mpsc::UnboundedReceiver<String>,
}

impl Worker {
    async fn start(site: &Site, number: u64) -> Self {
        let made = site.worker(number);
        let provision = Provision {
            credentials: made.credentials,
            authorities: vec![site.authority.certificate().clone()],
            callers: vec!["friend".parse().unwrap()],
            revoked: Vec::new(),
            key: TokenKey([7; 32]),
            entries: Vec::new(),
        };
        let entrance = Rc::new(Entrance::new(true));
        entrance.provision(&provision).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (out, shut_out) = mpsc::unbounded_channel();
        tokio::task::spawn_local(accept(listener, entrance.clone(), out));
        Self { entrance, provision, addr, shut_out }
    }

    fn name(&self) -> &str {
        &self.provision.credentials.name
    }

    async fn dial(&self, by: &Connector, version: Version) -> Result<CallerStream<TcpStream>, DialError> {
        by.dial(self.addr, self.name(), version, HTTP1, LIMIT).await.map(|(stream, _)| stream)
    }
}

async fn accept(listener: TcpListener, entrance: Rc<Entrance>, out: mpsc::UnboundedSender<String>) {
    while let Ok((stream, from)) = listener.accept().await {
        let (entrance, out) = (entrance.clone(), out.clone());
        tokio::task::spawn_local(async move {
            let Ok((mut stream, mut guest)) = entrance.accept(stream, from, LIMIT).await else { return };
            let said = guest.admit(SystemTime::now()).map_or_else(|refusal| refusal.to_string(), |peer| peer.name);
            stream.write_all(format!("{said}\n").as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            let _ = out.send(guest.refused().await.to_string());
        });
    }
}

/// What the worker says, which comes after its sessions.
async fn said(mut stream: CallerStream<TcpStream>) -> String {
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

fn connector(site: &Site, credentials: &Credentials) -> (Connector, Arc<Sessions>) {
    let sessions = Arc::new(Sessions::default());
    (Connector::new(credentials, &site.trust, &sessions).unwrap(), sessions)
}

fn gateway(site: &Site) -> Credentials {
    site.credentials(SpiffeId::gateway(DOMAIN, "node-a"), "gateway")
}

fn kind(stream: &CallerStream<TcpStream>) -> (ProtocolVersion, HandshakeKind) {
    let session = stream.get_ref().1;
    (session.protocol_version().unwrap(), session.handshake_kind().unwrap())
}

#[test]
fn tls13_resumes_with_each_session_once_and_tls12_never() {
    run(async {
        let site = Site::new();
        let worker = Worker::start(&site, 1).await;
        let (connector, sessions) = connector(&site, &gateway(&site));
        let first = worker.dial(&connector, Version::Tls13).await.unwrap();
        assert_eq!(kind(&first), (ProtocolVersion::TLSv1_3, HandshakeKind::Full));
        assert_eq!(said(first).await, "gateway");
        let left = sessions.left(worker.name());
        let second = worker.dial(&connector, Version::Tls13).await.unwrap();
        assert_eq!((kind(&second).1, sessions.left(worker.name())), (HandshakeKind::Resumed, left - 1));
        assert_eq!(said(second).await, "gateway");
        assert_eq!(worker.entrance.register().counts(), (1, 0));
        for _ in 0..2 {
            let old = worker.dial(&connector, Version::Tls12).await.unwrap();
            assert_eq!(kind(&old), (ProtocolVersion::TLSv1_2, HandshakeKind::Full));
            assert_eq!(said(old).await, "gateway");
        }
        assert_eq!(worker.entrance.register().counts(), (1, 0), "TLS 1.2 leaves and asks for nothing");
    });
}

#[test]
fn protocols_are_agreed_upon() {
    run(async {
        let site = Site::new();
        let worker = Worker::start(&site, 1).await;
        let (connector, _) = connector(&site, &gateway(&site));
        for (version, protocol, name) in [
            (Version::Tls13, Protocol::Http1, "http/1.1"),
            (Version::Tls13, Protocol::Http2, "h2"),
            (Version::Tls12, Protocol::Http2, "h2"),
        ] {
            let (stream, peer) = connector.dial(worker.addr, worker.name(), version, protocol, LIMIT).await.unwrap();
            assert_eq!(peer.name, worker.name());
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(name.as_bytes()));
        }
    });
}

#[test]
fn a_session_of_another_incarnation_is_of_no_use() {
    run(async {
        let site = Site::new();
        let (worker, successor) = (Worker::start(&site, 1).await, Worker::start(&site, 2).await);
        let (connector, _) = connector(&site, &gateway(&site));
        said(worker.dial(&connector, Version::Tls13).await.unwrap()).await;
        let stream = successor.dial(&connector, Version::Tls13).await.unwrap();
        assert_eq!(kind(&stream).1, HandshakeKind::Full);
        let wrong = connector.dial(successor.addr, worker.name(), Version::Tls13, HTTP1, LIMIT).await.unwrap_err();
        assert!(matches!(&wrong, DialError::Handshake { .. }), "{wrong}");
        assert!(wrong.to_string().contains(worker.name()), "{wrong}");
    });
}

#[test]
fn who_is_not_let_in_and_what_is_told() {
    run(async {
        let (site, other) = (Site::new(), Site::new());
        let worker = Worker::start(&site, 1).await;
        let function = |name: &str, number| SpiffeId::instance(DOMAIN, name.parse().unwrap(), InstanceId(number));
        let long_ago = SystemTime::now() - Duration::from_secs(7200);
        let expired = site.credentials_at(function("friend", 7), "i7", long_ago, Duration::from_secs(60));
        for version in [Version::Tls13, Version::Tls12] {
            let hears =
                async |credentials: &Credentials| match worker.dial(&connector(&site, credentials).0, version).await {
                    Ok(stream) => said(stream).await,
                    Err(error) => error.to_string(),
                };
            assert_eq!(hears(&site.credentials(function("friend", 9), "i9")).await, "i9");
            let told = hears(&site.credentials(function("stranger", 8), "i8")).await;
            assert_eq!(told, "no edge leads from spiffe://test.nearpath/ns/openfaas-fn/fn/stranger/instance/8 to here");
            let told = hears(&expired).await;
            assert!(told.contains("CertificateExpired"), "{told}");
            let told = hears(&gateway(&other)).await;
            assert!(told.contains("alert"), "{version}: {told}");
        }
    });
}

/// The caller's handshake is over by then: what it has sent at once was not looked at, and it knows.
#[test]
fn a_certificate_that_is_turned_down_late_is_told_apart_from_a_broken_connection() {
    run(async {
        let (site, other) = (Site::new(), Site::new());
        let worker = Worker::start(&site, 1).await;
        /// More than lies between the two: it goes out because the worker reads until the caller has heard it.
        const LONG: usize = 16 << 20;
        for (credentials, length, refused) in [(gateway(&other), LONG, true), (gateway(&site), 1000, false)] {
            let mut stream = worker.dial(&connector(&site, &credentials).0, Version::Tls13).await.unwrap();
            let verdict = stream.verdict().clone();
            stream.write_all(&vec![b'x'; length]).await.unwrap();
            stream.flush().await.unwrap();
            assert_eq!(verdict.refusal(), None, "nothing was read");
            said(stream).await;
            assert_eq!(verdict.refusal().is_some(), refused, "{verdict:?}");
        }
    });
}

#[test]
fn a_session_does_not_outlive_the_certificate_that_it_began_with() {
    run(async {
        let site = Site::new();
        let mut worker = Worker::start(&site, 1).await;
        let short = site.credentials_at(
            SpiffeId::gateway(DOMAIN, "node-a"),
            "gateway",
            SystemTime::now(),
            Duration::from_secs(3),
        );
        let (connector, _) = connector(&site, &short);
        assert_eq!(said(worker.dial(&connector, Version::Tls13).await.unwrap()).await, "gateway");
        let expired = "the certificate of spiffe://test.nearpath/node/node-a/gateway has expired";
        assert_eq!(worker.shut_out.recv().await.unwrap(), expired, "the connection that was open");
        let resumed = worker.dial(&connector, Version::Tls13).await.unwrap();
        assert_eq!(kind(&resumed).1, HandshakeKind::Resumed);
        assert_eq!(said(resumed).await, expired);
    });
}

#[test]
fn who_is_taken_back_is_shut_out_and_a_caller_does_not_call_it_either() {
    run(async {
        let site = Site::new();
        let mut worker = Worker::start(&site, 1).await;
        let (connector, sessions) = connector(&site, &gateway(&site));
        assert_eq!(said(worker.dial(&connector, Version::Tls13).await.unwrap()).await, "gateway");
        worker.entrance.provision(&Provision { revoked: vec!["gateway".into()], ..worker.provision.clone() }).unwrap();
        assert!(worker.shut_out.recv().await.unwrap().contains("was revoked"));
        let trust = site.trust.without([worker.name().to_owned()].into());
        let wary = Connector::new(&gateway(&site), &trust, &sessions).unwrap();
        let refused = worker.dial(&wary, Version::Tls13).await.unwrap_err();
        assert!(matches!(&refused, DialError::Peer { .. }) && refused.to_string().contains("was revoked"), "{refused}");
    });
}

#[test]
fn nobody_there_is_told_in_time() {
    run(async {
        let site = Site::new();
        let (connector, _) = connector(&site, &gateway(&site));
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap(); // its backlog accepts, nobody answers
        let (addr, limit) = (silent.local_addr().unwrap(), Duration::from_millis(50));
        let dialed = connector.dial(addr, "i1", Version::Tls13, HTTP1, limit).await;
        assert!(matches!(dialed.unwrap_err(), DialError::Timeout { .. }));
        drop(silent);
        let dialed = connector.dial(addr, "i1", Version::Tls13, HTTP1, LIMIT).await;
        assert!(matches!(dialed.unwrap_err(), DialError::Io { .. }));
    });
}

#[test]
fn without_an_identity_there_is_no_tls() {
    run(async {
        let site = Site::new();
        let entrance = Entrance::new(true);
        assert!(entrance.may_open());
        entrance.give_up();
        assert!(!entrance.may_open() && !Entrance::new(false).may_open());
        let (here, _there) = tokio::io::duplex(64);
        let shut = entrance.accept(here, ([127, 0, 0, 1], 1).into(), LIMIT).await.unwrap_err();
        assert!(shut.to_string().contains("no identity"), "{shut}");
        let worker = Worker::start(&site, 1).await;
        worker.entrance.give_up();
        assert!(worker.entrance.may_open(), "what was given stays good");
    });
}
