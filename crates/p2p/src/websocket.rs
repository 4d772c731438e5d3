//! WebSocket (RFC 6455) as both ends of a line and of a relay have it: with bounds on what a peer may make one hold.

use std::io;
use std::time::Duration;

use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::message;

/// The longest frame of a relay, in bytes: a way's frames are half of it.
pub const MAX_RELAY_FRAME_BYTES: usize = 64 * 1024;

/// What a connection runs on: TCP, with TLS or without.
pub type BoxedStream = Box<dyn AsyncStream>;

/// Bytes both ways.
pub trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> AsyncStream for S {}

/// A connection.
pub type WebSocket = WebSocketStream<BoxedStream>;

/// How long a connection may be silent before the kernel asks; between two of these questions, and how many stay without an
/// answer before the connection is broken.
const KEEPALIVE_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const KEEPALIVE_PROBES: (Duration, u32) = (Duration::from_secs(10), 3);

/// The kernel asks whether the other machine is there, and NATs are reminded of the connection.
pub fn enable_keepalive(stream: &TcpStream) -> io::Result<()> {
    set_tcp_keepidle(stream, KEEPALIVE_IDLE_TIMEOUT)?;
    set_tcp_keepintvl(stream, KEEPALIVE_PROBES.0)?;
    set_tcp_keepcnt(stream, KEEPALIVE_PROBES.1)?;
    Ok(set_socket_keepalive(stream, true)?)
}

/// Where lines are.
pub const CONTROL_PATH: &str = "/v1/line";

/// Where relays are.
pub const RELAY_PATH: &str = "/v1/relay";

/// For a line: there are thousands of them, and most are silent.
pub fn control_server_config() -> WebSocketConfig {
    bounded_config(message::MAX_RELAYED_FRAME_BYTES, 1024)
}

/// For a worker's end of its line.
pub fn control_client_config() -> WebSocketConfig {
    bounded_config(
        message::MAX_RELAYED_FRAME_BYTES,
        message::MAX_RELAYED_FRAME_BYTES,
    )
}

/// For a relay: there are few, and each moves much.
pub fn relay_config() -> WebSocketConfig {
    bounded_config(MAX_RELAY_FRAME_BYTES, MAX_RELAY_FRAME_BYTES)
}

/// `ahead`: what is read at once.
fn bounded_config(max_frame_bytes: usize, read_buffer_bytes: usize) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(read_buffer_bytes)
        .write_buffer_size(0)
        .max_write_buffer_size(4 * max_frame_bytes)
        .max_message_size(Some(max_frame_bytes))
        .max_frame_size(Some(max_frame_bytes))
}

/// The same connection with another configuration. Only for one on which nothing was read since its handshake: what has
/// been read ahead is lost.
pub async fn reconfigure(socket: WebSocket, role: Role, config: WebSocketConfig) -> WebSocket {
    WebSocketStream::from_raw_socket(socket.into_inner(), role, Some(config)).await
}
