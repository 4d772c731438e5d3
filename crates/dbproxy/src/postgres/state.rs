//! What is kept from one client to the next.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use ring::hmac;

use super::backend::PostgresBackend;
use super::backend_state::{SessionParameters, StatementNames};
use super::cancel::CancelKeys;
use super::startup::PostgresStartup;
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::idle::IdlePool;

/// Kinds of sessions whose beginnings are remembered.
const MAX_KNOWN_SESSIONS: usize = 256;

/// Sessions of equal fingerprints serve each other's clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PostgresFingerprint {
    user: String,
    database: String,
    options: BTreeMap<String, String>,
    proof: ClientProof,
}

/// By what right a client uses a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ClientProof {
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
pub(super) enum PasswordRequest {
    Nothing,
    Cleartext,
    /// With this salt.
    Md5([u8; 4]),
    /// In a way that cannot be foreseen.
    Unpredictable,
}

/// The adapter's room for one key.
pub(super) struct PostgresState {
    pub(super) idle_pool: Rc<IdlePool<PostgresFingerprint, PostgresBackend>>,
    pub(super) statement_names: StatementNames,
    pub(super) cancel_keys: Rc<CancelKeys>,
    initial_parameters: RefCell<HashMap<PostgresFingerprint, Rc<SessionParameters>>>,
    password_requests: RefCell<HashMap<(String, String), PasswordRequest>>,
    proof_key: hmac::Key,
}

impl PostgresFingerprint {
    pub(super) fn from_startup(startup: &PostgresStartup, proof: ClientProof) -> Self {
        let PostgresStartup {
            user,
            database,
            options,
            ..
        } = startup.clone();
        Self {
            user,
            database,
            options,
            proof,
        }
    }

    /// Whether another client can show the same right.
    pub(super) fn is_reusable(&self) -> bool {
        self.proof != ClientProof::Once
    }
}

impl PostgresState {
    /// How a session begins, if that is known.
    pub(super) fn known_parameters(
        &self,
        fingerprint: &PostgresFingerprint,
    ) -> Option<Rc<SessionParameters>> {
        self.initial_parameters.borrow().get(fingerprint).cloned()
    }

    /// A session began so.
    pub(super) fn remember_parameters(
        &self,
        fingerprint: &PostgresFingerprint,
        values: &Rc<SessionParameters>,
    ) {
        let mut welcomes = self.initial_parameters.borrow_mut();
        if welcomes.len() >= MAX_KNOWN_SESSIONS {
            welcomes.clear();
        }
        welcomes.insert(fingerprint.clone(), values.clone());
    }

    /// The server has refused such a session: the next client is to hear so when it connects.
    pub(super) fn forget_session(&self, fingerprint: &PostgresFingerprint) {
        self.initial_parameters.borrow_mut().remove(fingerprint);
        self.password_requests
            .borrow_mut()
            .remove(&(fingerprint.user.clone(), fingerprint.database.clone()));
    }

    /// How the server asked for this user's password.
    pub(super) fn password_requests(&self, startup: &PostgresStartup) -> Option<PasswordRequest> {
        self.password_requests
            .borrow()
            .get(&(startup.user.clone(), startup.database.clone()))
            .copied()
    }

    pub(super) fn remember_request(&self, startup: &PostgresStartup, asks: PasswordRequest) {
        let mut all = self.password_requests.borrow_mut();
        if all.len() >= MAX_KNOWN_SESSIONS {
            all.clear();
        }
        all.insert((startup.user.clone(), startup.database.clone()), asks);
    }

    /// A proof that can be compared and not used elsewhere.
    pub(super) fn hash_proof(&self, asks: PasswordRequest, answer: &[u8]) -> ClientProof {
        let salt = if let PasswordRequest::Md5(salt) = asks {
            salt
        } else {
            [0; 4]
        };
        let tag = hmac::sign(&self.proof_key, &[&salt, answer].concat());
        ClientProof::Password(tag.as_ref().try_into().expect("SHA-256 gives 32 bytes"))
    }
}

impl nearpath_connpool::adapter_state::AdapterState for PostgresState {
    fn for_destination(to: &EgressDestination) -> Self {
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new());
        Self {
            idle_pool: IdlePool::new(to),
            statement_names: StatementNames::default(),
            cancel_keys: Rc::default(),
            initial_parameters: RefCell::default(),
            password_requests: RefCell::default(),
            proof_key: secret.expect("the kernel has random bytes"),
        }
    }

    fn idle_connections(&self) -> Option<&dyn nearpath_connpool::adapter_state::IdleConnections> {
        Some(&*self.idle_pool)
    }
}

/// The room of a destination.
pub(super) fn state_of(visit: &crate::ClientContext) -> Rc<PostgresState> {
    visit
        .upstream
        .adapters
        .state_of(&visit.upstream.destination)
}
