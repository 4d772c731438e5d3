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

use super::{Place, Settings};
use crate::websocket::{self, Socket, Web};

/// A connection may take so long, with TLS and the ticket.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no connection to the rendezvous.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No name, no TCP, or no TLS.
    #[error("cannot connect to the rendezvous {place}: {source}")]
    Io {
        /// Where.
        place: Place,
        /// What was wrong.
        source: io::Error,
    },
    /// It did not answer in time.
    #[error("cannot connect to the rendezvous {place}: no answer within {PATIENCE:?}")]
    Timeout {
        /// Where.
        place: Place,
    },
    /// It does not let one in.
    #[error("the rendezvous {place} answers {status}: {text}")]
    Status {
        /// Where.
        place: Place,
        /// HTTP's.
        status: u16,
        /// What it said.
        text: String,
    },
    /// Something else is there.
    #[error("what answers at {place} is no rendezvous: {text}")]
    Protocol {
        /// Where.
        place: Place,
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
pub(super) struct Reached {
    pub(super) addr: SocketAddr,
    /// As TCP took it, with the lookup of the name.
    pub(super) round_trip: Duration,
}

/// A WebSocket at a path, with what lets one in; and where it goes.
pub(super) async fn dial(
    settings: &Settings,
    path: &str,
    pass: &str,
    config: WebSocketConfig,
) -> Result<(Web, Reached), DialError> {
    let place = &settings.place;
    let all = async {
        let failed = |source| DialError::Io { place: place.clone(), source };
        let begun = Instant::now();
        let stream = TcpStream::connect((place.host.as_str(), place.port)).await.map_err(failed)?;
        let to = Reached { addr: stream.peer_addr().map_err(failed)?, round_trip: begun.elapsed() };
        let socket = secured(settings, stream).await.map_err(failed)?;
        let request = request(place, path, pass).map_err(failed)?;
        let (web, _) =
            client_async_with_config(request, socket, Some(config)).await.map_err(|error| refused(place, error))?;
        Ok((web, to))
    };
    tokio::time::timeout(PATIENCE, all).await.unwrap_or_else(|_| Err(DialError::Timeout { place: place.clone() }))
}

async fn secured(settings: &Settings, stream: TcpStream) -> io::Result<Socket> {
    stream.set_nodelay(true)?;
    websocket::keep_alive(&stream)?;
    if !settings.place.tls {
        return Ok(Box::new(stream));
    }
    let none = || io::Error::other("wss needs to know whose certificates to believe, and was told nothing");
    let connector = TlsConnector::from(settings.tls.clone().ok_or_else(none)?);
    let name = ServerName::try_from(settings.place.host.clone()).map_err(io::Error::other)?;
    Ok(Box::new(connector.connect(name, stream).await?))
}

fn request(place: &Place, path: &str, pass: &str) -> io::Result<Request<()>> {
    Request::get(format!("{place}{path}"))
        .header(header::HOST, place.authority())
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, generate_key())
        .header(header::AUTHORIZATION, format!("Bearer {pass}"))
        .body(())
        .map_err(io::Error::other)
}

fn refused(place: &Place, error: Error) -> DialError {
    let place = place.clone();
    match error {
        Error::Http(response) => {
            let body = response.body().as_deref().unwrap_or_default();
            let text = String::from_utf8_lossy(&body[..body.len().min(300)]).trim().to_owned();
            DialError::Status { place, status: response.status().as_u16(), text }
        }
        Error::Io(source) => DialError::Io { place, source },
        other => DialError::Protocol { place, text: other.to_string() },
    }
}
