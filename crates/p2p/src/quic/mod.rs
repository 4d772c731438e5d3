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

use crate::punch::session::Role;
use nearpath_types::SpiffeId;
use nearpath_wire::early::TokenKey;
use nearpath_wire::pair::Pair;
use quinn::rustls::pki_types::CertificateDer;
use quinn::{Connection, Endpoint, EndpointConfig, IdleTimeout, Runtime, TokioRuntime, TransportConfig, VarInt};
use tokio::sync::mpsc;

use socket::Shared;
pub use stream::Stream;

/// Handshake and stream may take so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// A connection that says nothing for so long has ended; a sign of life goes after a third of it, which keeps NATs open
/// (RFC 4787 REQ-5: in practice 30 s).
const IDLE: Duration = Duration::from_secs(30);
/// Bytes that may be on their way: a gigabit over 60 ms.
const WINDOW: u32 = 8 << 20;
/// What opens the stream, and the answer.
const GREETING: u8 = 0;
/// The peer was not who was meant.
const REFUSED: VarInt = VarInt::from_u32(1);

/// Makes the connection. `remote`: the pair's other end. Datagrams that are none of QUIC's go to `probes`.
pub(crate) async fn open(
    socket: UdpSocket,
    probes: mpsc::Sender<(SocketAddr, Vec<u8>)>,
    remote: SocketAddr,
    role: Role,
    pair: Arc<Pair>,
) -> io::Result<Stream> {
    nearpath_wire::quic::udp::prepare(&socket);
    let runtime = Arc::new(TokioRuntime);
    let shared = Arc::new(Shared { socket: runtime.wrap_udp_socket(socket)?, probes });
    let server = match role {
        Role::Leader => None,
        Role::Follower => {
            let mut server = pair.quic_server(&TokenKey::random()?).map_err(io::Error::other)?;
            server.transport_config(Arc::new(transport())).migration(true).max_incoming(4);
            Some(server)
        }
    };
    let endpoint = Endpoint::new_with_abstract_socket(EndpointConfig::default(), server, shared, runtime)?;
    let opening = async {
        match role {
            Role::Leader => connect(&endpoint, remote, &pair).await,
            Role::Follower => accept(&endpoint, remote, &pair).await,
        }
    };
    let (connection, send, recv) = tokio::time::timeout(PATIENCE, opening).await??;
    Ok(Stream::new(endpoint, connection, send, recv))
}

type Opened = (Connection, quinn::SendStream, quinn::RecvStream);

async fn connect(endpoint: &Endpoint, remote: SocketAddr, pair: &Pair) -> io::Result<Opened> {
    let mut config = pair.quic_client().map_err(io::Error::other)?;
    config.transport_config(Arc::new(transport()));
    let connection = endpoint.connect_with(config, remote, &pair.name()).map_err(io::Error::other)?.await?;
    check(&connection, pair)?;
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(&[GREETING]).await?;
    recv.read_exact(&mut [0]).await.map_err(io::Error::other)?;
    Ok((connection, send, recv))
}

/// Who comes from elsewhere is not answered: this port was opened for one peer.
async fn accept(endpoint: &Endpoint, remote: SocketAddr, pair: &Pair) -> io::Result<Opened> {
    while let Some(incoming) = endpoint.accept().await {
        if incoming.remote_address() != remote {
            incoming.ignore();
            continue;
        }
        let connection = incoming.accept()?.await?;
        check(&connection, pair)?;
        let (mut send, mut recv) = connection.accept_bi().await?;
        recv.read_exact(&mut [0]).await.map_err(io::Error::other)?;
        // Nothing is waited for after this: it could be broken off, and the leader has its answer.
        send.write_all(&[GREETING]).await?;
        return Ok((connection, send, recv));
    }
    Err(io::ErrorKind::NotConnected.into())
}

fn check(connection: &Connection, pair: &Pair) -> io::Result<()> {
    let chain = connection.peer_identity().and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    let met = pair.check(&chain.unwrap_or_default(), SystemTime::now()).map(|peer| peer.id);
    met.map(|_: SpiffeId| ()).map_err(|stranger| {
        connection.close(REFUSED, stranger.to_string().as_bytes());
        io::Error::new(io::ErrorKind::PermissionDenied, stranger)
    })
}

fn transport() -> TransportConfig {
    let mut transport = TransportConfig::default();
    let idle = VarInt::from_u32(30_000);
    debug_assert_eq!(u128::from(idle.into_inner()), IDLE.as_millis());
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(u64::from(WINDOW))
        .max_idle_timeout(Some(IdleTimeout::from(idle)))
        .keep_alive_interval(Some(IDLE / 3))
        .datagram_receive_buffer_size(None);
    transport
}

#[cfg(test)]
mod tests;
