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

/// A connection may take so long, with TLS and the ticket.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no connection to the rendezvous.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No name, no TCP, or no TLS.
    #[error("cannot connect to the rendezvous {place}: {source}")]
    Io {
        /// Where.
        place: RendezvousUrl,
        /// What was wrong.
        source: io::Error,
    },
    /// It did not answer in time.
    #[error("cannot connect to the rendezvous {place}: no answer within {PATIENCE:?}")]
    Timeout {
        /// Where.
        place: RendezvousUrl,
    },
    /// It does not let one in.
    #[error("the rendezvous {place} answers {status}: {text}")]
    Status {
        /// Where.
        place: RendezvousUrl,
        /// HTTP's.
        status: u16,
        /// What it said.
        text: String,
    },
    /// Something else is there.
    #[error("what answers at {place} is no rendezvous: {text}")]
    Protocol {
        /// Where.
        place: RendezvousUrl,
        /// What was wrong.
        text: String,
    },
}

impl DialError {
    /// The ticket or pass opens nothing, and never will.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Status { status: 401, .. })
    }
}

/// Where a connection goes, and how far that is.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReachedServer {
    pub(super) addr: SocketAddr,
    /// As TCP took it, with the lookup of the name.
    pub(super) round_trip: Duration,
}

/// A WebSocket at a path, with what lets one in; and where it goes.
pub(super) async fn dial(
    settings: &ControlSettings,
    path: &str,
    token: &str,
    config: WebSocketConfig,
) -> Result<(WebSocket, ReachedServer), DialError> {
    let url = &settings.url;
    let all = async {
        let failed = |source| DialError::Io {
            place: url.clone(),
            source,
        };
        let started = Instant::now();
        let stream = TcpStream::connect((url.host.as_str(), url.port))
            .await
            .map_err(failed)?;
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
    tokio::time::timeout(PATIENCE, all)
        .await
        .unwrap_or_else(|_| Err(DialError::Timeout { place: url.clone() }))
}

async fn connect_tls(settings: &ControlSettings, stream: TcpStream) -> io::Result<BoxedStream> {
    stream.set_nodelay(true)?;
    websocket::enable_keepalive(&stream)?;
    if !settings.url.tls {
        return Ok(Box::new(stream));
    }
    let no_roots = || {
        io::Error::other("wss needs to know whose certificates to believe, and was told nothing")
    };
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
            let text = String::from_utf8_lossy(&body[..body.len().min(300)])
                .trim()
                .to_owned();
            DialError::Status {
                place: url,
                status: response.status().as_u16(),
                text,
            }
        }
        Error::Io(source) => DialError::Io { place: url, source },
        other => DialError::Protocol {
            place: url,
            text: other.to_string(),
        },
    }
}
