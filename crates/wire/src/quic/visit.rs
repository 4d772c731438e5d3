//! A connection as its worker sees it: who comes in, how long that is good, and how it ends.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use quinn::{Connection, ConnectionError, RecvStream, SendStream, TransportErrorCode};

use super::code;
use super::config::IDLE;
use super::serve::{Call, Server};
use super::upload::Outgoing;
use crate::BoxError;
use crate::identity::{Peer, Refusal};

/// How long a caller may take to prove who it is: it holds a place meanwhile, and could do so for ever.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
/// What is said of one that took longer.
pub(super) const UNFINISHED: &str = "the handshake was not complete within 10s";

/// Longest that is waited at a time for a certificate's end: clocks are set.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// See the module's text.
pub(super) struct Visit<H> {
    server: Rc<Server<H>>,
    connection: Connection,
    /// Each call that is under way has one of these.
    calls: Rc<()>,
    /// Calls on it were looked at: after that nobody can be told that they did not run.
    looked: bool,
}

impl<H, F, B> Visit<H>
where
    H: Fn(Call) -> F + 'static,
    F: Future<Output = Response<B>> + 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    pub(super) fn begin(server: Rc<Server<H>>, connection: Connection) -> Self {
        Self { server, connection, calls: Rc::default(), looked: false }
    }

    /// All of it. `full`: the worker has no room for it, and says so.
    pub(super) async fn pass(mut self, complete: impl Future<Output = bool>, full: bool) {
        let Some(peer) = self.arrive(complete, full).await else { return };
        match self.stay(peer).await {
            Some(expired @ Refusal::Expired(_)) => self.leave(expired).await,
            Some(refusal) => self.refuse(&refusal),
            None => {} // it has left
        }
    }

    /// Until the handshake is complete: who it is, if it may stay. Streams come early only in a resumed session, and then the peer is known;
    /// otherwise they come when it has proved itself. Who is not admitted is told so at the end: before, a close carries no text (RFC 9000
    /// section 10.2.3).
    async fn arrive(&mut self, complete: impl Future<Output = bool>, full: bool) -> Option<Arc<Peer>> {
        let known = self.server.admit(&self.connection);
        let (mut complete, mut limit) = (std::pin::pin!(complete), std::pin::pin!(tokio::time::sleep(HANDSHAKE)));
        loop {
            tokio::select! {
                biased;
                _ = complete.as_mut() => break,
                () = limit.as_mut() => return self.cut_short(),
                stream = self.connection.accept_bi(), if known.is_ok() && !full => match (stream, &known) {
                    (Ok(stream), Ok(peer)) => self.call(stream, peer, true),
                    (Err(error), _) => return self.lost(&error),
                    (Ok(_), Err(_)) => {} // nobody asks for it
                },
            }
        }
        if let Some(error) = self.connection.close_reason() {
            return self.lost(&error);
        }
        match self.server.admit(&self.connection) {
            Ok(_) if full => self.connection.close(code::FULL, self.server.room.told().as_bytes()),
            Ok(peer) => return Some(peer),
            Err(refusal) => self.refuse(&refusal),
        }
        None
    }

    /// As long as it is admitted: it is looked at again when others are trusted, and when its certificate ends. Nothing: it has left.
    async fn stay(&mut self, peer: Arc<Peer>) -> Option<Refusal> {
        let until_next = || peer.left(SystemTime::now()).min(LOOK_AGAIN);
        let mut changes = self.server.changes.subscribe();
        let mut end = std::pin::pin!(tokio::time::sleep(until_next()));
        loop {
            tokio::select! {
                biased;
                _ = changes.changed() => {}
                () = end.as_mut() => {}
                stream = self.connection.accept_bi() => {
                    self.call(stream.ok()?, &peer, false);
                    continue;
                }
            }
            if let Err(refusal) = self.server.admit(&self.connection) {
                return Some(refusal);
            }
            end.as_mut().reset(tokio::time::Instant::now() + until_next());
        }
    }

    /// After its certificate has ended: what is under way goes on, what comes is not looked at, and when nothing is under way any more it
    /// is told.
    async fn leave(&mut self, refusal: Refusal) {
        let mut changes = self.server.changes.subscribe();
        let mut soon = tokio::time::interval(IDLE);
        soon.reset();
        loop {
            tokio::select! {
                biased;
                _ = changes.changed() => match self.server.admit(&self.connection) {
                    Ok(_) | Err(Refusal::Expired(_)) => {}
                    Err(worse) => return self.refuse(&worse),
                },
                _ = soon.tick() => if Rc::strong_count(&self.calls) == 1 { return self.refuse(&refusal) },
                stream = self.connection.accept_bi() => match stream {
                    Ok((send, _)) => Outgoing::new(send).refuse(code::UNSEEN),
                    Err(_) => return,
                },
            }
        }
    }

    fn call(&mut self, (send, receive): (SendStream, RecvStream), peer: &Arc<Peer>, early: bool) {
        self.looked = true;
        let (server, peer, one) = (Rc::clone(&self.server), Arc::clone(peer), Rc::clone(&self.calls));
        let early = early || receive.is_0rtt();
        tokio::task::spawn_local(async move {
            server.call(send, receive, peer, early).await;
            drop(one);
        });
    }

    fn cut_short<T>(&self) -> Option<T> {
        self.server.note(self.connection.remote_address(), &UNFINISHED);
        let code = if self.looked { code::EXCLUDED } else { code::REFUSED };
        self.connection.close(code, UNFINISHED.as_bytes());
        None
    }

    /// It ended before the handshake did. A caller that has what it wanted is not one that was refused; before the end its close has no number
    /// (RFC 9000 section 10.2.3).
    fn lost<T>(&self, error: &ConnectionError) -> Option<T> {
        let left = match error {
            ConnectionError::ApplicationClosed(close) => close.error_code == code::DONE,
            ConnectionError::ConnectionClosed(close) => close.error_code == TransportErrorCode::APPLICATION_ERROR,
            _ => false,
        };
        if !left {
            self.server.note(self.connection.remote_address(), error);
        }
        None
    }

    /// Says whether calls on this connection were looked at: what provably did not run may go another way.
    fn refuse(&self, refusal: &Refusal) {
        self.server.note(self.connection.remote_address(), refusal);
        let code = if self.looked { code::EXCLUDED } else { code::REFUSED };
        self.connection.close(code, refusal.to_string().as_bytes());
    }
}
