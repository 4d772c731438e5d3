//! One instance of a callee, and the connection to it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use nearpath_types::{InstanceLocality, frames};
use nearpath_wire::quic::{CallerConnection, Dialer, QuicDialError};
use tokio::sync::Mutex;
use tokio::task::spawn_local;

use super::peer_selection::PeerBackoff;

/// How long an instance may take to answer at all: it is near, and whoever waits has another way.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// See the module's text.
#[derive(Debug)]
pub(super) struct QuicPeer {
    /// The name of its incarnation.
    pub(super) name: Rc<str>,
    pub(super) addr: SocketAddr,
    pub(super) locality: InstanceLocality,
    connection: RefCell<Option<CallerConnection>>,
    /// One connection is opened at a time.
    dial_lock: Mutex<()>,
    backoff: PeerBackoff,
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
            connection: connection,
            dial_lock: dial_lock,
            backoff: backoff,
        }
    }

    /// Calls that are under way to it; nothing while it is left alone.
    pub(super) fn open_calls(&self, now: Instant) -> Option<u32> {
        let count_open = || {
            self.connection
                .borrow()
                .as_ref()
                .map_or(0, CallerConnection::open_calls)
        };
        self.backoff.is_ready(now).then(count_open)
    }

    /// Calls that go out from now on get another connection; those under way keep theirs.
    pub(super) fn drop_connection(&self) {
        self.connection.borrow_mut().take();
    }

    /// It has ended: nobody waits for its answers.
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
        connection
            .as_ref()
            .filter(|line| !line.is_closed() && !line.has_expired(SystemTime::now()))
            .cloned()
    }

    /// The connection to it, opened if need be; at once where there is a session.
    ///
    /// # Errors
    /// See [`DialError`]; it is then left alone for a while.
    pub(super) async fn connect(
        self: &Rc<Self>,
        dialer: &Rc<RefCell<Dialer>>,
    ) -> Result<CallerConnection, QuicDialError> {
        if let Some(connection) = self.ready_connection() {
            return Ok(connection);
        }
        // Whoever waits may have less time than that takes. It goes on without: others are told what came of it.
        let dial_task = spawn_local(Rc::clone(self).dial_peer(Rc::clone(dialer)));
        dial_task
            .await
            .unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
    }

    async fn dial_peer(
        self: Rc<Self>,
        dialer: Rc<RefCell<Dialer>>,
    ) -> Result<CallerConnection, QuicDialError> {
        let _turn = self.dial_lock.lock().await;
        if let Some(connection) = self.ready_connection() {
            return Ok(connection);
        }
        let dialer = dialer.borrow().clone();
        let dialled = dialer
            .dial_worker(self.addr, &self.name, DIAL_TIMEOUT)
            .await;
        let connection = dialled.inspect_err(|_| self.backoff.record_failure(Instant::now()))?;
        self.connection.replace(Some(connection.clone()));
        match connection.is_early() {
            true => drop(spawn_local(
                Rc::clone(&self).watch_handshake(connection.clone()),
            )),
            false => self.backoff.record_success(),
        }
        Ok(connection)
    }

    /// What was sent in a first flight into silence may have arrived, so nobody can send it again elsewhere; but no more is sent there.
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
