//! MySQL and MariaDB. A client keeps its backend until it leaves; then the backend is cleaned, and serves the next one. In mode `transaction` it is
//! given on as soon as the server says that none is open, while [`session_effect`] knows that nothing of the client is in it.
//!
//! Where the node logs in (`user=`), a client is welcomed at once, by the greeting that the server gave before, and gets a backend at its first command.
//! Otherwise the server itself asks each client for its password: over a connection that is there already, by `COM_CHANGE_USER`.
//!
//! [`frame`] finds where packets end, [`startup`] reads and writes those of the beginning, [`session`] is the state machine of one client, [`backend`]
//! logs in and cleans, [`relay`] moves the bytes.

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

use crate::Visit;
use backend::Backend;
use nearpath_connpool::adapter_state::{Idlers, Room};
use nearpath_connpool::destination::Destination;
use nearpath_connpool::idle::Bench;
use startup::Greeting;

/// Logins that are remembered at most, for one key.
const REMEMBERED: usize = 64;

/// Which backends serve whom.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fingerprint {
    can: u32,
    user: Vec<u8>,
    db: Vec<u8>,
    charset: u8,
    /// Statements that made it what it is.
    settings: Vec<Vec<u8>>,
}

/// What a connection was before, a statement, and the answer to it.
type Known = (Fingerprint, Vec<u8>, Vec<u8>);

/// What is kept from one client to the next.
struct House {
    bench: Rc<Bench<Fingerprint, Backend>>,
    /// The server's last one.
    greeting: RefCell<Option<Greeting>>,
    /// Held by who asks for it.
    first: tokio::sync::Mutex<()>,
    /// What the server let the node log in with.
    proven: RefCell<Vec<Fingerprint>>,
    /// What it answered to the settings of connections that the node logged in on.
    known: RefCell<Vec<Known>>,
}

impl Room for House {
    fn open(to: &Destination) -> Self {
        Self {
            bench: Bench::new(to),
            greeting: RefCell::default(),
            first: tokio::sync::Mutex::default(),
            proven: RefCell::default(),
            known: RefCell::default(),
        }
    }

    fn idlers(&self) -> Option<&dyn Idlers> {
        Some(&*self.bench)
    }
}

impl House {
    fn learn(&self, fingerprint: &Fingerprint) {
        let mut proven = self.proven.borrow_mut();
        if proven.len() < REMEMBERED && !proven.contains(fingerprint) {
            proven.push(fingerprint.clone());
        }
    }

    fn learn_setting(&self, of: Fingerprint, setting: Vec<u8>, reply: Vec<u8>) {
        let mut known = self.known.borrow_mut();
        if known.len() < REMEMBERED {
            known.push((of, setting, reply));
        }
    }

    /// What the server answered to a setting before.
    fn recall(&self, of: &Fingerprint, setting: &[u8]) -> Option<Vec<u8>> {
        let known = self.known.borrow();
        let found = known.iter().find(|(other, text, _)| other == of && text == setting);
        found.map(|(_, _, reply)| reply.clone())
    }

    /// The server is not what it was, or was away: what it agreed to is asked for again.
    fn forget(&self) {
        self.known.take();
        self.proven.take();
    }
}

/// Serves one client until it leaves.
///
/// # Errors
/// When its connection breaks, or its backend's: the client has lost its connection then, as it would have without the pool.
pub async fn serve(mut client: TcpStream, visit: Visit) -> io::Result<()> {
    let house = visit.upstream.rooms.of::<House>(&visit.upstream.destination);
    let Some(guest) = handshake::welcome(&mut client, &visit, &house).await? else { return Ok(()) };
    let mut relay = relay::Relay::new(client, visit, house, guest);
    let served = relay.run().await;
    relay.leave().await;
    served
}
