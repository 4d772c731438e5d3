//! Opens a WebSocket at the rendezvous.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::{Request, header};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::{ControlSettings, RendezvousUrl};
use crate::websocket::{self, BoxedStream, WebSocket};

/// Time for a connection, with TLS and the upgrade.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why there is no connection to the rendezvous.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Name resolution, TCP or TLS failed.
    #[error("cannot connect to the rendezvous {url}: {source}")]
    Io {
        /// Address of the rendezvous.
        url: RendezvousUrl,
        /// Cause of the failure.
        source: io::Error,
    },
    /// Rendezvous did not respond in time.
    #[error("cannot connect to the rendezvous {url}: no answer within {DIAL_TIMEOUT:?}")]
    Timeout {
        /// Address of the rendezvous.
        url: RendezvousUrl,
    },
    /// Rendezvous refused the upgrade.
    #[error("the rendezvous {url} answers {status}: {text}")]
    Status {
        /// Address of the rendezvous.
        url: RendezvousUrl,
        /// HTTP status.
        status: u16,
        /// Body of the response, shortened.
        text: String,
    },
    /// Server is no rendezvous.
    #[error("the server at {url} is no rendezvous: {text}")]
    Protocol {
        /// Address of the rendezvous.
        url: RendezvousUrl,
        /// Violation of the protocol.
        text: String,
    },
}

impl DialError {
    /// Returns whether the token will never be accepted.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Status { status: 401, .. })
    }

    /// Returns whether the server's certificate is not trusted, or for another name.
    pub(super) fn is_untrusted(&self) -> bool {
        let Self::Io { source, .. } = self else {
            return false;
        };
        let cause = source
            .get_ref()
            .and_then(|cause| cause.downcast_ref::<rustls::Error>());
        matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
    }
}

/// Server of a connection, and its distance.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReachedServer {
    pub(super) addr: SocketAddr,
    /// Round trip as TCP's handshake took it, with the lookup of the name.
    pub(super) round_trip: Duration,
}

/// Opens a WebSocket at a path, with a bearer token.
pub(super) async fn dial(
    settings: &ControlSettings,
    path: &str,
    token: &str,
    config: WebSocketConfig,
) -> Result<(WebSocket, ReachedServer), DialError> {
    let url = &settings.url;
    let all = async {
        let failed = |source| DialError::Io {
            url: url.clone(),
            source,
        };
        let started = Instant::now();
        let stream = TcpStream::connect((url.host.as_str(), url.port))
            .await
            .map_err(failed)?;
        // Measured before TLS: its flights would count as round trips.
        let to = ReachedServer {
            addr: stream.peer_addr().map_err(failed)?,
            round_trip: started.elapsed(),
        };
        let socket = connect_tls(settings, stream).await.map_err(failed)?;
        let request = upgrade_request(url, path, token).map_err(failed)?;
        let (web, _) = client_async_with_config(request, socket, Some(config))
            .await
            .map_err(|error| handshake_error(url, error))?;
        Ok((web, to))
    };
    tokio::time::timeout(DIAL_TIMEOUT, all)
        .await
        .unwrap_or_else(|_| Err(DialError::Timeout { url: url.clone() }))
}

async fn connect_tls(settings: &ControlSettings, stream: TcpStream) -> io::Result<BoxedStream> {
    // Messages are small and answered: Nagle's algorithm would delay each by a round trip.
    stream.set_nodelay(true)?;
    websocket::enable_keepalive(&stream)?;
    if !settings.url.tls {
        return Ok(Box::new(stream));
    }
    let no_roots = || io::Error::other("wss needs trusted certificates, and none are set");
    let connector = TlsConnector::from(settings.tls.clone().ok_or_else(no_roots)?);
    let name = ServerName::try_from(settings.url.host.clone()).map_err(io::Error::other)?;
    Ok(Box::new(connector.connect(name, stream).await?))
}

fn upgrade_request(url: &RendezvousUrl, path: &str, token: &str) -> io::Result<Request<()>> {
    Request::get(format!("{url}{path}"))
        .header(header::HOST, url.authority())
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, generate_key())
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .body(())
        .map_err(io::Error::other)
}

fn handshake_error(url: &RendezvousUrl, error: Error) -> DialError {
    let url = url.clone();
    match error {
        Error::Http(response) => {
            let body = response.body().as_deref().unwrap_or_default();
            // A proxy's error page can be long; its beginning says enough.
            let text = String::from_utf8_lossy(&body[..body.len().min(300)])
                .trim()
                .to_owned();
            DialError::Status {
                url,
                status: response.status().as_u16(),
                text,
            }
        }
        Error::Io(source) => DialError::Io { url, source },
        other => DialError::Protocol {
            url,
            text: other.to_string(),
        },
    }
}
