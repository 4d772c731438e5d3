//! TLS between the two sides of a session. The caller is the client, whichever side leads.
//!
//! The caller's first flight can therefore be made before there is a stream, and travels with the
//! call (decision 49).

use std::io;
use std::time::SystemTime;

use bytes::Bytes;
use nearpath_wire::p2p_tls::PeerTlsConfig;
use rustls::ClientConnection;
use tokio::io::AsyncWriteExt;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::migrate::MigratingStream;

/// Role of a side in the handshake.
#[derive(Debug)]
pub enum HandshakeRole {
    /// The side that called, with the hello that travelled with the call, if any.
    Caller(Option<Box<ClientHello>>),
    /// The side that was called.
    Callee,
}

impl HandshakeRole {
    /// Returns the hello that travelled with the call; the relay already holds it.
    pub(crate) fn hello_bytes(&self) -> Option<Bytes> {
        match self {
            Self::Caller(hello) => hello.as_ref().map(|hello| hello.flight.clone()),
            Self::Callee => None,
        }
    }

    /// Counts the hello as sent on this stream.
    ///
    /// The stream may migrate before anything is written, so it must know the hello's length at
    /// once.
    pub(crate) fn mark_hello_sent(&mut self, stream: &mut MigratingStream) {
        if let Self::Caller(Some(hello)) = self {
            // The bytes are taken: `finish_handshake` would otherwise write the hello a second
            // time.
            stream.count_sent(std::mem::take(&mut hello.flight).len());
        }
    }
}

/// TLS client that has produced its first flight.
#[derive(Debug)]
pub struct ClientHello {
    client: ClientConnection,
    flight: Bytes,
}

impl ClientHello {
    /// Creates a client for a connection to the pair's peer.
    ///
    /// # Errors
    /// Fails when the system has no random numbers.
    pub fn new(pair: &PeerTlsConfig) -> io::Result<Self> {
        let (config, name) = (pair.client_config().clone(), pair.server_name());
        let mut client = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut flight = Vec::new();
        // A ClientHello with key shares may span several records: write until nothing is pending.
        while client.wants_write() {
            client.write_tls(&mut flight)?;
        }
        Ok(Self {
            client,
            flight: flight.into(),
        })
    }

    /// Returns the first flight. The first bytes of a stream are these.
    pub fn flight(&self) -> &Bytes {
        &self.flight
    }

    async fn finish_handshake(
        self,
        mut stream: MigratingStream,
        pair: &PeerTlsConfig,
    ) -> io::Result<TlsStream<MigratingStream>> {
        // Empty if the hello travelled with the call.
        stream.write_all(&self.flight).await?;
        let connector = TlsConnector::from(pair.client_config().clone());
        // `tokio-rustls` makes a client only for a stream; the one that already sent its hello
        // replaces it.
        let connecting =
            connector.connect_with(pair.server_name(), stream, |client| *client = self.client);
        Ok(connecting.await?.into())
    }
}

/// Runs TLS 1.3 with certificates on both sides above a stream.
///
/// # Errors
/// Fails when the handshake fails, or the peer is not the expected identity.
pub async fn secure_stream(
    stream: MigratingStream,
    side: HandshakeRole,
    pair: &PeerTlsConfig,
) -> io::Result<TlsStream<MigratingStream>> {
    let stream = match side {
        HandshakeRole::Caller(Some(hello)) => hello.finish_handshake(stream, pair).await?,
        HandshakeRole::Caller(None) => {
            ClientHello::new(pair)?
                .finish_handshake(stream, pair)
                .await?
        }
        HandshakeRole::Callee => TlsAcceptor::from(pair.server_config().clone())
            .accept(stream)
            .await?
            .into(),
    };
    // rustls verified the chain only; the identity must be the one that was called.
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let checked = pair.verify_peer(chain, SystemTime::now());
    checked.map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
    Ok(stream)
}
