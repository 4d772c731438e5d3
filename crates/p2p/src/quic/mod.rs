//! One QUIC connection over a punched UDP pair, with one stream that carries a way's bytes.
//!
//! For pairs that only UDP permits: what a way carries is TLS already, so these bytes are encrypted twice, and cost what
//! QUIC costs. The leader connects; its first byte opens the stream at the follower's end, and the follower answers with the same.
//! Neither is the way's. A client is through with TLS before the server knows that it is: only the answer tells the leader that
//! both have the connection.

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

/// Handshake and stream may take so long.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that says nothing for so long has ended; a sign of life goes after a third of it, which keeps NATs open
/// (RFC 4787 REQ-5: in practice 30 s).
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that may be on their way: a gigabit over 60 ms.
const WINDOW_BYTES: u32 = 8 << 20;
/// What opens the stream, and the answer.
const OPEN_BYTE: u8 = 0;
/// The peer was not who was meant.
const REFUSED_CODE: VarInt = VarInt::from_u32(1);

/// Makes the connection. `remote`: the pair's other end. Datagrams that are none of QUIC's go to `probes`.
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
    send.write_all(&[OPEN_BYTE]).await?;
    recv.read_exact(&mut [0]).await.map_err(io::Error::other)?;
    Ok((connection, send, recv))
}

/// Who comes from elsewhere is not answered: this port was opened for one peer.
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
        // Nothing is waited for after this: it could be broken off, and the leader has its answer.
        send.write_all(&[OPEN_BYTE]).await?;
        return Ok((connection, send, recv));
    }
    Err(io::ErrorKind::NotConnected.into())
}

fn check_peer(connection: &Connection, pair: &PeerTlsConfig) -> io::Result<()> {
    let chain = connection
        .peer_identity()
        .and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    let checked = pair
        .verify_peer(&chain.unwrap_or_default(), SystemTime::now())
        .map(|peer| peer.id);
    checked.map(|_: SpiffeId| ()).map_err(|error| {
        connection.close(REFUSED_CODE, error.to_string().as_bytes());
        io::Error::new(io::ErrorKind::PermissionDenied, error)
    })
}

fn transport_config() -> TransportConfig {
    let mut transport = TransportConfig::default();
    let idle = VarInt::from_u32(30_000);
    debug_assert_eq!(u128::from(idle.into_inner()), IDLE_TIMEOUT.as_millis());
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(WINDOW_BYTES))
        .receive_window(VarInt::from_u32(WINDOW_BYTES))
        .send_window(u64::from(WINDOW_BYTES))
        .max_idle_timeout(Some(IdleTimeout::from(idle)))
        .keep_alive_interval(Some(IDLE_TIMEOUT / 3))
        .datagram_receive_buffer_size(None);
    transport
}

#[cfg(test)]
mod tests;
