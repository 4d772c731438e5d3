//! WebSocket (RFC 6455) settings of control connections and relays, with bounds on what a peer can
//! make one hold.

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

/// Largest frame of a relay, in bytes. A stream's frames are half of it.
pub const MAX_RELAY_FRAME_BYTES: usize = 64 * 1024;

/// Byte stream below a WebSocket: TCP, with or without TLS.
pub type BoxedStream = Box<dyn AsyncStream>;

/// Byte stream in both directions.
pub trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> AsyncStream for S {}

/// WebSocket over any byte stream.
pub type WebSocket = WebSocketStream<BoxedStream>;

/// Idle time after which the kernel probes the peer: below the minutes after which NATs of clouds
/// forget a session.
const KEEPALIVE_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
// Interval between keepalive probes, and number of unanswered ones that break the connection.
const KEEPALIVE_PROBES: (Duration, u32) = (Duration::from_secs(10), 3);

/// Enables TCP keepalive: the kernel detects a dead peer, and NATs keep their session.
pub fn enable_keepalive(stream: &TcpStream) -> io::Result<()> {
    set_tcp_keepidle(stream, KEEPALIVE_IDLE_TIMEOUT)?;
    set_tcp_keepintvl(stream, KEEPALIVE_PROBES.0)?;
    set_tcp_keepcnt(stream, KEEPALIVE_PROBES.1)?;
    Ok(set_socket_keepalive(stream, true)?)
}

/// Path of control connections.
pub const CONTROL_PATH: &str = "/v1/control";

/// Path of relays.
pub const RELAY_PATH: &str = "/v1/relay";

/// Server's settings of a control connection: there are thousands, most of them idle.
pub fn control_server_config() -> WebSocketConfig {
    // 1 KiB is most of an idle connection's memory; reports and candidates fit, relayed frames take
    // more reads.
    bounded_config(message::MAX_RELAYED_FRAME_BYTES, 1024)
}

/// Worker's settings of its own control connection.
pub fn control_client_config() -> WebSocketConfig {
    bounded_config(
        message::MAX_RELAYED_FRAME_BYTES,
        message::MAX_RELAYED_FRAME_BYTES,
    )
}

/// Settings of a relay: there are few, and each moves much data.
pub fn relay_config() -> WebSocketConfig {
    bounded_config(MAX_RELAY_FRAME_BYTES, MAX_RELAY_FRAME_BYTES)
}

/// `read_buffer_bytes`: bytes read at once.
fn bounded_config(max_frame_bytes: usize, read_buffer_bytes: usize) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(read_buffer_bytes)
        // Without a write buffer each message goes to the socket at once: flushing later would only
        // add delay.
        .write_buffer_size(0)
        // Data that the socket does not take is bounded: beyond it a send fails instead of using
        // more memory.
        .max_write_buffer_size(4 * max_frame_bytes)
        .max_message_size(Some(max_frame_bytes))
        .max_frame_size(Some(max_frame_bytes))
}

/// Returns the same connection with other settings.
///
/// Only for a connection on which nothing was read since its handshake: data read ahead is lost.
pub async fn reconfigure(socket: WebSocket, role: Role, config: WebSocketConfig) -> WebSocket {
    WebSocketStream::from_raw_socket(socket.into_inner(), role, Some(config)).await
}
