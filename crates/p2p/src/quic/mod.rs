//! A QUIC connection over a punched UDP pair, with one stream for a migrating stream's bytes.
//!
//! For pairs that only UDP permits. The bytes are TLS already, so they are encrypted twice and cost
//! what QUIC costs. The leader connects. Its first byte opens the stream at the follower, and the
//! follower responds with the same byte; neither belongs to the stream. A QUIC client completes TLS
//! before the server knows: only the response tells the leader that both have the connection.

mod socket;
mod stream;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::punch::session::SessionRole;
use nearpath_types::SpiffeId;
use nearpath_wire::p2p_tls::PeerTlsConfig;
use nearpath_wire::zero_rtt::TokenKey;
use quinn::rustls::pki_types::CertificateDer;
use quinn::{
    Connection, Endpoint, EndpointConfig, IdleTimeout, Runtime, TokioRuntime, TransportConfig,
    VarInt,
};
use tokio::sync::mpsc;

use socket::DemuxSocket;
pub use stream::QuicDirectStream;

/// Time for handshake and stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time after which the connection is dead. Keepalives go after a third of it, which keeps NAT
/// mappings open (RFC 4787 REQ-5: in practice 30 s).
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Flow-control window in bytes: a gigabit per second over 60 ms.
const WINDOW_BYTES: u32 = 8 << 20;
/// Byte that opens the stream, and the response to it.
const OPEN_BYTE: u8 = 0;
/// Application error code: the peer has another identity.
const REFUSED_CODE: VarInt = VarInt::from_u32(1);

/// Opens the stream. `remote`: address of the peer in the pair. Datagrams that are not QUIC go to
/// `probes`.
pub(crate) async fn open_stream(
    socket: UdpSocket,
    probes: mpsc::Sender<(SocketAddr, Vec<u8>)>,
    remote: SocketAddr,
    role: SessionRole,
    pair: Arc<PeerTlsConfig>,
) -> io::Result<QuicDirectStream> {
    nearpath_wire::quic::udp::request_buffers(&socket);
    let runtime = Arc::new(TokioRuntime);
    let shared = Arc::new(DemuxSocket {
        socket: runtime.wrap_udp_socket(socket)?,
        probes,
    });
    let server = match role {
        SessionRole::Leader => None,
        SessionRole::Follower => {
            let mut server = pair
                .quic_server_config(&TokenKey::generate()?)
                .map_err(io::Error::other)?;
            // Four pending handshakes: the peer's retries need one, and unknown sources are ignored
            // in `accept_stream`.
            server
                .transport_config(Arc::new(transport_config()))
                .migration(true)
                .max_incoming(4);
            Some(server)
        }
    };
    let endpoint =
        Endpoint::new_with_abstract_socket(EndpointConfig::default(), server, shared, runtime)?;
    let opening = async {
        match role {
            SessionRole::Leader => connect_stream(&endpoint, remote, &pair).await,
            SessionRole::Follower => accept_stream(&endpoint, remote, &pair).await,
        }
    };
    let (connection, send, recv) = tokio::time::timeout(OPEN_TIMEOUT, opening).await??;
    Ok(QuicDirectStream::new(endpoint, connection, send, recv))
}

type OpenedQuicStream = (Connection, quinn::SendStream, quinn::RecvStream);

async fn connect_stream(
    endpoint: &Endpoint,
    remote: SocketAddr,
    pair: &PeerTlsConfig,
) -> io::Result<OpenedQuicStream> {
    let mut config = pair.quic_client_config().map_err(io::Error::other)?;
    config.transport_config(Arc::new(transport_config()));
    let connection = endpoint
        .connect_with(config, remote, &pair.dns_name())
        .map_err(io::Error::other)?
        .await?;
    check_peer(&connection, pair)?;
    let (mut send, mut recv) = connection.open_bi().await?;
    // A QUIC stream reaches the peer with its first byte only (RFC 9000 section 2.2).
    send.write_all(&[OPEN_BYTE]).await?;
    recv.read_exact(&mut [0]).await.map_err(io::Error::other)?;
    Ok((connection, send, recv))
}

/// Accepts the peer's connection. Other sources get no response: this port was opened for one peer.
async fn accept_stream(
    endpoint: &Endpoint,
    remote: SocketAddr,
    pair: &PeerTlsConfig,
) -> io::Result<OpenedQuicStream> {
    while let Some(incoming) = endpoint.accept().await {
        if incoming.remote_address() != remote {
            incoming.ignore();
            continue;
        }
        let connection = incoming.accept()?.await?;
        check_peer(&connection, pair)?;
        let (mut send, mut recv) = connection.accept_bi().await?;
        recv.read_exact(&mut [0]).await.map_err(io::Error::other)?;
        // Nothing is awaited after this: the task could be cancelled while the leader already has
        // its response.
        send.write_all(&[OPEN_BYTE]).await?;
        return Ok((connection, send, recv));
    }
    Err(io::ErrorKind::NotConnected.into())
}

fn check_peer(connection: &Connection, pair: &PeerTlsConfig) -> io::Result<()> {
    // quinn verifies the chain only; the identity must be the introduced one.
    let chain = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    let checked = pair
        .verify_peer(&chain.unwrap_or_default(), SystemTime::now())
        .map(|peer| peer.id);
    checked.map(|_: SpiffeId| ()).map_err(|error| {
        // The code lets the peer report the refusal instead of a timeout.
        connection.close(REFUSED_CODE, error.to_string().as_bytes());
        io::Error::new(io::ErrorKind::PermissionDenied, error)
    })
}

fn transport_config() -> TransportConfig {
    let mut transport = TransportConfig::default();
    // Milliseconds of `IDLE_TIMEOUT`; `VarInt` has no constructor from a `Duration`.
    let idle = VarInt::from_u32(30_000);
    debug_assert_eq!(u128::from(idle.into_inner()), IDLE_TIMEOUT.as_millis());
    transport
        // One stream only: nothing else is accepted from a peer.
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(u64::from(WINDOW_BYTES))
        .max_idle_timeout(Some(IdleTimeout::from(idle)))
        .keep_alive_interval(Some(IDLE_TIMEOUT / 3))
        // No datagrams (RFC 9221): their buffer would only hold unread data.
        .datagram_receive_buffer_size(None);
    transport
}

#[cfg(test)]
mod tests;
