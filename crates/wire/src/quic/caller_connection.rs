//! A connection to one worker, as its caller sees it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quinn::ReadError;
use tokio::sync::watch;

use super::call_error::{CallFailure, QuicCallError, is_certificate_refused};
use super::close_code;
use super::idle_watch::{self, InFlightCalls};
use super::stream_body::StreamBodyError;

/// A connection to one worker. Clones are the same connection.
#[derive(Debug, Clone)]
pub struct CallerConnection {
    connection: quinn::Connection,
    stage: watch::Receiver<HandshakeStage>,
    /// Shared with responses, which may move to another thread.
    pub(super) in_flight: Arc<InFlightCalls>,
    /// End of the peer's certificate, in seconds since 1970.
    certificate_end: Rc<Cell<i64>>,
}

/// Progress of the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HandshakeStage {
    /// Data goes in the first flight.
    Early,
    /// Complete; `early`: the worker accepted the first flight.
    Done { early: bool },
    /// The connection ended before the handshake did.
    Failed(Arc<str>),
    /// Complete, but the peer is not admitted.
    Refused(Arc<str>),
    /// Nothing was received within this time.
    TimedOut(Duration),
}

impl CallerConnection {
    pub(super) fn new(
        connection: quinn::Connection,
        stage: watch::Receiver<HandshakeStage>,
        idle_timeout: Duration,
    ) -> Self {
        // Unlimited until the handshake shows the certificate.
        let (in_flight, certificate_end) = (
            Arc::<InFlightCalls>::default(),
            Rc::new(Cell::new(i64::MAX)),
        );
        idle_watch::spawn_idle_watch(&connection, &in_flight, idle_timeout);
        Self {
            connection,
            stage,
            in_flight,
            certificate_end,
        }
    }

    /// Progress of the handshake.
    pub(super) fn stage(&self) -> watch::Ref<'_, HandshakeStage> {
        self.stage.borrow()
    }

    /// Sets the end of the peer's certificate.
    pub(super) fn set_certificate_end(&self, not_after: i64) {
        self.certificate_end.set(not_after);
    }

    /// Returns true once the peer's certificate has expired. No new calls may be made then.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.certificate_end.get() <= crate::identity::unix_seconds(now)
    }

    /// Number of calls in flight.
    pub fn open_calls(&self) -> u32 {
        self.in_flight.open()
    }

    /// Returns true if no new call can be made.
    pub fn is_closed(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// Returns true while the handshake is under way.
    pub fn is_early(&self) -> bool {
        *self.stage.borrow() == HandshakeStage::Early
    }

    /// Returns true if the connection ended because nothing was received, during the handshake or
    /// later. Calls that had been sent may have run.
    pub fn is_stalled(&self) -> bool {
        matches!(*self.stage.borrow(), HandshakeStage::TimedOut(_))
            || self.in_flight.stalled_after().is_some()
    }

    /// Measured round-trip time.
    pub fn rtt(&self) -> Duration {
        self.connection.rtt()
    }

    /// Number of received datagrams. The peer acknowledges each datagram whatever its handler does:
    /// where none arrives, nothing gets through.
    pub fn datagrams_received(&self) -> u64 {
        self.connection.stats().udp_rx.datagrams
    }

    /// The QUIC connection, for its counters or to wait for its end.
    pub fn connection(&self) -> &quinn::Connection {
        &self.connection
    }

    /// Closes the connection. Open calls are interrupted.
    pub fn close(&self) {
        self.connection.close(close_code::DONE, b"");
    }

    /// Waits for the handshake. Returns true if the worker accepted the first flight, false without
    /// one.
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
            Ok(HandshakeStage::Failed(why) | HandshakeStage::Refused(why)) => {
                Err(QuicCallError::NotRun(why.to_string()))
            }
            Ok(HandshakeStage::TimedOut(limit)) => Err(QuicCallError::NotRun(format!(
                "no response over UDP within {limit:?}"
            ))),
            Ok(HandshakeStage::Early) | Err(_) => Err(QuicCallError::NotRun(
                "the connection's task ended".to_owned(),
            )),
        }
    }

    /// Classifies the failure of a call on this connection.
    pub(super) fn classify_failure(&self, error: StreamBodyError) -> CallFailure {
        match *self.stage() {
            HandshakeStage::TimedOut(limit) => CallFailure::Final(QuicCallError::NoResponse(limit)),
            // The local close hides the stall from quinn's error.
            _ if self.in_flight.stalled_after().is_some() => CallFailure::Final(
                QuicCallError::Interrupted(self.in_flight.explain_error(error)),
            ),
            // Not after an accepted first flight: its calls may have run before the alert.
            HandshakeStage::Done { early: false } if is_certificate_refused(&error) => {
                CallFailure::Final(QuicCallError::NotRun(error.to_string()))
            }
            HandshakeStage::Early | HandshakeStage::Failed(_) => {
                CallFailure::classify(self.unmask_rejection(error))
            }
            _ => CallFailure::classify(error),
        }
    }

    /// Returns the connection's own error in the place of a rejection that did not happen.
    ///
    /// quinn reports each first flight as rejected when the connection ends during the handshake.
    /// The worker may have accepted it and run its calls by then.
    fn unmask_rejection(&self, error: StreamBodyError) -> StreamBodyError {
        use quinn::ConnectionError::TransportError;
        let is_rejection = matches!(error, StreamBodyError::Stream(ReadError::ZeroRttRejected));
        match self.connection.close_reason().filter(|_| is_rejection) {
            // A worker that accepts the flight sends no certificate, so this side's complaint about
            // one proves the rejection (RFC 8446 section 2.2).
            None | Some(TransportError(_)) => error,
            Some(lost) => StreamBodyError::Stream(ReadError::ConnectionLost(lost)),
        }
    }
}
