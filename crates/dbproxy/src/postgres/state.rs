//! State of one destination, shared by all its clients.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};
use std::time::Duration;

use ring::hmac;

use super::backend::PostgresBackend;
use super::backend_state::{BackendState, InitialParameters, SessionParameters, StatementNames};
use super::cancel::CancelKeys;
use super::startup::PostgresStartup;
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::idle::{IdlePool, UsedConnection};

/// Kinds of sessions whose parameters are remembered.
const MAX_KNOWN_SESSIONS: usize = 256;
/// Age of an idle session's last report after which a connecting client has it renewed.
const MAX_PARAMETER_AGE: Duration = Duration::from_secs(1);

/// Properties of a session. Sessions with equal fingerprints serve each other's clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PostgresFingerprint {
    user: String,
    database: String,
    options: BTreeMap<String, String>,
    proof: ClientProof,
}

/// Proof by which a client may use a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ClientProof {
    /// The client is the function: the node logs in.
    Function,
    /// The server asks for no password.
    Trust,
    /// A keyed hash of the password that opened the session.
    Password([u8; 32]),
    /// A proof that cannot be given twice.
    Once,
}

/// How the server asked for the function's own password the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PasswordRequest {
    Nothing,
    Cleartext,
    /// An MD5 challenge with this salt.
    Md5([u8; 4]),
    /// A challenge that cannot be predicted.
    Unpredictable,
}

/// The adapter's state of one destination.
pub(super) struct PostgresState {
    pub(super) idle_pool: Rc<IdlePool<PostgresFingerprint, PostgresBackend>>,
    pub(super) statement_names: StatementNames,
    pub(super) cancel_keys: Rc<CancelKeys>,
    /// Only sessions hold the parameters: no session, no knowledge.
    initial_parameters: RefCell<HashMap<PostgresFingerprint, Weak<RefCell<SessionParameters>>>>,
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

    /// Returns whether another client can give the same proof.
    pub(super) fn is_reusable(&self) -> bool {
        self.proof != ClientProof::Once
    }
}

impl PostgresState {
    /// Returns the parameters of such a session, if they are known.
    pub(super) fn known_parameters(
        &self,
        fingerprint: &PostgresFingerprint,
    ) -> Option<InitialParameters> {
        self.initial_parameters
            .borrow()
            .get(fingerprint)
            .and_then(Weak::upgrade)
    }

    /// Takes an idle session whose server has just confirmed its parameters. An idle session hears
    /// of a promotion or a reloaded configuration only when it is asked.
    pub(super) async fn take_current(
        &self,
        fingerprint: &PostgresFingerprint,
    ) -> Option<UsedConnection<PostgresBackend>> {
        while let Some(kept) = self.idle_pool.take(fingerprint) {
            let (backend, opened_at) = kept.into_parts();
            if let Some(backend) = backend.probe(MAX_PARAMETER_AGE).await {
                return Some(UsedConnection::new(backend, opened_at));
            }
        }
        None
    }

    /// Remembers the parameters of a session that has just begun.
    pub(super) fn remember_parameters(
        &self,
        fingerprint: &PostgresFingerprint,
        session: &mut BackendState,
    ) {
        if let Some(known) = self.known_parameters(fingerprint)
            && known == session.initial_parameters
        {
            session.initial_parameters = known;
            return;
        }
        let mut known = self.initial_parameters.borrow_mut();
        // Rare, and the entries come back with the next logins: an order of use is not worth its
        // bookkeeping.
        if known.len() >= MAX_KNOWN_SESSIONS {
            known.clear();
        }
        let values = Rc::downgrade(&session.initial_parameters);
        known.insert(fingerprint.clone(), values);
    }

    /// Forgets a session that the server has refused: the next client gets the error when it
    /// connects.
    pub(super) fn forget_session(&self, fingerprint: &PostgresFingerprint) {
        self.initial_parameters.borrow_mut().remove(fingerprint);
        self.password_requests
            .borrow_mut()
            .remove(&(fingerprint.user.clone(), fingerprint.database.clone()));
    }

    /// Returns how the server asked for this user's password.
    pub(super) fn password_request(&self, startup: &PostgresStartup) -> Option<PasswordRequest> {
        self.password_requests
            .borrow()
            .get(&(startup.user.clone(), startup.database.clone()))
            .copied()
    }

    pub(super) fn remember_request(&self, startup: &PostgresStartup, request: PasswordRequest) {
        let mut all = self.password_requests.borrow_mut();
        if all.len() >= MAX_KNOWN_SESSIONS {
            all.clear();
        }
        all.insert((startup.user.clone(), startup.database.clone()), request);
    }

    /// Returns a proof that can be compared and that is of no use elsewhere.
    pub(super) fn hash_proof(&self, request: PasswordRequest, answer: &[u8]) -> ClientProof {
        // The salt belongs to the proof: the same MD5 answer under another salt proves something
        // else.
        let salt = if let PasswordRequest::Md5(salt) = request {
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
        // A key per state: a leaked hash cannot be compared with hashes of other destinations.
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

/// Returns the adapter's state of the client's destination.
pub(super) fn state_of(context: &crate::ClientContext) -> Rc<PostgresState> {
    context
        .upstream
        .adapters
        .state_of(&context.upstream.destination)
}
