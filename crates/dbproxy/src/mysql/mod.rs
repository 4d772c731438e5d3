//! MySQL and MariaDB. A client keeps its backend until it leaves; then the backend is cleaned, and serves the next one. In mode `transaction` it is
//! given on as soon as the server says that none is open, while [`session_effect`] knows that nothing of the client is in it.
//!
//! Where the node logs in (`user=`), a client is welcomed at once, by the greeting that the server gave before, and gets a backend at its first command.
//! Otherwise the server itself asks each client for its password: over a connection that is there already, by `COM_CHANGE_USER`.
//!
//! [`frame`] finds where packets end, [`parse_startup`] reads and writes those of the beginning, [`session`] is the state machine of one client, [`backend`]
//! logs in and cleans, [`handle_backend`] moves the bytes.

mod backend;
mod connection;
pub mod frame;
mod handshake;
mod relay;
pub mod session;
pub mod session_effect;
pub mod startup;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use tokio::net::TcpStream;

use crate::ClientContext;
use backend::MysqlBackend;
use nearpath_connpool::adapter_state::{AdapterState, IdleConnections};
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::idle::IdlePool;
use startup::MysqlGreeting;

/// Logins that are remembered at most, for one key.
const MAX_KNOWN_LOGINS: usize = 64;

/// Which backends serve whom.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MysqlFingerprint {
    capabilities: u32,
    user: Vec<u8>,
    db: Vec<u8>,
    charset: u8,
    /// Statements that made it what it is.
    settings: Vec<Vec<u8>>,
}

/// What a connection was before, a statement, and the answer to it.
type KnownSetting = (MysqlFingerprint, Vec<u8>, Vec<u8>);

/// What is kept from one client to the next.
struct MysqlState {
    idle_pool: Rc<IdlePool<MysqlFingerprint, MysqlBackend>>,
    /// The server's last one.
    greeting: RefCell<Option<MysqlGreeting>>,
    /// Held by who asks for it.
    greeting_lock: tokio::sync::Mutex<()>,
    /// What the server let the node log in with.
    known_logins: RefCell<Vec<MysqlFingerprint>>,
    /// What it answered to the settings of connections that the node logged in on.
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
    fn learn_login(&self, fingerprint: &MysqlFingerprint) {
        let mut proven = self.known_logins.borrow_mut();
        if proven.len() < MAX_KNOWN_LOGINS && !proven.contains(fingerprint) {
            proven.push(fingerprint.clone());
        }
    }

    fn learn_setting(&self, of: MysqlFingerprint, setting: Vec<u8>, reply: Vec<u8>) {
        let mut known = self.known_settings.borrow_mut();
        if known.len() < MAX_KNOWN_LOGINS {
            known.push((of, setting, reply));
        }
    }

    /// What the server answered to a setting before.
    fn known_reply(&self, of: &MysqlFingerprint, setting: &[u8]) -> Option<Vec<u8>> {
        let known = self.known_settings.borrow();
        let found = known
            .iter()
            .find(|(other, text, _)| other == of && text == setting);
        found.map(|(_, _, reply)| reply.clone())
    }

    /// The server is not what it was, or was away: what it agreed to is asked for again.
    fn forget(&self) {
        self.known_settings.take();
        self.known_logins.take();
    }
}

/// Serves one client until it leaves.
///
/// # Errors
/// When its connection breaks, or its backend's: the client has lost its connection then, as it would have without the pool.
pub async fn serve(mut client: TcpStream, visit: ClientContext) -> io::Result<()> {
    let house = visit
        .upstream
        .adapters
        .state_of::<MysqlState>(&visit.upstream.destination);
    let Some(guest) = handshake::accept_client(&mut client, &visit, &house).await? else {
        return Ok(());
    };
    let mut relay = relay::MysqlRelay::new(client, visit, house, guest);
    let served = relay.run().await;
    relay.finish().await;
    served
}
