//! Takes a connection: its place, its handshake, and then its calls.

use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use http::Response;
use http_body::Body;

use super::server::{CallServer, ServedCall};
use super::server_connection::{HANDSHAKE_TIMEOUT, HANDSHAKE_TIMEOUT_TEXT, ServerConnection};
use crate::BoxError;

impl<H, F, B> CallServer<H>
where
    H: Fn(ServedCall) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    /// One connection, from its first packet to its end. Must run inside a `LocalSet`.
    pub async fn serve_connection(self: Rc<Self>, incoming: quinn::Incoming) {
        if self.limit.is_half_full() && !incoming.remote_address_validated() && incoming.may_retry()
        {
            return drop(incoming.retry()); // which has just said that it may
        }
        let Some(permit) = self.limit.acquire() else {
            return incoming.refuse();
        };
        let from = incoming.remote_address();
        let mut connecting = match incoming.accept() {
            Ok(connecting) => connecting,
            Err(error) => return self.note_refusal(from, &error),
        };
        // A ClientHello of two packets: before it is complete the peer's settings are not known, and a stream that is opened then
        // would never be woken.
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting.handshake_data()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return self.note_refusal(from, &error),
            Err(_) => return self.note_refusal(from, &HANDSHAKE_TIMEOUT_TEXT),
        }
        let (connection, complete) = match connecting.into_0rtt() {
            Ok((connection, complete)) => (connection, complete),
            Err(connecting) => return drop(connecting), // a server always can
        };
        ServerConnection::new(self, connection)
            .run(complete, permit.is_over_limit)
            .await;
    }
}
