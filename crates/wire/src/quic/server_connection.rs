//! A connection as its worker sees it: admission, validity and end.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use quinn::{Connection, ConnectionError, RecvStream, SendStream, TransportErrorCode};
use tokio::sync::watch;

use super::body_writer::StreamBodyWriter;
use super::close_code;
use super::config::IDLE_TIMEOUT;
use super::server::{CallServer, ServedCall, ServingStage};
use crate::BoxError;
use crate::identity::{PeerIdentity, PeerRefusal, RefusalReason};

/// Time that a caller has to prove its identity. Meanwhile it holds a permit.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Reason for callers that took longer.
pub(super) const HANDSHAKE_TIMEOUT_TEXT: &str = "the handshake was not complete within 10s";

/// Maximum time between two checks of a certificate's end: clocks can be adjusted.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// One accepted connection.
pub(super) struct ServerConnection<H> {
    server: Rc<CallServer<H>>,
    connection: Connection,
    /// Changes of the trust since the handshake began.
    changes: watch::Receiver<ServingStage>,
    /// Each call in flight holds a clone.
    call_tokens: Rc<()>,
    /// Calls on it were started. From then on the caller cannot be told that none ran.
    has_seen_calls: bool,
}

impl<H, F, B> ServerConnection<H>
where
    H: Fn(ServedCall) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    pub(super) fn new(
        server: Rc<CallServer<H>>,
        connection: Connection,
        changes: watch::Receiver<ServingStage>,
    ) -> Self {
        Self {
            server,
            connection,
            changes,
            call_tokens: Rc::default(),
            has_seen_calls: false,
        }
    }

    /// Serves the connection to its end. With `is_over_limit` it is refused after the handshake.
    pub(super) async fn run(mut self, complete: impl Future<Output = bool>, is_over_limit: bool) {
        let Some(peer) = self.complete_handshake(complete, is_over_limit).await else {
            return;
        };
        match self.serve_until_refused(peer).await {
            Some(expired @ PeerRefusal::Expired(_)) => self.drain_expired(expired).await,
            Some(refusal) => self.close_refused(&refusal),
            None => {} // the peer has closed the connection
        }
    }

    /// Completes the handshake and returns the admitted peer. Streams arrive early only in a
    /// resumed session, whose peer is known; else they arrive after the peer has proved itself. A
    /// refusal is sent at the end: before that a close carries no text (RFC 9000 section 10.2.3).
    async fn complete_handshake(
        &mut self,
        complete: impl Future<Output = bool>,
        is_over_limit: bool,
    ) -> Option<Arc<PeerIdentity>> {
        // With a resumed session the certificate is known before the handshake ends.
        let known = self.server.admit_peer(&self.connection);
        let (mut complete, mut limit) = (
            std::pin::pin!(complete),
            std::pin::pin!(tokio::time::sleep(HANDSHAKE_TIMEOUT)),
        );
        loop {
            tokio::select! {
                // Completion first: streams accepted after it are no early data.
                biased;
                _ = complete.as_mut() => break,
                () = limit.as_mut() => return self.handshake_timed_out(),
                stream = self.connection.accept_bi(), if known.is_ok() && !is_over_limit => match (stream, &known) {
                    (Ok(stream), Ok(peer)) => self.spawn_call(stream, peer, true),
                    (Err(error), _) => return self.connection_lost(&error),
                    (Ok(_), Err(_)) => {} // unreachable: accepted for a known peer only
                },
            }
        }
        if let Some(error) = self.connection.close_reason() {
            return self.connection_lost(&error);
        }
        match self.server.admit_peer(&self.connection) {
            Ok(_) if is_over_limit => self.connection.close(
                close_code::FULL,
                self.server.limit.full_message().as_bytes(),
            ),
            Ok(peer) => return Some(peer),
            Err(refusal) => self.close_refused(&refusal),
        }
        None
    }

    /// Serves calls while the peer is admitted. Admission is checked again when the trust changes
    /// and when the certificate ends. `None`: the peer has closed the connection.
    async fn serve_until_refused(&mut self, peer: Arc<PeerIdentity>) -> Option<PeerRefusal> {
        let until_next = || {
            peer.remaining_validity(SystemTime::now())
                .min(EXPIRY_CHECK_INTERVAL)
        };
        let mut end = std::pin::pin!(tokio::time::sleep(until_next()));
        loop {
            let checked = tokio::select! {
                biased;
                _ = self.changes.changed() => self.server.readmit_peer(&self.connection),
                () = end.as_mut() => self.server.admit_peer(&self.connection).map(drop),
                stream = self.connection.accept_bi() => {
                    self.spawn_call(stream.ok()?, &peer, false);
                    continue;
                }
            };
            if let Err(refusal) = checked {
                return Some(refusal);
            }
            end.as_mut()
                .reset(tokio::time::Instant::now() + until_next());
        }
    }

    /// Drains the connection after the certificate's end: open calls continue, new ones are
    /// rejected. When none is open, the connection is refused.
    async fn drain_expired(&mut self, refusal: PeerRefusal) {
        let mut idle_check = tokio::time::interval(IDLE_TIMEOUT);
        // The first tick of an interval is immediate.
        idle_check.reset();
        loop {
            tokio::select! {
                biased;
                _ = self.changes.changed() => match self.server.readmit_peer(&self.connection) {
                    Ok(()) | Err(PeerRefusal::Expired(_)) => {}
                    Err(worse) => return self.close_refused(&worse),
                },
                _ = idle_check.tick() => if Rc::strong_count(&self.call_tokens) == 1 { return self.close_refused(&refusal) },
                stream = self.connection.accept_bi() => match stream {
                    Ok((send, _)) => StreamBodyWriter::new(send).reset_with(close_code::NOT_RUN),
                    Err(_) => return,
                },
            }
        }
    }

    fn spawn_call(
        &mut self,
        (send, receive): (SendStream, RecvStream),
        peer: &Arc<PeerIdentity>,
        early: bool,
    ) {
        self.has_seen_calls = true;
        let (server, peer, call_token) = (
            Rc::clone(&self.server),
            Arc::clone(peer),
            Rc::clone(&self.call_tokens),
        );
        let early = early || receive.is_0rtt();
        let remote_addr = self.connection.remote_address();
        tokio::task::spawn_local(async move {
            server
                .serve_call(send, receive, (peer, remote_addr), early)
                .await;
            drop(call_token);
        });
    }

    fn handshake_timed_out<T>(&self) -> Option<T> {
        let from = self.connection.remote_address();
        self.server
            .note_refusal(from, RefusalReason::Timeout, &HANDSHAKE_TIMEOUT_TEXT);
        let code = if self.has_seen_calls {
            close_code::EXCLUDED
        } else {
            close_code::REFUSED
        };
        self.connection
            .close(code, HANDSHAKE_TIMEOUT_TEXT.as_bytes());
        None
    }

    /// Handles a connection that ended before the handshake. A caller that got its result was not
    /// refused; before the handshake's end its close carries no code (RFC 9000 section 10.2.3).
    fn connection_lost<T>(&self, error: &ConnectionError) -> Option<T> {
        let left = match error {
            ConnectionError::ApplicationClosed(close) => close.error_code == close_code::DONE,
            ConnectionError::ConnectionClosed(close) => {
                close.error_code == TransportErrorCode::APPLICATION_ERROR
            }
            _ => false,
        };
        if !left {
            let (from, reason) = (
                self.connection.remote_address(),
                RefusalReason::of_connection(error),
            );
            self.server.note_refusal(from, reason, error);
        }
        None
    }

    /// Closes the connection with a code that tells whether calls were started. Calls that did not
    /// run may go elsewhere.
    fn close_refused(&self, refusal: &PeerRefusal) {
        let from = self.connection.remote_address();
        self.server.note_refusal(from, refusal.into(), refusal);
        let code = if self.has_seen_calls {
            close_code::EXCLUDED
        } else {
            close_code::REFUSED
        };
        self.connection.close(code, refusal.to_string().as_bytes());
    }
}
