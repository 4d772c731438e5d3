//! TLS between the two of a session: who calls is its client, whoever leads. So its first flight can be made before there is
//! anything to send it on, and goes with the call.

use std::io;
use std::time::SystemTime;

use bytes::Bytes;
use nearpath_wire::p2p_tls::PeerTlsConfig;
use rustls::ClientConnection;
use tokio::io::AsyncWriteExt;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::migrate::MigratingStream;

/// What a side is in the handshake.
#[derive(Debug)]
pub enum HandshakeRole {
    /// It called, perhaps with its hello.
    Caller(Option<Box<ClientHello>>),
    /// It was called.
    Callee,
}

impl HandshakeRole {
    /// The hello that went with the call; the relay has it from the beginning.
    pub(crate) fn hello_bytes(&self) -> Option<Bytes> {
        match self {
            Self::Caller(hello) => hello.as_ref().map(|hello| hello.flight.clone()),
            Self::Callee => None,
        }
    }

    /// The way is on that relay. It may move before anything is written, so it knows at once what was said.
    pub(crate) fn mark_hello_sent(&mut self, stream: &mut MigratingStream) {
        if let Self::Caller(Some(hello)) = self {
            stream.count_sent(std::mem::take(&mut hello.flight).len());
        }
    }
}

/// A client that has said its first flight.
#[derive(Debug)]
pub struct ClientHello {
    client: ClientConnection,
    flight: Bytes,
}

impl ClientHello {
    /// For a connection to the pair's peer.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(pair: &PeerTlsConfig) -> io::Result<Self> {
        let (config, name) = (pair.client_config().clone(), pair.server_name());
        let mut client = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut flight = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut flight)?;
        }
        Ok(Self {
            client,
            flight: flight.into(),
        })
    }

    /// What it said. A way's first bytes are these.
    pub fn flight(&self) -> &Bytes {
        &self.flight
    }

    async fn finish_handshake(
        self,
        mut stream: MigratingStream,
        pair: &PeerTlsConfig,
    ) -> io::Result<TlsStream<MigratingStream>> {
        stream.write_all(&self.flight).await?;
        let connector = TlsConnector::from(pair.client_config().clone());
        // The connector makes a client that has said nothing yet; ours takes its place.
        let connecting =
            connector.connect_with(pair.server_name(), stream, |client| *client = self.client);
        Ok(connecting.await?.into())
    }
}

/// TLS 1.3 with certificates on both sides, above a way.
///
/// # Errors
/// When the handshake fails, or the peer is not who was meant.
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
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let checked = pair.verify_peer(chain, SystemTime::now());
    checked.map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
    Ok(stream)
}
