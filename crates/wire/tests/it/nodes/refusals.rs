//! Peers that are no nodes of the application. Both sides report why, and nothing runs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nearpath_types::{InstanceId, SpiffeId};
use nearpath_wire::identity::Credentials;
use nearpath_wire::mtls::AlpnProtocol;
use nearpath_wire::quic::config;
use nearpath_wire::zero_rtt::{TokenKey, WorkerSessions};
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::fixture::{QuicNode, TlsNode, caller_with, gateway_credentials, good_node};
use crate::quic::fixture::{DOMAIN, LIMIT, QuicFixture, run};

const HOUR: Duration = Duration::from_secs(3600);
const INSTANCE_REFUSAL: &str =
    "spiffe://test.nearpath/ns/openfaas-fn/fn/echo/instance/9 is not the gateway of a node";

fn instance_credentials(fixture: &QuicFixture, name: &str) -> Credentials {
    let id = SpiffeId::for_instance(DOMAIN, "echo".parse().unwrap(), InstanceId(9));
    fixture.credentials(id, name)
}

fn expired_credentials(fixture: &QuicFixture, node: &str) -> Credentials {
    let id = SpiffeId::for_gateway(DOMAIN, node);
    fixture.credentials_at(id, node, SystemTime::now() - 2 * HOUR, HOUR)
}

/// Credentials that no node accepts, with the text of the refusal.
fn bad_credentials(fixture: &QuicFixture, node: &str) -> [(Credentials, &'static str); 3] {
    [
        // Both authorities have the same name.
        (
            gateway_credentials(&QuicFixture::new(), node),
            "BadSignature",
        ),
        (expired_credentials(fixture, node), "certificate expired"),
        (instance_credentials(fixture, node), INSTANCE_REFUSAL),
    ]
}

fn assert_contains(text: &str, part: &str) {
    assert!(text.contains(part), "{text:?} lacks {part:?}");
}

#[test]
fn callers_that_are_no_nodes_are_refused_over_tls() {
    run(async {
        let fixture = QuicFixture::new();
        let mut server = TlsNode::of(&good_node(&fixture, "b")).await;
        for (credentials, why) in bad_credentials(&fixture, "a") {
            let caller = caller_with(&fixture, &credentials);
            let text = server.call(caller.mtls_connector(), "b").await;
            assert_contains(&server.refusals.recv().await.unwrap(), why);
            // An alert has no text; a peer that proved its key gets one.
            let shown = if why == INSTANCE_REFUSAL {
                why
            } else {
                "alert"
            };
            assert_contains(&text, shown);
        }
    });
}

#[test]
fn callers_that_are_no_nodes_are_refused_over_quic() {
    run(async {
        let fixture = QuicFixture::new();
        let mut server = QuicNode::of(&good_node(&fixture, "b"));
        for (credentials, why) in bad_credentials(&fixture, "a") {
            let caller = caller_with(&fixture, &credentials);
            assert_contains(&server.call(&caller, "b").await, why);
            server.refusals.changed().await.unwrap();
            assert_contains(&server.refusals.borrow().last, why);
        }
    });
}

#[test]
fn callers_without_a_certificate_are_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let node = good_node(&fixture, "b");
        let (mut server, mut roots) = (TlsNode::of(&node).await, rustls::RootCertStore::empty());
        roots.add(fixture.authority.certificate().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(server.addr).await.unwrap();
        let name = ServerName::try_from("b").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config.clone()));
        let mut stream = connector.connect(name, stream).await.unwrap();
        let error = stream.read(&mut [0; 8]).await.unwrap_err().to_string();
        assert_contains(&error, "CertificateRequired");
        let refusal = server.refusals.recv().await.unwrap();
        assert_contains(&refusal, "peer sent no certificates");

        config.alpn_protocols = vec![config::ALPN.to_vec()];
        let mut server = QuicNode::of(&node);
        let dialed = fixture
            .caller_with(config)
            .dialer()
            .dial_worker(server.addr, "b", LIMIT)
            .await;
        drop(dialed);
        server.refusals.changed().await.unwrap();
        let refusal = server.refusals.borrow().last.clone();
        assert_contains(&refusal, "peer sent no certificates");
    });
}

/// Servers with these credentials, good or not, for callers that dial `b`.
async fn servers_with(fixture: &QuicFixture, credentials: &Credentials) -> (TlsNode, QuicNode) {
    let sessions = || Arc::new(WorkerSessions::new(None));
    let (trust, key) = (fixture.trust.for_nodes(), TokenKey([7; 32]));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(fixture.authority.certificate().clone()).unwrap();
        Arc::new(roots)
    };
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
    let pem = credentials.to_pem().1;
    let key_der = rustls::pki_types::pem::PemObject::from_pem_slice(pem.as_bytes()).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(credentials.chain.clone(), key_der)
        .unwrap();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let quic = config::worker_config(credentials, &trust, sessions(), &key).unwrap();
    (
        TlsNode::start(Arc::new(tls), trust.clone()).await,
        QuicNode::start(quic, trust),
    )
}

#[test]
fn callees_that_are_not_the_dialed_node_are_refused() {
    run(async {
        let fixture = QuicFixture::new();
        let caller = good_node(&fixture, "a");
        let caller = caller.caller_config();
        let mut cases = bad_credentials(&fixture, "b").to_vec();
        // Another node's certificate: rustls compares the DNS name.
        let other = gateway_credentials(&fixture, "c");
        cases.push((other, "certificate not valid for name \"b\""));
        // A certificate with the right DNS name and another node's identity.
        let mixed = fixture.credentials(SpiffeId::for_gateway(DOMAIN, "c"), "b");
        cases.push((
            mixed,
            "unexpected peer at 127.0.0.1:PORT: spiffe://test.nearpath/node/c/gateway is not the gateway of node b",
        ));
        for (credentials, why) in cases {
            let (tls, quic) = servers_with(&fixture, &credentials).await;
            for (addr, text) in [
                (tls.addr, tls.call(caller.mtls_connector(), "b").await),
                (quic.addr, quic.call(caller, "b").await),
            ] {
                assert_contains(&text, &why.replace("PORT", &addr.port().to_string()));
            }
        }
    });
}

/// Callers of instances stay as strict as before.
#[test]
fn a_node_is_no_instance() {
    run(async {
        let fixture = QuicFixture::new();
        let server = TlsNode::of(&good_node(&fixture, "b")).await;
        let of_instances = fixture.caller_as(gateway_credentials(&fixture, "a"));
        let connector = nearpath_wire::mtls::MtlsConnector::new(
            &gateway_credentials(&fixture, "a"),
            &of_instances.trust,
            &Arc::default(),
        )
        .unwrap();
        let dialed = server.dial(&connector, "b", AlpnProtocol::Http1).await;
        assert_contains(
            &dialed.unwrap_err(),
            "spiffe://test.nearpath/node/b/gateway is not an instance of a function",
        );
    });
}
