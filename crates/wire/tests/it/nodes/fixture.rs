//! Nodes of one application, and servers that report whom they admit.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use nearpath_types::SpiffeId;
use nearpath_wire::identity::{Credentials, Trust};
use nearpath_wire::mtls::{AlpnProtocol, CallerStream, MtlsConnector, TlsVersion};
use nearpath_wire::node_tls::{NodeCredentials, NodeFiles, NodeTls};
use nearpath_wire::quic::{CallServer, CallerConfig, EarlyData, QuicCallError, ServedCall};
use quinn::Endpoint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::quic::fixture::{DOMAIN, LIMIT, QuicFixture, post};

/// Files of a node that the fixture's authority signed for.
pub(crate) fn node_files(fixture: &QuicFixture, credentials: &Credentials) -> NodeFiles {
    let (certificate, key) = credentials.to_pem();
    NodeFiles {
        certificate: certificate.into(),
        key: key.into(),
        roots: fixture.authority.to_pem().into(),
    }
}

pub(crate) fn gateway_credentials(fixture: &QuicFixture, node: &str) -> Credentials {
    fixture.credentials(SpiffeId::for_gateway(DOMAIN, node), node)
}

pub(crate) fn node_tls(files: &NodeFiles) -> NodeTls {
    let folder = Path::new("/node");
    let credentials = NodeCredentials::from_files(folder, files, SystemTime::now()).unwrap();
    NodeTls::new(credentials).unwrap()
}

/// A node with a good certificate.
pub(crate) fn good_node(fixture: &QuicFixture, name: &str) -> NodeTls {
    node_tls(&node_files(fixture, &gateway_credentials(fixture, name)))
}

/// A caller with these credentials, good or not, that expects nodes.
pub(crate) fn caller_with(fixture: &QuicFixture, credentials: &Credentials) -> CallerConfig {
    CallerConfig::new(credentials, fixture.trust.for_nodes(), &Arc::default()).unwrap()
}

/// A server over TLS. It sends each admitted node its name, and others the refusal.
pub(crate) struct TlsNode {
    pub(crate) addr: SocketAddr,
    /// Failed handshakes and refusals, as the server sees them.
    pub(crate) refusals: mpsc::UnboundedReceiver<String>,
}

impl TlsNode {
    pub(crate) async fn start(config: Arc<rustls::ServerConfig>, trust: Trust) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (sender, refusals) = mpsc::unbounded_channel();
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, trust) = (TlsAcceptor::from(config.clone()), trust.clone());
                tokio::task::spawn_local(serve_tls(stream, acceptor, trust, sender.clone()));
            }
        });
        Self { addr, refusals }
    }

    /// Starts the server of a node as a gateway does.
    pub(crate) async fn of(node: &NodeTls) -> Self {
        Self::start(
            node.tls_server_config().clone(),
            node.credentials().trust().clone(),
        )
        .await
    }

    /// Dials as `name`, and returns the server's text or the caller's error.
    pub(crate) async fn call(&self, caller: &MtlsConnector, name: &str) -> String {
        match self.dial(caller, name, AlpnProtocol::Http1).await {
            Ok(stream) => read_text(stream).await,
            Err(error) => error,
        }
    }

    pub(crate) async fn dial(
        &self,
        caller: &MtlsConnector,
        name: &str,
        protocol: AlpnProtocol,
    ) -> Result<CallerStream<TcpStream>, String> {
        let dialed = caller.dial_worker(self.addr, name, TlsVersion::Tls13, protocol, LIMIT);
        dialed
            .await
            .map(|(stream, _)| stream)
            .map_err(|error| error.to_string())
    }
}

async fn serve_tls(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    trust: Trust,
    refusals: mpsc::UnboundedSender<String>,
) {
    let mut stream = match acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => return refusals.send(error.to_string()).unwrap_or_default(),
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let text = match trust.admit_node(certificates, SystemTime::now()) {
        Ok(node) => node.to_string(),
        Err(refusal) => {
            let _ = refusals.send(refusal.to_string()); // the test may not read it
            refusal.to_string()
        }
    };
    let _ = stream.write_all(text.as_bytes()).await; // the caller may have left
    let _ = stream.shutdown().await;
}

pub(crate) async fn read_text(mut stream: CallerStream<TcpStream>) -> String {
    let mut text = String::new();
    let mut part = [0; 256];
    loop {
        match stream.read(&mut part).await {
            Ok(0) => return text,
            Ok(count) => text.push_str(std::str::from_utf8(&part[..count]).unwrap()),
            Err(error) => return error.to_string(),
        }
    }
}

/// A server over QUIC, which responds with the name of the calling node.
pub(crate) struct QuicNode {
    pub(crate) addr: SocketAddr,
    pub(crate) refusals: tokio::sync::watch::Receiver<nearpath_wire::quic::RefusalStats>,
}

impl QuicNode {
    pub(crate) fn start(config: quinn::ServerConfig, trust: Trust) -> Self {
        let endpoint = Endpoint::server(config, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let server = CallServer::new(trust, async |call: ServedCall| {
            let name = call.peer.node_name().unwrap().to_string();
            Response::new(Full::<Bytes>::from(format!("{name} early={}", call.early)))
        });
        let (addr, refusals) = (endpoint.local_addr().unwrap(), server.refusals());
        tokio::task::spawn_local(async move {
            while let Some(incoming) = endpoint.accept().await {
                tokio::task::spawn_local(Rc::clone(&server).serve_connection(incoming));
            }
        });
        Self { addr, refusals }
    }

    pub(crate) fn of(node: &NodeTls) -> Self {
        Self::start(
            node.quic_server_config().clone(),
            node.credentials().trust().clone(),
        )
    }

    /// Dials as `name`, and returns the server's text or the caller's error.
    pub(crate) async fn call(&self, caller: &CallerConfig, name: &str) -> String {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let dialer = caller.open_dialer(socket).unwrap();
        let connection = match dialer.dial_worker(self.addr, name, LIMIT).await {
            Ok(connection) => connection,
            Err(error) => return error.to_string(),
        };
        let called = connection.call_buffered(post(""), EarlyData::Allowed);
        match called.await {
            Ok(response) => {
                let body = response.into_body().collect().await.unwrap().to_bytes();
                connection.close();
                String::from_utf8(body.to_vec()).unwrap()
            }
            Err(QuicCallError::NotRun(why)) => why,
            Err(error) => panic!("nothing ran, which the caller is to know: {error}"),
        }
    }
}
