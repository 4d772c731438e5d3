//! WebSocket (RFC 6455) as both ends of a line and of a relay have it: with bounds on what a peer may make one hold.

use std::io;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::message;

/// The longest frame of a relay, in bytes: a way's frames are half of it.
pub const LONGEST_PIECE: usize = 64 * 1024;

/// What a connection runs on: TCP, with TLS or without.
pub type Socket = Box<dyn Bytes>;

/// Bytes both ways.
pub trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Bytes for S {}

/// A connection.
pub type Web = WebSocketStream<Socket>;

/// How long a connection may be silent before the kernel asks; between two of these questions, and how many stay without an
/// answer before the connection is broken.
const IDLE: Duration = Duration::from_secs(30);
const ASKS: (Duration, u32) = (Duration::from_secs(10), 3);

/// The kernel asks whether the other machine is there, and NATs are reminded of the connection.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    set_tcp_keepidle(stream, IDLE)?;
    set_tcp_keepintvl(stream, ASKS.0)?;
    set_tcp_keepcnt(stream, ASKS.1)?;
    Ok(set_socket_keepalive(stream, true)?)
}

/// Where lines are.
pub const LINE: &str = "/v1/line";

/// Where relays are.
pub const RELAY: &str = "/v1/relay";

/// For a line: there are thousands of them, and most are silent.
pub fn for_lines() -> WebSocketConfig {
    bounded(message::LONGEST_PARCEL, 1024)
}

/// For a worker's end of its line.
pub fn for_own_line() -> WebSocketConfig {
    bounded(message::LONGEST_PARCEL, message::LONGEST_PARCEL)
}

/// For a relay: there are few, and each moves much.
pub fn for_relays() -> WebSocketConfig {
    bounded(LONGEST_PIECE, LONGEST_PIECE)
}

/// `ahead`: what is read at once.
fn bounded(longest: usize, ahead: usize) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(ahead)
        .write_buffer_size(0)
        .max_write_buffer_size(4 * longest)
        .max_message_size(Some(longest))
        .max_frame_size(Some(longest))
}

/// The same connection with another configuration. Only for one on which nothing was read since its handshake: what has
/// been read ahead is lost.
pub async fn configured(web: Web, role: Role, config: WebSocketConfig) -> Web {
    WebSocketStream::from_raw_socket(web.into_inner(), role, Some(config)).await
}
