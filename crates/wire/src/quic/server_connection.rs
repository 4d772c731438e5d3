//! A connection as its worker sees it: who comes in, how long that is good, and how it ends.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use quinn::{Connection, ConnectionError, RecvStream, SendStream, TransportErrorCode};

use super::body_writer::StreamBodyWriter;
use super::close_code;
use super::config::IDLE_TIMEOUT;
use super::server::{CallServer, ServedCall};
use crate::BoxError;
use crate::identity::{PeerIdentity, PeerRefusal};

/// How long a caller may take to prove who it is: it holds a place meanwhile, and could do so for ever.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// What is said of one that took longer.
pub(super) const HANDSHAKE_TIMEOUT_TEXT: &str = "the handshake was not complete within 10s";

/// Longest that is waited at a time for a certificate's end: clocks are set.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// See the module's text.
pub(super) struct ServerConnection<H> {
    server: Rc<CallServer<H>>,
    connection: Connection,
    /// Each call that is under way has one of these.
    call_tokens: Rc<()>,
    /// Calls on it were looked at: after that nobody can be told that they did not run.
    has_seen_calls: bool,
}

impl<H, F, B> ServerConnection<H>
where
    H: Fn(ServedCall) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    pub(super) fn new(server: Rc<CallServer<H>>, connection: Connection) -> Self {
        Self {
            server,
            connection,
            call_tokens: Rc::default(),
            has_seen_calls: false,
        }
    }

    /// All of it. `full`: the worker has no room for it, and says so.
    pub(super) async fn run(mut self, complete: impl Future<Output = bool>, is_over_limit: bool) {
        let Some(peer) = self.complete_handshake(complete, is_over_limit).await else {
            return;
        };
        match self.serve_until_refused(peer).await {
            Some(expired @ PeerRefusal::Expired(_)) => self.drain_expired(expired).await,
            Some(refusal) => self.close_refused(&refusal),
            None => {} // it has left
        }
    }

    /// Until the handshake is complete: who it is, if it may stay. Streams come early only in a resumed session, and then the peer is known;
    /// otherwise they come when it has proved itself. Who is not admitted is told so at the end: before, a close carries no text (RFC 9000
    /// section 10.2.3).
    async fn complete_handshake(
        &mut self,
        complete: impl Future<Output = bool>,
        is_over_limit: bool,
    ) -> Option<Arc<PeerIdentity>> {
        let known = self.server.admit_peer(&self.connection);
        let (mut complete, mut limit) = (
            std::pin::pin!(complete),
            std::pin::pin!(tokio::time::sleep(HANDSHAKE_TIMEOUT)),
        );
        loop {
            tokio::select! {
                biased;
                _ = complete.as_mut() => break,
                () = limit.as_mut() => return self.handshake_timed_out(),
                stream = self.connection.accept_bi(), if known.is_ok() && !is_over_limit => match (stream, &known) {
                    (Ok(stream), Ok(peer)) => self.spawn_call(stream, peer, true),
                    (Err(error), _) => return self.connection_lost(&error),
                    (Ok(_), Err(_)) => {} // nobody asks for it
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

    /// As long as it is admitted: it is looked at again when others are trusted, and when its certificate ends. Nothing: it has left.
    async fn serve_until_refused(&mut self, peer: Arc<PeerIdentity>) -> Option<PeerRefusal> {
        let until_next = || {
            peer.remaining_validity(SystemTime::now())
                .min(EXPIRY_CHECK_INTERVAL)
        };
        let mut changes = self.server.changes.subscribe();
        let mut end = std::pin::pin!(tokio::time::sleep(until_next()));
        loop {
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = end.as_mut() => {}
                stream = self.connection.accept_bi() => {
                    self.spawn_call(stream.ok()?, &peer, false);
                    continue;
                }
            }
            if let Err(refusal) = self.server.admit_peer(&self.connection) {
                return Some(refusal);
            }
            end.as_mut()
                .reset(tokio::time::Instant::now() + until_next());
        }
    }

    /// After its certificate has ended: what is under way goes on, what comes is not looked at, and when nothing is under way any more it
    /// is told.
    async fn drain_expired(&mut self, refusal: PeerRefusal) {
        let mut changes = self.server.changes.subscribe();
        let mut idle_check = tokio::time::interval(IDLE_TIMEOUT);
        idle_check.reset();
        loop {
            tokio::select! {
                biased;
                _ = changes.changed() => match self.server.admit_peer(&self.connection) {
                    Ok(_) | Err(PeerRefusal::Expired(_)) => {}
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
        let (server, peer, one) = (
            Rc::clone(&self.server),
            Arc::clone(peer),
            Rc::clone(&self.call_tokens),
        );
        let early = early || receive.is_0rtt();
        tokio::task::spawn_local(async move {
            server.serve_call(send, receive, peer, early).await;
            drop(one);
        });
    }

    fn handshake_timed_out<T>(&self) -> Option<T> {
        self.server
            .note_refusal(self.connection.remote_address(), &HANDSHAKE_TIMEOUT_TEXT);
        let code = if self.has_seen_calls {
            close_code::EXCLUDED
        } else {
            close_code::REFUSED
        };
        self.connection
            .close(code, HANDSHAKE_TIMEOUT_TEXT.as_bytes());
        None
    }

    /// It ended before the handshake did. A caller that has what it wanted is not one that was refused; before the end its close has no number
    /// (RFC 9000 section 10.2.3).
    fn connection_lost<T>(&self, error: &ConnectionError) -> Option<T> {
        let left = match error {
            ConnectionError::ApplicationClosed(close) => close.error_code == close_code::DONE,
            ConnectionError::ConnectionClosed(close) => {
                close.error_code == TransportErrorCode::APPLICATION_ERROR
            }
            _ => false,
        };
        if !left {
            self.server
                .note_refusal(self.connection.remote_address(), error);
        }
        None
    }

    /// Says whether calls on this connection were looked at: what provably did not run may go another way.
    fn close_refused(&self, refusal: &PeerRefusal) {
        self.server
            .note_refusal(self.connection.remote_address(), refusal);
        let code = if self.has_seen_calls {
            close_code::EXCLUDED
        } else {
            close_code::REFUSED
        };
        self.connection.close(code, refusal.to_string().as_bytes());
    }
}
