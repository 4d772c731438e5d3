//! MySQL and MariaDB: a client keeps its backend until it leaves; then the backend is cleaned and
//! serves the next client.
//!
//! In mode `transaction` the backend is released earlier: when the server reports that no
//! transaction is open, and [`session_effect`] knows that nothing of the client is left in it.
//!
//! If the node logs in (`user=`), the adapter greets a client at once with the server's last
//! greeting. The client gets a backend at its first command. Otherwise the server itself asks each
//! client for its password, on an existing connection with `COM_CHANGE_USER`.
//!
//! [`frame`] finds the ends of packets, [`startup`] parses and encodes the packets of the
//! connection phase. [`session`] is the state machine of one client, [`backend`] logs in and
//! cleans, and [`relay`] moves the bytes.

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

/// Logins and settings that are remembered per destination.
const MAX_KNOWN_LOGINS: usize = 64;

/// Properties of a session. Connections with equal fingerprints serve each other's clients.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MysqlFingerprint {
    capabilities: u32,
    user: Vec<u8>,
    db: Vec<u8>,
    charset: u8,
    /// Statements that set the session up.
    settings: Vec<Vec<u8>>,
}

/// A fingerprint, a setting sent on such a connection, and the server's reply.
type KnownSetting = (MysqlFingerprint, Vec<u8>, Vec<u8>);

/// State of one destination, shared by all its clients.
struct MysqlState {
    idle_pool: Rc<IdlePool<MysqlFingerprint, MysqlBackend>>,
    /// The server's last greeting.
    greeting: RefCell<Option<MysqlGreeting>>,
    /// Held while a client fetches the greeting.
    greeting_lock: tokio::sync::Mutex<()>,
    /// Logins that the server has accepted from the node.
    known_logins: RefCell<Vec<MysqlFingerprint>>,
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
    fn learn_login(&self, fingerprint: &MysqlFingerprint) {
        // Full tables take no more entries: a client without one only pays for a backend at its
        // start.
        let mut proven = self.known_logins.borrow_mut();
        if proven.len() < MAX_KNOWN_LOGINS && !proven.contains(fingerprint) {
            proven.push(fingerprint.clone());
        }
    }

    fn learn_setting(&self, before: MysqlFingerprint, setting: Vec<u8>, reply: Vec<u8>) {
        let mut known = self.known_settings.borrow_mut();
        if known.len() < MAX_KNOWN_LOGINS {
            known.push((before, setting, reply));
        }
    }

    /// Returns the server's earlier reply to a setting.
    fn known_reply(&self, before: &MysqlFingerprint, setting: &[u8]) -> Option<Vec<u8>> {
        let known = self.known_settings.borrow();
        let found = known
            .iter()
            .find(|(other, text, _)| other == before && text == setting);
        found.map(|(_, _, reply)| reply.clone())
    }

    /// Forgets accepted logins and settings: the server has changed, or was unreachable.
    fn forget(&self) {
        self.known_settings.take();
        self.known_logins.take();
    }
}

/// Serves one client until it leaves.
///
/// # Errors
/// Fails when the client's connection breaks, or its backend's. Without a pool the client would
/// lose its connection, too.
pub async fn serve(mut client: TcpStream, context: ClientContext) -> io::Result<()> {
    let state = context
        .upstream
        .adapters
        .state_of::<MysqlState>(&context.upstream.destination);
    let Some(client_state) = handshake::accept_client(&mut client, &context, &state).await? else {
        return Ok(());
    };
    let mut relay = relay::MysqlRelay::new(client, context, state, client_state);
    let served = relay.run().await;
    // Runs after errors as well: a backend that is in order is cleaned and returned even when the
    // client failed.
    relay.finish().await;
    served
}
