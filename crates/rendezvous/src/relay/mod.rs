//! The relay: joins the two ends of a session, and passes on what each sends, as it is and in its order.
//!
//! Nothing is stored: one frame of each direction is in hand at a time, and an end that does not read makes the relay not
//! read the other. Who closes properly is passed on after the last frame; who breaks off makes the other's end an error.

mod forward;
mod pairing;

use nearpath_daemon::drain::DrainWatch;

pub(super) use pairing::RelayExchange;

use nearpath_p2p::ticket::RelayToken;
use nearpath_p2p::websocket::WebSocket;

/// Serves one end of a relay, or both if the other waits already.
pub(super) async fn serve_end(
    exchange: &RelayExchange,
    socket: WebSocket,
    token: RelayToken,
    drain: DrainWatch,
) {
    exchange.serve_end(socket, token, drain).await;
}
