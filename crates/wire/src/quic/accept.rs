//! Accepts a connection: its permit, its handshake, then its calls.

use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use http::Response;
use http_body::Body;

use super::server::{CallServer, ServedCall};
use super::server_connection::{HANDSHAKE_TIMEOUT, HANDSHAKE_TIMEOUT_TEXT, ServerConnection};
use crate::BoxError;
use crate::identity::RefusalReason;

impl<H, F, B> CallServer<H>
where
    H: Fn(ServedCall) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    /// Serves one connection from its first packet to its end. Must run inside a `LocalSet`.
    pub async fn serve_connection(self: Rc<Self>, incoming: quinn::Incoming) {
        // Before a permit is taken: a Retry holds no state, so forged addresses cost nothing.
        if self.limit.is_half_full() && !incoming.remote_address_validated() && incoming.may_retry()
        {
            return drop(incoming.retry()); // `may_retry` was checked
        }
        let Some(permit) = self.limit.acquire() else {
            return incoming.refuse();
        };
        // Before the handshake takes its roots: if they change during it, the peer is checked again.
        let changes = self.changes.subscribe();
        let from = incoming.remote_address();
        let mut connecting = match incoming.accept() {
            Ok(connecting) => connecting,
            Err(error) => {
                let reason = RefusalReason::of_connection(&error);
                return self.note_refusal(from, reason, &error);
            }
        };
        // A ClientHello may take two packets. Before it is complete the peer's transport parameters
        // are unknown, and a stream that is opened then would never be woken.
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, connecting.handshake_data()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                let reason = RefusalReason::of_connection(&error);
                return self.note_refusal(from, reason, &error);
            }
            Err(_) => {
                let why = &HANDSHAKE_TIMEOUT_TEXT;
                return self.note_refusal(from, RefusalReason::Timeout, why);
            }
        }
        let (connection, complete) = match connecting.into_0rtt() {
            Ok((connection, complete)) => (connection, complete),
            // unreachable: a server can always accept 0-RTT
            Err(connecting) => return drop(connecting),
        };
        ServerConnection::new(self, connection, changes)
            .run(complete, permit.is_over_limit)
            .await;
    }
}
