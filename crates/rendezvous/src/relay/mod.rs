//! The relay: joins the two ends of a session, and passes on what each sends, as it is and in its order.
//!
//! Nothing is stored: one frame of each direction is in hand at a time, and an end that does not read makes the relay not
//! read the other. Who closes properly is passed on after the last frame; who breaks off makes the other's end an error.

mod forward;
mod pairing;

use nearpath_daemon::drain::Watch;

pub(super) use pairing::Exchange;

use nearpath_p2p::ticket::Crossing;
use nearpath_p2p::websocket::Web;

/// Serves one end of a relay, or both if the other waits already.
pub(super) async fn serve(exchange: &Exchange, web: Web, crossing: Crossing, drain: Watch) {
    exchange.enter(web, crossing, drain).await;
}
