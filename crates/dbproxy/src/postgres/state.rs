//! What is kept from one client to the next.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use ring::hmac;

use super::backend::Backend;
use super::backend_state::{Names, Values};
use super::cancel::Seats;
use super::startup::Startup;
use nearpath_connpool::destination::Destination;
use nearpath_connpool::idle::Bench;

/// Kinds of sessions whose beginnings are remembered.
const MOST_WELCOMES: usize = 256;

/// Sessions of equal fingerprints serve each other's clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint {
    user: String,
    database: String,
    options: BTreeMap<String, String>,
    proof: Proof,
}

/// By what right a client uses a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Proof {
    /// It is the function: the node logs in.
    Function,
    /// The server asks nobody for a password.
    Trust,
    /// It gave the password that opened the session; this is a hash of it.
    Password([u8; 32]),
    /// It gave the server a proof that cannot be given twice.
    Once,
}

/// How the server asked for the function's own password the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asks {
    Nothing,
    Cleartext,
    /// With this salt.
    Md5([u8; 4]),
    /// In a way that cannot be foreseen.
    Anew,
}

/// The adapter's room for one key.
pub(super) struct Room {
    pub(super) bench: Rc<Bench<Fingerprint, Backend>>,
    pub(super) names: Names,
    pub(super) seats: Rc<Seats>,
    welcomes: RefCell<HashMap<Fingerprint, Rc<Values>>>,
    asks: RefCell<HashMap<(String, String), Asks>>,
    secret: hmac::Key,
}

impl Fingerprint {
    pub(super) fn of(startup: &Startup, proof: Proof) -> Self {
        let Startup { user, database, options, .. } = startup.clone();
        Self { user, database, options, proof }
    }

    /// Whether another client can show the same right.
    pub(super) fn is_shown_again(&self) -> bool {
        self.proof != Proof::Once
    }
}

impl Room {
    /// How a session begins, if that is known.
    pub(super) fn welcome(&self, fingerprint: &Fingerprint) -> Option<Rc<Values>> {
        self.welcomes.borrow().get(fingerprint).cloned()
    }

    /// A session began so.
    pub(super) fn remember(&self, fingerprint: &Fingerprint, values: &Rc<Values>) {
        let mut welcomes = self.welcomes.borrow_mut();
        if welcomes.len() >= MOST_WELCOMES {
            welcomes.clear();
        }
        welcomes.insert(fingerprint.clone(), values.clone());
    }

    /// The server has refused such a session: the next client is to hear so when it connects.
    pub(super) fn forget(&self, fingerprint: &Fingerprint) {
        self.welcomes.borrow_mut().remove(fingerprint);
        self.asks.borrow_mut().remove(&(fingerprint.user.clone(), fingerprint.database.clone()));
    }

    /// How the server asked for this user's password.
    pub(super) fn asks(&self, startup: &Startup) -> Option<Asks> {
        self.asks.borrow().get(&(startup.user.clone(), startup.database.clone())).copied()
    }

    pub(super) fn asked(&self, startup: &Startup, asks: Asks) {
        let mut all = self.asks.borrow_mut();
        if all.len() >= MOST_WELCOMES {
            all.clear();
        }
        all.insert((startup.user.clone(), startup.database.clone()), asks);
    }

    /// A proof that can be compared and not used elsewhere.
    pub(super) fn proof(&self, asks: Asks, answer: &[u8]) -> Proof {
        let salt = if let Asks::Md5(salt) = asks { salt } else { [0; 4] };
        let tag = hmac::sign(&self.secret, &[&salt, answer].concat());
        Proof::Password(tag.as_ref().try_into().expect("SHA-256 gives 32 bytes"))
    }
}

impl nearpath_connpool::adapter_state::Room for Room {
    fn open(to: &Destination) -> Self {
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new());
        Self {
            bench: Bench::new(to),
            names: Names::default(),
            seats: Rc::default(),
            welcomes: RefCell::default(),
            asks: RefCell::default(),
            secret: secret.expect("the kernel has random bytes"),
        }
    }

    fn idlers(&self) -> Option<&dyn nearpath_connpool::adapter_state::Idlers> {
        Some(&*self.bench)
    }
}

/// The room of a destination.
pub(super) fn of(visit: &crate::Visit) -> Rc<Room> {
    visit.upstream.rooms.of(&visit.upstream.destination)
}
