//! HTTP/3 client that trusts the certificate of the fixture.

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use h3::client::{RequestStream, SendRequest};
use h3::error::StreamError;
use h3_quinn::{BidiStream, OpenStreams};
use http::{HeaderMap, Request};
use nearpath_testkit::within;
use quinn::{Endpoint, TransportConfig};
use quinn_proto::crypto::rustls::QuicClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::fixture::{CollectedResponse, TestGateway};

/// HTTP/3 client for tests.
pub(crate) struct TestHttp3Client {
    pub(crate) endpoint: Endpoint,
    pub(crate) config: quinn::ClientConfig,
    server_addr: SocketAddr,
}

/// HTTP/3 connection for tests.
pub(crate) struct TestHttp3Connection {
    pub(crate) quic: quinn::Connection,
    pub(crate) requests: SendRequest<OpenStreams, Bytes>,
}

pub(crate) type TestRequestStream = RequestStream<BidiStream<Bytes>, Bytes>;

impl TestHttp3Client {
    pub(crate) fn for_fixture(fixture: &TestGateway) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(fixture.certificate.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap();
        let mut tls = builder.with_root_certificates(roots).with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        tls.enable_early_data = true;
        let mut config =
            quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        let mut transport = TransportConfig::default();
        transport.initial_rtt(Duration::from_millis(20));
        config.transport_config(Arc::new(transport));
        Self {
            endpoint: bind_endpoint(),
            config,
            server_addr: fixture.secure,
        }
    }

    pub(crate) fn start_connecting(&self) -> quinn::Connecting {
        self.endpoint
            .connect_with(self.config.clone(), self.server_addr, "localhost")
            .unwrap()
    }

    pub(crate) async fn connect_http3(&self) -> TestHttp3Connection {
        TestHttp3Connection::from_quic(within(self.start_connecting()).await.unwrap()).await
    }

    /// Connects with early data. Needs a session.
    pub(crate) async fn connect_early(&self) -> TestHttp3Connection {
        let (quic, _complete) = self
            .start_connecting()
            .into_0rtt()
            .unwrap_or_else(|_| panic!("there is no session"));
        TestHttp3Connection::from_quic(quic).await
    }

    /// Connects once to obtain a session; the connection is closed on return.
    pub(crate) async fn learn_session(&self) {
        let mut connection = self.connect_http3().await;
        let answer = connection.send_get("/function/echo").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        connection.quic.close(0_u32.into(), b"");
        within(self.endpoint.wait_idle()).await;
    }
}

pub(crate) fn bind_endpoint() -> Endpoint {
    Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

impl TestHttp3Connection {
    pub(crate) async fn from_quic(quic: quinn::Connection) -> Self {
        let (mut driver, requests) =
            within(h3::client::new(h3_quinn::Connection::new(quic.clone())))
                .await
                .unwrap();
        tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
        Self { quic, requests }
    }

    pub(crate) async fn begin_request(&mut self, request: Request<()>) -> TestRequestStream {
        within(self.requests.send_request(request)).await.unwrap()
    }

    pub(crate) async fn send_get(&mut self, path: &str) -> CollectedResponse {
        self.send_and_collect(Request::get(absolute_url(path)).body(()).unwrap(), "")
            .await
    }

    pub(crate) async fn send_and_collect(
        &mut self,
        request: Request<()>,
        body: impl Into<Bytes>,
    ) -> CollectedResponse {
        let mut stream = self.begin_request(request).await;
        let body = body.into();
        if !body.is_empty() {
            within(stream.send_data(body)).await.unwrap();
        }
        within(stream.finish()).await.unwrap();
        collect_response(&mut stream).await.unwrap()
    }
}

pub(crate) fn absolute_url(path: &str) -> String {
    format!("https://localhost{path}")
}

/// Reads a response to its end.
pub(crate) async fn collect_response(
    stream: &mut TestRequestStream,
) -> Result<CollectedResponse, StreamError> {
    let head = within(stream.recv_response()).await?;
    let mut body = BytesMut::new();
    while let Some(mut data) = within(stream.recv_data()).await? {
        body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    let trailers: Option<HeaderMap> = within(stream.recv_trailers()).await?;
    let body = String::from_utf8(body.to_vec()).unwrap();
    Ok(CollectedResponse {
        status: head.status().as_u16(),
        headers: head.headers().clone(),
        body,
        trailers,
    })
}
