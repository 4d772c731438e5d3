//! An HTTP/3 client that can keep a request open.

use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use h3::client::{RequestStream, SendRequest};
use h3_quinn::{BidiStream, OpenStreams};
use http::{Request, StatusCode};
use nearpath_testkit::within;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Any failure of a request.
pub(super) type RequestFailure = Box<dyn std::error::Error + Send + Sync>;

/// A connection from a port of its own.
pub(super) struct UpgradeClient {
    pub(super) quic: quinn::Connection,
    requests: SendRequest<OpenStreams, Bytes>,
    endpoint: quinn::Endpoint,
}

/// An open request, whose pieces are echoed.
pub(super) struct HalfSentRequest(RequestStream<BidiStream<Bytes>, Bytes>);

impl UpgradeClient {
    pub(super) async fn connect(
        addr: SocketAddr,
        authority: &Path,
    ) -> Result<Self, RequestFailure> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority)?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider);
        let tls = tls
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots);
        let mut tls = tls.with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())?;
        let quic = within(endpoint.connect_with(config, addr, "localhost")?).await?;
        let (mut driver, requests) =
            within(h3::client::new(h3_quinn::Connection::new(quic.clone()))).await?;
        tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
        Ok(Self {
            quic,
            requests,
            endpoint,
        })
    }

    pub(super) async fn begin_request(
        &mut self,
        function: &str,
    ) -> Result<HalfSentRequest, RequestFailure> {
        let request = Request::post(format!("https://localhost/function/{function}")).body(())?;
        Ok(HalfSentRequest(
            within(self.requests.send_request(request)).await?,
        ))
    }

    /// Sends a complete request and returns the response.
    pub(super) async fn send_request(
        &mut self,
        function: &str,
        body: &'static str,
    ) -> Result<(StatusCode, String), RequestFailure> {
        let mut open = self.begin_request(function).await?;
        within(open.0.send_data(body.into())).await?;
        open.end_request().await
    }

    /// Rebinds the client to another address.
    pub(super) fn rebind_socket(&self) {
        self.endpoint
            .rebind(std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
            .unwrap();
    }
}

impl HalfSentRequest {
    /// Sends a piece and waits for its echo.
    pub(super) async fn echo_piece(&mut self, piece: &'static str) -> Result<(), RequestFailure> {
        within(self.0.send_data(piece.into())).await?;
        if piece.starts_with("first") {
            let head = within(self.0.recv_response()).await?;
            assert_eq!(head.status(), StatusCode::OK);
        }
        let mut back = Vec::new();
        while back.len() < piece.len() {
            let mut data = within(self.0.recv_data()).await?.ok_or("it ended")?;
            back.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        assert_eq!(back, piece.as_bytes());
        Ok(())
    }

    /// Ends the request and reads the rest.
    pub(super) async fn end_request(mut self) -> Result<(StatusCode, String), RequestFailure> {
        within(self.0.finish()).await?;
        let status = within(self.0.recv_response()).await?.status();
        let body = self
            .read_rest()
            .await
            .map_err(|error| format!("an answer broke off: {error}"))?;
        Ok((status, body))
    }

    /// Reads the rest after the head was received.
    pub(super) async fn read_rest(&mut self) -> Result<String, RequestFailure> {
        let mut back = Vec::new();
        while let Some(mut data) = within(self.0.recv_data()).await? {
            back.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        Ok(String::from_utf8(back)?)
    }

    pub(super) async fn finish_request(mut self) -> Result<String, RequestFailure> {
        within(self.0.finish()).await?;
        self.read_rest().await
    }
}
