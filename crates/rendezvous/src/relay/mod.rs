//! Relay: joins both ends of a session, and forwards frames unchanged and in order.
//!
//! Nothing is stored: one frame per direction is in memory, and an end that does not read stops the
//! other. A proper close is forwarded after the last frame; a break becomes an error at the other
//! end.

mod forward;
mod pairing;

use nearpath_daemon::drain::DrainWatch;

pub(super) use pairing::RelayExchange;

use nearpath_p2p::ticket::RelayToken;
use nearpath_p2p::websocket::WebSocket;

/// Serves one end of a relay, or both if the other end waits already.
pub(super) async fn serve_end(
    exchange: &RelayExchange,
    socket: WebSocket,
    token: RelayToken,
    drain: DrainWatch,
) {
    exchange.serve_end(socket, token, drain).await;
}
