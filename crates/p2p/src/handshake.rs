//! TLS between the two of a session: who calls is its client, whoever leads. So its first flight can be made before there is
//! anything to send it on, and goes with the call.

use std::io;
use std::time::SystemTime;

use bytes::Bytes;
use nearpath_wire::pair::Pair;
use rustls::ClientConnection;
use tokio::io::AsyncWriteExt;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::migrate::Way;

/// What a side is in the handshake.
#[derive(Debug)]
pub enum Side {
    /// It called, perhaps with its hello.
    Caller(Option<Box<Hello>>),
    /// It was called.
    Called,
}

impl Side {
    /// The hello that went with the call; the relay has it from the beginning.
    pub(crate) fn said(&self) -> Option<Bytes> {
        match self {
            Self::Caller(hello) => hello.as_ref().map(|hello| hello.flight.clone()),
            Self::Called => None,
        }
    }

    /// The way is on that relay. It may move before anything is written, so it knows at once what was said.
    pub(crate) fn begin(&mut self, way: &mut Way) {
        if let Self::Caller(Some(hello)) = self {
            way.said(std::mem::take(&mut hello.flight).len());
        }
    }
}

/// A client that has said its first flight.
#[derive(Debug)]
pub struct Hello {
    client: ClientConnection,
    flight: Bytes,
}

impl Hello {
    /// For a connection to the pair's peer.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(pair: &Pair) -> io::Result<Self> {
        let (config, name) = (pair.client().clone(), pair.server_name());
        let mut client = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut flight = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut flight)?;
        }
        Ok(Self { client, flight: flight.into() })
    }

    /// What it said. A way's first bytes are these.
    pub fn flight(&self) -> &Bytes {
        &self.flight
    }

    async fn go_on(self, mut way: Way, pair: &Pair) -> io::Result<TlsStream<Way>> {
        way.write_all(&self.flight).await?;
        let connector = TlsConnector::from(pair.client().clone());
        // The connector makes a client that has said nothing yet; ours takes its place.
        let connecting = connector.connect_with(pair.server_name(), way, |client| *client = self.client);
        Ok(connecting.await?.into())
    }
}

/// TLS 1.3 with certificates on both sides, above a way.
///
/// # Errors
/// When the handshake fails, or the peer is not who was meant.
pub async fn secure(way: Way, side: Side, pair: &Pair) -> io::Result<TlsStream<Way>> {
    let stream = match side {
        Side::Caller(Some(hello)) => hello.go_on(way, pair).await?,
        Side::Caller(None) => Hello::new(pair)?.go_on(way, pair).await?,
        Side::Called => TlsAcceptor::from(pair.server().clone()).accept(way).await?.into(),
    };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let met = pair.check(chain, SystemTime::now());
    met.map_err(|stranger| io::Error::new(io::ErrorKind::PermissionDenied, stranger))?;
    Ok(stream)
}
