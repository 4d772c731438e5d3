//! Instance of a callee, and the connection to it.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use nearpath_types::{InstanceLocality, frames};
use nearpath_wire::quic::{CallerConnection, QuicDialError};
use tokio::sync::Mutex;
use tokio::task::spawn_local;

use super::dialers::PeerDialers;
use super::peer_selection::PeerBackoff;
use super::reply_watch::ReplyWatch;

/// Time limit of a connection attempt. Short, because calls have another path.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Instance of a callee with its connection and backoff.
#[derive(Debug)]
pub(super) struct QuicPeer {
    /// Name of the incarnation, which its certificate shows.
    pub(super) name: Rc<str>,
    pub(super) addr: SocketAddr,
    locality: InstanceLocality,
    connection: RefCell<Option<CallerConnection>>,
    /// Serialises connection attempts.
    dial_lock: Mutex<()>,
    backoff: PeerBackoff,
    /// A task opens a connection that no call waits for.
    is_dialed_ahead: Cell<bool>,
    reply_watch: Cell<ReplyWatch>,
}

impl QuicPeer {
    pub(super) fn from_entry(entry: &frames::CalleePeer) -> Self {
        let frames::CalleePeer {
            name,
            addr,
            locality,
            leaving: _,
        } = entry;
        let (connection, dial_lock, backoff) = Default::default();
        Self {
            name: name.as_str().into(),
            addr: *addr,
            locality: *locality,
            connection,
            dial_lock,
            backoff,
            is_dialed_ahead: Cell::new(false),
            reply_watch: Cell::default(),
        }
    }

    /// Returns whether the instance runs on another node.
    pub(super) fn is_remote(&self) -> bool {
        self.locality == InstanceLocality::OtherNode
    }

    /// Returns whether a connection is there whose handshake is complete and whose peer responds.
    pub(super) fn is_usable(&self, now: Instant) -> bool {
        let connection = self.ready_connection();
        let Some(connection) = connection.filter(|connection| !connection.is_early()) else {
            return false;
        };
        let mut watch = self.reply_watch.get();
        let received = connection.datagrams_received();
        let is_usable = watch.observe(received, connection.open_calls(), now);
        self.reply_watch.set(watch);
        is_usable
    }

    /// Returns whether the caller should open a connection in the background, and notes it.
    pub(super) fn begin_background_dial(&self, now: Instant) -> bool {
        let is_due = self.is_remote()
            && !self.is_dialed_ahead.get()
            && self.backoff.is_ready(now)
            && !self.has_connection();
        if is_due {
            self.is_dialed_ahead.set(true);
        }
        is_due
    }

    pub(super) fn end_background_dial(&self) {
        self.is_dialed_ahead.set(false);
    }

    /// Returns the open calls, or `None` while the peer backs off.
    pub(super) fn open_calls(&self, now: Instant) -> Option<u32> {
        let count_open = || {
            self.connection
                .borrow()
                .as_ref()
                .map_or(0, CallerConnection::open_calls)
        };
        self.backoff.is_ready(now).then(count_open)
    }

    /// Drops the connection: later calls get a new one, open calls keep theirs.
    pub(super) fn drop_connection(&self) {
        self.connection.borrow_mut().take();
    }

    /// Closes the connection of a peer that has ended; its open calls fail at once.
    pub(super) fn close(&self) {
        if let Some(connection) = self.connection.borrow_mut().take() {
            connection.close();
        }
    }

    pub(super) fn has_connection(&self) -> bool {
        self.ready_connection().is_some()
    }

    fn ready_connection(&self) -> Option<CallerConnection> {
        let connection = self.connection.borrow();
        // Checked at each use: the certificate may expire while the connection is open.
        connection
            .as_ref()
            .filter(|connection| {
                !connection.is_closed() && !connection.has_expired(SystemTime::now())
            })
            .cloned()
    }

    /// Returns the connection, opened if need be; with a session it is usable at once.
    ///
    /// # Errors
    /// See [`QuicDialError`]; the peer then backs off.
    pub(super) async fn connect(
        self: &Rc<Self>,
        dialers: &Rc<RefCell<PeerDialers>>,
    ) -> Result<CallerConnection, QuicDialError> {
        if let Some(connection) = self.ready_connection() {
            return Ok(connection);
        }
        // A task of its own: a caller that gives up early must not cancel the attempt for the
        // others.
        let dial_task = spawn_local(Rc::clone(self).dial_peer(Rc::clone(dialers)));
        dial_task
            .await
            .unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
    }

    async fn dial_peer(
        self: Rc<Self>,
        dialers: Rc<RefCell<PeerDialers>>,
    ) -> Result<CallerConnection, QuicDialError> {
        let _dial_permit = self.dial_lock.lock().await;
        // Another task may have connected while this one waited for the lock.
        if let Some(connection) = self.ready_connection() {
            return Ok(connection);
        }
        // Cloned out of the cell, because a renewal may replace the dialer during the await.
        let dialer = dialers.borrow().for_locality(self.locality).clone();
        let dialled = dialer
            .dial_worker(self.addr, &self.name, DIAL_TIMEOUT)
            .await;
        let connection = dialled.inspect_err(|_| self.backoff.record_failure(Instant::now()))?;
        self.connection.replace(Some(connection.clone()));
        // An early connection is not confirmed yet, so its handshake decides about the backoff.
        match connection.is_early() {
            true => drop(spawn_local(
                Rc::clone(&self).watch_handshake(connection.clone()),
            )),
            false => self.backoff.record_success(),
        }
        Ok(connection)
    }

    /// Waits for the handshake of an early connection. Its calls may have arrived, so none is
    /// repeated; new ones go elsewhere.
    async fn watch_handshake(self: Rc<Self>, connection: CallerConnection) {
        match connection.wait_handshake().await {
            Ok(_) => self.backoff.record_success(),
            Err(_) => {
                self.backoff.record_failure(Instant::now());
                self.drop_connection();
            }
        }
    }
}
