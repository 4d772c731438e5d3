//! HTTP over TLS, with the protocol chosen by ALPN.

use std::sync::Arc;

use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nearpath_testkit::within;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::fixture::{self, TestGateway, full_body, start_mirror};

/// Connects with trust in the certificate of the fixture, and offers `protocol`.
pub(crate) async fn connect_tls(
    fixture: &TestGateway,
    protocol: &[u8],
) -> tokio_rustls::client::TlsStream<TcpStream> {
    connect_tls_to(fixture.secure, &fixture.certificate, protocol).await
}

/// Connects to `addr` with trust in a certificate in PEM, and offers `protocol`.
pub(crate) async fn connect_tls_to(
    addr: std::net::SocketAddr,
    certificate: &str,
    protocol: &[u8],
) -> tokio_rustls::client::TlsStream<TcpStream> {
    connect_tls_over(
        TcpStream::connect(addr).await.unwrap(),
        certificate,
        protocol,
    )
    .await
}

/// Does the same as [`connect_tls_to`] over a TCP connection.
pub(crate) async fn connect_tls_over(
    stream: TcpStream,
    certificate: &str,
    protocol: &[u8],
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let certificate =
        rustls::pki_types::CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    within(TlsConnector::from(Arc::new(config)).connect(name, stream))
        .await
        .unwrap()
}

#[tokio::test]
async fn http_1_over_tls() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let io = TokioIo::new(connect_tls(&fixture, b"http/1.1").await);
    let (mut client, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/function/echo")
        .header("host", "a")
        .body(full_body(""))
        .unwrap();
    let answer =
        fixture::collect_response(within(client.send_request(request)).await.unwrap()).await;
    assert!(
        answer.body.contains("x-forwarded-proto: https\n"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn http_2_over_tls() {
    let fixture = TestGateway::start();
    fixture.publish_echo(start_mirror().await);
    let stream = connect_tls(&fixture, b"h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut client, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://localhost/function/echo")
        .body(full_body(""))
        .unwrap();
    let answer =
        fixture::collect_response(within(client.send_request(request)).await.unwrap()).await;
    assert!(
        answer.body.contains("x-forwarded-proto: https\n"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn plain_text_on_a_tls_port_is_closed() {
    let fixture = TestGateway::start();
    let answer = fixture::send_raw(fixture.secure, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(!answer.contains("HTTP/1.1"), "{answer:?}");
    assert_eq!(fixture.send_get("/healthz").await.status, 200);
}
