//! Control connections and relays with TLS.

use std::fs;

use futures_util::{SinkExt, StreamExt};
use nearpath_p2p::control::{
    ControlConnection, ControlEnd, ControlEvent, ControlSettings, RelayStream, client_config,
};
use nearpath_p2p::migrate::StreamFrame;
use nearpath_rendezvous::RendezvousLimits;
use nearpath_testkit::within;

use nearpath_testkit::p2p::rendezvous::{
    RENDEZVOUS_TIMEOUT, TestRendezvous, TestWorker, next_event, worker_id,
};

/// Creates a certificate for `localhost`, and a server configuration with it.
fn self_signed() -> (String, std::sync::Arc<rustls::ServerConfig>) {
    let folder = tempfile::tempdir().unwrap();
    let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (cert, key) = (folder.path().join("cert"), folder.path().join("key"));
    fs::write(&cert, pair.cert.pem()).unwrap();
    fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    (
        pair.cert.pem(),
        nearpath_wire::tls::load_config(&cert, &key).unwrap(),
    )
}

fn tls_settings(fixture: &TestRendezvous, name: &str, pem: &str) -> ControlSettings {
    let place = format!("wss://localhost:{}", fixture.rendezvous.addr.port())
        .parse()
        .unwrap();
    ControlSettings {
        url: place,
        ticket: fixture.ticket("sort", name),
        tls: Some(client_config(Some(pem.as_bytes())).unwrap()),
    }
}

#[tokio::test]
async fn workers_connect_and_relay_over_tls() {
    let (pem, tls) = self_signed();
    let fixture = TestRendezvous::start_with(
        "127.0.0.1:0".parse().unwrap(),
        Some(tls),
        RendezvousLimits::default(),
    );
    let worker = async |name| {
        let settings = tls_settings(&fixture, name, &pem);
        let (connection, mut events) = ControlConnection::open(settings.clone());
        assert!(matches!(
            next_event(&mut events).await,
            ControlEvent::Connected(_)
        ));
        TestWorker {
            connection,
            events,
            settings,
        }
    };
    let (a, mut b) = (worker("a").await, worker("b").await);
    let own = within(a.connection.call(worker_id("b"), "", RENDEZVOUS_TIMEOUT))
        .await
        .unwrap();
    let others = b.next_call().await;
    let mut first = RelayStream::open(&a.settings, &own.grant.relay_token)
        .await
        .unwrap();
    let mut second = RelayStream::open(&b.settings, &others.grant.relay_token)
        .await
        .unwrap();
    first
        .send(StreamFrame::Bytes(vec![7; 32_768].into()))
        .await
        .unwrap();
    assert_eq!(
        within(second.next()).await.unwrap().unwrap(),
        StreamFrame::Bytes(vec![7; 32_768].into())
    );
    first.close().await.unwrap();
    assert!(within(second.next()).await.is_none());
}

/// No ticket is sent to an untrusted server.
#[tokio::test]
async fn an_untrusted_server_gets_no_ticket() {
    let ((pem, _), (_, other)) = (self_signed(), self_signed());
    let fixture = TestRendezvous::start_with(
        "127.0.0.1:0".parse().unwrap(),
        Some(other),
        RendezvousLimits::default(),
    );
    let (_connection, mut events) = ControlConnection::open(tls_settings(&fixture, "a", &pem));
    // Said at once, because waiting would not help.
    let ControlEvent::Ended(ControlEnd::Untrusted(why)) = next_event(&mut events).await else {
        panic!("it goes on")
    };
    assert!(
        why.contains("certificate") && why.contains("wss://localhost"),
        "{why}"
    );
    assert!(client_config(Some(b"nothing")).is_err());
}
