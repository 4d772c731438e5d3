//! State of one destination, shared by all its clients.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use nearpath_connpool::adapter_state::{AdapterState, IdleConnections};
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::idle::IdlePool;
use nearpath_connpool::pool::ConnectionLease;

use super::backend::{GreetedConnection, MysqlBackend, MysqlBackendError};
use super::startup::MysqlGreeting;
use crate::ClientContext;

/// Logins and settings that are remembered per destination.
const MAX_KNOWN_LOGINS: usize = 64;

/// Properties of a session. Connections with equal fingerprints serve each other's clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MysqlFingerprint {
    pub(super) capabilities: u32,
    pub(super) user: Vec<u8>,
    pub(super) db: Vec<u8>,
    pub(super) charset: u8,
    /// Statements that set the session up.
    pub(super) settings: Vec<Vec<u8>>,
}

/// A fingerprint, a setting sent on such a connection, and the server's reply.
type KnownSetting = (MysqlFingerprint, Vec<u8>, Vec<u8>);

/// State of one destination, shared by all its clients.
pub(super) struct MysqlState {
    pub(super) idle_pool: Rc<IdlePool<MysqlFingerprint, MysqlBackend>>,
    /// The server's last greeting. Only connections hold it: an upgraded server greets the first
    /// client after them.
    greeting: RefCell<Weak<MysqlGreeting>>,
    /// Held while a client fetches the greeting.
    pub(super) greeting_lock: tokio::sync::Mutex<()>,
    /// Logins that the server has accepted from the node.
    pub(super) known_logins: RefCell<Vec<MysqlFingerprint>>,
    /// Replies to settings on connections that the node logged in on.
    known_settings: RefCell<Vec<KnownSetting>>,
}

impl AdapterState for MysqlState {
    fn for_destination(to: &EgressDestination) -> Self {
        Self {
            idle_pool: IdlePool::new(to),
            greeting: RefCell::default(),
            greeting_lock: tokio::sync::Mutex::default(),
            known_logins: RefCell::default(),
            known_settings: RefCell::default(),
        }
    }

    fn idle_connections(&self) -> Option<&dyn IdleConnections> {
        Some(&*self.idle_pool)
    }
}

impl MysqlState {
    /// Reads the server's greeting on a new connection, and keeps it.
    pub(super) async fn read_greeting(
        &self,
        lease: ConnectionLease,
    ) -> Result<GreetedConnection, MysqlBackendError> {
        let greeted = GreetedConnection::read_greeting(lease).await?;
        // Later clients are greeted with it before they have a backend.
        self.greeting.replace(Rc::downgrade(&greeted.greeting));
        Ok(greeted)
    }

    /// Returns the greeting of the open connections.
    pub(super) fn known_greeting(&self) -> Option<Rc<MysqlGreeting>> {
        self.greeting.borrow().upgrade()
    }

    pub(super) fn learn_login(&self, fingerprint: &MysqlFingerprint) {
        // Full tables take no more entries: a client without one only pays for a backend at its
        // start.
        let mut proven = self.known_logins.borrow_mut();
        if proven.len() < MAX_KNOWN_LOGINS && !proven.contains(fingerprint) {
            proven.push(fingerprint.clone());
        }
    }

    pub(super) fn learn_setting(&self, before: MysqlFingerprint, setting: Vec<u8>, reply: Vec<u8>) {
        let mut known = self.known_settings.borrow_mut();
        if known.len() < MAX_KNOWN_LOGINS {
            known.push((before, setting, reply));
        }
    }

    /// Returns the server's earlier reply to a setting.
    pub(super) fn known_reply(&self, before: &MysqlFingerprint, setting: &[u8]) -> Option<Vec<u8>> {
        let known = self.known_settings.borrow();
        let found = known
            .iter()
            .find(|(other, text, _)| other == before && text == setting);
        found.map(|(_, _, reply)| reply.clone())
    }

    /// Forgets accepted logins and settings: the server has changed, or was unreachable.
    pub(super) fn forget(&self) {
        self.known_settings.take();
        self.known_logins.take();
    }
}

/// Returns the adapter's state of the client's destination.
pub(super) fn state_of(context: &ClientContext) -> Rc<MysqlState> {
    let upstream = &context.upstream;
    upstream.adapters.state_of(&upstream.destination)
}
