//! A connection to one worker, as its caller sees it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::body::BodyError;
use super::code;
use super::failed::{CallError, Failed, is_turned_down};
use super::rest::{self, Load};

/// A connection to one worker. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Line {
    connection: quinn::Connection,
    stage: watch::Receiver<Stage>,
    /// Shared with answers, which may go to another thread.
    pub(super) load: Arc<Load>,
    /// When the peer's certificate ends, in seconds since 1970.
    until: Rc<Cell<i64>>,
}

/// How far the handshake is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    /// What is sent goes in the first flight.
    Early,
    /// Complete; whether the first flight was taken.
    Done { early: bool },
    /// It failed, or the peer is not admitted.
    Failed(Arc<str>),
    /// Nothing came within this time.
    Silent(Duration),
}

impl Line {
    pub(super) fn new(connection: quinn::Connection, stage: watch::Receiver<Stage>, rest: Duration) -> Self {
        let (load, until) = (Arc::<Load>::default(), Rc::new(Cell::new(i64::MAX)));
        rest::begin(&connection, &load, rest);
        Self { connection, stage, load, until }
    }

    /// How far the handshake is.
    pub(super) fn stage(&self) -> watch::Ref<'_, Stage> {
        self.stage.borrow()
    }

    /// The peer has shown this certificate's end.
    pub(super) fn good_until(&self, not_after: i64) {
        self.until.set(not_after);
    }

    /// Whether the peer's certificate has ended: no new calls then.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.until.get() <= crate::identity::seconds(now)
    }

    /// Calls that are under way.
    pub fn open(&self) -> u32 {
        self.load.open()
    }

    /// Whether no new call can be made.
    pub fn is_closed(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// Whether the handshake is still under way.
    pub fn is_early(&self) -> bool {
        *self.stage.borrow() == Stage::Early
    }

    /// Whether it has ended because nothing came back, in the time that the handshake had or later: whether calls that had been sent ran is not known.
    pub fn is_silent(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Silent(_)) || self.load.silent().is_some()
    }

    /// Measured round trip.
    pub fn rtt(&self) -> Duration {
        self.connection.rtt()
    }

    /// Datagrams that came so far. One that is sent is acknowledged whatever the handler does: where none comes, nothing gets through.
    pub fn received(&self) -> u64 {
        self.connection.stats().udp_rx.datagrams
    }

    /// The connection itself: for its counters, or to watch its end.
    pub fn connection(&self) -> &quinn::Connection {
        &self.connection
    }

    /// Ends the connection; calls that are open break off.
    pub fn close(&self) {
        self.connection.close(code::DONE, b"");
    }

    /// Waits for the handshake: whether the first flight was taken; without one it was not.
    ///
    /// # Errors
    /// [`CallError::Unseen`] when the handshake failed or the peer is not admitted.
    pub async fn settled(&self) -> Result<bool, CallError> {
        let mut stage = self.stage.clone();
        let settled = stage.wait_for(|stage| *stage != Stage::Early).await;
        match settled.as_deref() {
            Ok(Stage::Done { early }) => Ok(*early),
            Ok(Stage::Failed(why)) => Err(CallError::Unseen(why.to_string())),
            Ok(Stage::Silent(limit)) => Err(CallError::Unseen(format!("no answer over UDP within {limit:?}"))),
            Ok(Stage::Early) | Err(_) => Err(CallError::Unseen("the connection's task ended".to_owned())),
        }
    }

    /// A call on this line ended so.
    pub(super) fn failed(&self, error: BodyError) -> Failed {
        match *self.stage() {
            Stage::Silent(limit) => Failed::For(CallError::Silent(limit)),
            _ if self.load.silent().is_some() => Failed::For(CallError::Broken(self.load.explain(error))),
            Stage::Done { early: false } if is_turned_down(&error) => Failed::For(CallError::Unseen(error.to_string())),
            _ => Failed::of(error),
        }
    }
}
