//! Lines and relays with TLS.

use std::fs;

use futures_util::{SinkExt, StreamExt};
use nearpath_p2p::control::{Heard, Line, RelayStream, Settings, trust};
use nearpath_p2p::migrate::Piece;
use nearpath_rendezvous::Limits;
use nearpath_testkit::within;

use nearpath_testkit::p2p::rendezvous::{House, SOON, Worker, id, next};

/// A certificate of its own for `localhost`, and the server's configuration with it.
fn certificate() -> (String, std::sync::Arc<rustls::ServerConfig>) {
    let folder = tempfile::tempdir().unwrap();
    let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (cert, key) = (folder.path().join("cert"), folder.path().join("key"));
    fs::write(&cert, pair.cert.pem()).unwrap();
    fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    (pair.cert.pem(), nearpath_wire::tls::load(&cert, &key).unwrap())
}

fn settings(house: &House, name: &str, pem: &str) -> Settings {
    let place = format!("wss://localhost:{}", house.rendezvous.addr.port()).parse().unwrap();
    Settings { place, ticket: house.ticket("sort", name), tls: Some(trust(Some(pem.as_bytes())).unwrap()) }
}

#[tokio::test]
async fn workers_meet_and_relay_over_tls() {
    let (pem, tls) = certificate();
    let house = House::start_with("127.0.0.1:0".parse().unwrap(), Some(tls), Limits::default());
    let worker = async |name| {
        let settings = settings(&house, name, &pem);
        let (line, mut heard) = Line::open(settings.clone());
        assert!(matches!(next(&mut heard).await, Heard::Here(_)));
        Worker { line, heard, settings }
    };
    let (a, mut b) = (worker("a").await, worker("b").await);
    let own = within(a.line.call(id("b"), "", SOON)).await.unwrap();
    let others = b.called().await;
    let mut first = RelayStream::open(&a.settings, &own.granted.pass).await.unwrap();
    let mut second = RelayStream::open(&b.settings, &others.granted.pass).await.unwrap();
    first.send(Piece::Bytes(vec![7; 32_768].into())).await.unwrap();
    assert_eq!(within(second.next()).await.unwrap().unwrap(), Piece::Bytes(vec![7; 32_768].into()));
    first.close().await.unwrap();
    assert!(within(second.next()).await.is_none());
}

/// A ticket is not shown to whoever is there instead.
#[tokio::test]
async fn another_certificate_gets_no_ticket() {
    let ((pem, _), (_, other)) = (certificate(), certificate());
    let house = House::start_with("127.0.0.1:0".parse().unwrap(), Some(other), Limits::default());
    let (_line, mut heard) = Line::open(settings(&house, "a", &pem));
    let Heard::Away { why } = next(&mut heard).await else { panic!("it was let in") };
    assert!(why.contains("certificate"), "{why}");
    assert!(trust(Some(b"nothing")).is_err());
}
