//! Takes a connection: its place, its handshake, and then its calls.

use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use http::Response;
use http_body::Body;

use super::serve::{Call, Server};
use super::visit::{HANDSHAKE, UNFINISHED, Visit};
use crate::BoxError;

impl<H, F, B> Server<H>
where
    H: Fn(Call) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    /// One connection, from its first packet to its end. Must run inside a `LocalSet`.
    pub async fn connection(self: Rc<Self>, incoming: quinn::Incoming) {
        if self.room.is_crowded() && !incoming.remote_address_validated() && incoming.may_retry() {
            return drop(incoming.retry()); // which has just said that it may
        }
        let Some(place) = self.room.enter() else { return incoming.refuse() };
        let from = incoming.remote_address();
        let mut connecting = match incoming.accept() {
            Ok(connecting) => connecting,
            Err(error) => return self.note(from, &error),
        };
        // A ClientHello of two packets: before it is complete the peer's settings are not known, and a stream that is opened then
        // would never be woken.
        match tokio::time::timeout(HANDSHAKE, connecting.handshake_data()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return self.note(from, &error),
            Err(_) => return self.note(from, &UNFINISHED),
        }
        let (connection, complete) = match connecting.into_0rtt() {
            Ok((connection, complete)) => (connection, complete),
            Err(connecting) => return drop(connecting), // a server always can
        };
        Visit::begin(self, connection).pass(complete, place.is_beyond).await;
    }
}
