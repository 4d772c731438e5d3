//! A connection to one worker, as its caller sees it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::call_error::{CallFailure, QuicCallError, is_certificate_refused};
use super::close_code;
use super::idle_watch::{self, InFlightCalls};
use super::stream_body::StreamBodyError;

/// A connection to one worker. Clones are the same one.
#[derive(Debug, Clone)]
pub struct CallerConnection {
    connection: quinn::Connection,
    stage: watch::Receiver<HandshakeStage>,
    /// Shared with answers, which may go to another thread.
    pub(super) in_flight: Arc<InFlightCalls>,
    /// When the peer's certificate ends, in seconds since 1970.
    certificate_end: Rc<Cell<i64>>,
}

/// How far the handshake is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HandshakeStage {
    /// What is sent goes in the first flight.
    Early,
    /// Complete; whether the first flight was taken.
    Done { early: bool },
    /// It failed, or the peer is not admitted.
    Failed(Arc<str>),
    /// Nothing came within this time.
    TimedOut(Duration),
}

impl CallerConnection {
    pub(super) fn new(
        connection: quinn::Connection,
        stage: watch::Receiver<HandshakeStage>,
        idle_timeout: Duration,
    ) -> Self {
        let (in_flight, certificate_end) = (
            Arc::<InFlightCalls>::default(),
            Rc::new(Cell::new(i64::MAX)),
        );
        idle_watch::spawn_idle_watch(&connection, &in_flight, idle_timeout);
        Self {
            connection,
            stage,
            in_flight: in_flight,
            certificate_end: certificate_end,
        }
    }

    /// How far the handshake is.
    pub(super) fn stage(&self) -> watch::Ref<'_, HandshakeStage> {
        self.stage.borrow()
    }

    /// The peer has shown this certificate's end.
    pub(super) fn set_certificate_end(&self, not_after: i64) {
        self.certificate_end.set(not_after);
    }

    /// Whether the peer's certificate has ended: no new calls then.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.certificate_end.get() <= crate::identity::unix_seconds(now)
    }

    /// Calls that are under way.
    pub fn open_calls(&self) -> u32 {
        self.in_flight.open()
    }

    /// Whether no new call can be made.
    pub fn is_closed(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// Whether the handshake is still under way.
    pub fn is_early(&self) -> bool {
        *self.stage.borrow() == HandshakeStage::Early
    }

    /// Whether it has ended because nothing came back, in the time that the handshake had or later: whether calls that had been sent ran is not known.
    pub fn is_stalled(&self) -> bool {
        matches!(*self.stage.borrow(), HandshakeStage::TimedOut(_))
            || self.in_flight.stalled_after().is_some()
    }

    /// Measured round trip.
    pub fn rtt(&self) -> Duration {
        self.connection.rtt()
    }

    /// Datagrams that came so far. One that is sent is acknowledged whatever the handler does: where none comes, nothing gets through.
    pub fn datagrams_received(&self) -> u64 {
        self.connection.stats().udp_rx.datagrams
    }

    /// The connection itself: for its counters, or to watch its end.
    pub fn connection(&self) -> &quinn::Connection {
        &self.connection
    }

    /// Ends the connection; calls that are open break off.
    pub fn close(&self) {
        self.connection.close(close_code::DONE, b"");
    }

    /// Waits for the handshake: whether the first flight was taken; without one it was not.
    ///
    /// # Errors
    /// [`QuicCallError::NotRun`] when the handshake failed or the peer is not admitted.
    pub async fn wait_handshake(&self) -> Result<bool, QuicCallError> {
        let mut stage = self.stage.clone();
        let settled = stage
            .wait_for(|stage| *stage != HandshakeStage::Early)
            .await;
        match settled.as_deref() {
            Ok(HandshakeStage::Done { early }) => Ok(*early),
            Ok(HandshakeStage::Failed(why)) => Err(QuicCallError::NotRun(why.to_string())),
            Ok(HandshakeStage::TimedOut(limit)) => Err(QuicCallError::NotRun(format!(
                "no answer over UDP within {limit:?}"
            ))),
            Ok(HandshakeStage::Early) | Err(_) => Err(QuicCallError::NotRun(
                "the connection's task ended".to_owned(),
            )),
        }
    }

    /// A call on this line ended so.
    pub(super) fn classify_failure(&self, error: StreamBodyError) -> CallFailure {
        match *self.stage() {
            HandshakeStage::TimedOut(limit) => CallFailure::Final(QuicCallError::NoResponse(limit)),
            _ if self.in_flight.stalled_after().is_some() => CallFailure::Final(
                QuicCallError::Interrupted(self.in_flight.explain_error(error)),
            ),
            HandshakeStage::Done { early: false } if is_certificate_refused(&error) => {
                CallFailure::Final(QuicCallError::NotRun(error.to_string()))
            }
            _ => CallFailure::classify(error),
        }
    }
}
