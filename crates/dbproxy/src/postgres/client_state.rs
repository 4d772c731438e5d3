//! Clients that have authenticated, and the backends for them.

use std::io;
use std::time::{Duration, Instant};

use super::backend::{PostgresBackend, UNPROBED_IDLE_AGE};
use super::backend_state::SessionParameters;
use super::login::{PostgresBackendError, log_in};
use super::startup::PostgresStartup;
use super::state::{ClientProof, PostgresFingerprint, PostgresState};
use crate::ClientContext;
use nearpath_connpool::idle::{AcquireOutcome, UsedConnection};

/// Time between two logins at a server that is starting up.
const START_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A client that has authenticated.
pub(super) struct PostgresClientState {
    /// Startup message for its backends.
    pub(super) startup: PostgresStartup,
    pub(super) password: ClientPassword,
    pub(super) fingerprint: PostgresFingerprint,
    pub(super) parameters: SessionParameters,
    /// The backend of its login.
    pub(super) backend: Option<UsedConnection<PostgresBackend>>,
}

/// Credentials for further logins.
pub(super) enum ClientPassword {
    /// This password; `None`: the server asks for none.
    Known(Option<Vec<u8>>),
    /// A proof that was valid for one session.
    Spent,
}

/// Reason why a client was not admitted.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// The client's connection broke.
    Disconnected(io::Error),
    /// No backend is available; the client gets this error.
    Backend(PostgresBackendError),
    /// The client violated the protocol; it gets this SQLSTATE and text.
    Client(&'static str, String),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Disconnected(error)
    }
}

impl From<PostgresBackendError> for HandshakeError {
    fn from(error: PostgresBackendError) -> Self {
        Self::Backend(error)
    }
}

/// Admits an authenticated client: at once if the parameters of such a session are known.
pub(super) async fn admit_client(
    startup: PostgresStartup,
    password: ClientPassword,
    proof: ClientProof,
    context: &ClientContext,
    state: &PostgresState,
    deadline: Instant,
) -> Result<PostgresClientState, PostgresBackendError> {
    let fingerprint = PostgresFingerprint::from_startup(&startup, proof);
    let mut client_state = PostgresClientState {
        startup,
        password,
        fingerprint,
        parameters: SessionParameters::new(),
        backend: None,
    };
    let fingerprint = &client_state.fingerprint;
    if let Some(current) = state.take_current(fingerprint).await {
        state
            .idle_pool
            .give_back(&context.upstream, fingerprint, current);
    }
    let parameters = match state.known_parameters(fingerprint) {
        Some(parameters) => parameters,
        None => {
            // The first session of a kind is opened now, because only the server knows its
            // parameters.
            let kept = client_state
                .acquire_backend(context, state, deadline)
                .await?;
            let initial = kept.connection.state.initial_parameters.clone();
            client_state.backend = Some(kept);
            initial
        }
    };
    client_state.parameters = parameters.borrow().clone();
    Ok(client_state)
}

impl PostgresClientState {
    /// Acquires a backend: an idle one, a returned one, or a new one. Waits until the deadline for
    /// a server that is starting up.
    pub(super) async fn acquire_backend(
        &self,
        context: &ClientContext,
        state: &PostgresState,
        deadline: Instant,
    ) -> Result<UsedConnection<PostgresBackend>, PostgresBackendError> {
        loop {
            match self.try_acquire_backend(context, state, deadline).await {
                // The server decides when it accepts a connection, not at the login. So one that
                // was opened during the start is refused even after it.
                Err(error)
                    if error.is_cannot_connect_now()
                        && Instant::now() + START_CHECK_INTERVAL < deadline =>
                {
                    tokio::time::sleep(START_CHECK_INTERVAL).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_acquire_backend(
        &self,
        context: &ClientContext,
        state: &PostgresState,
        deadline: Instant,
    ) -> Result<UsedConnection<PostgresBackend>, PostgresBackendError> {
        // A backend whose probe fails is closed, and the next one is tried until the deadline.
        let lease = loop {
            match state
                .idle_pool
                .acquire(&context.upstream, &self.fingerprint, deadline)
                .await?
            {
                AcquireOutcome::New(lease) => break lease,
                AcquireOutcome::Reused(kept) => {
                    let (backend, opened_at) = kept.into_parts();
                    if let Some(backend) = backend.probe(UNPROBED_IDLE_AGE).await {
                        return Ok(UsedConnection::new(backend, opened_at));
                    }
                }
            }
        };
        // A proof for one session cannot open another.
        let ClientPassword::Known(password) = &self.password else {
            return Err(PostgresBackendError::Unusable(
                "the function's proof was valid for one session only; connect again".into(),
            ));
        };
        let login = log_in(lease, context, &self.startup, password.as_deref());
        let backend = tokio::time::timeout_at(deadline.into(), login)
            .await
            .unwrap_or_else(|_| Err(login_timeout_error()));
        // The password may have been changed, so the next client asks the server again.
        let node_logs_in = context.upstream.destination.egress.login.is_some();
        let mut backend = backend.map_err(|error| {
            state.forget_session(&self.fingerprint);
            if node_logs_in {
                error.of_node_login(context)
            } else {
                error
            }
        })?;
        state.remember_parameters(&self.fingerprint, &mut backend.state);
        Ok(UsedConnection::new(backend, Instant::now()))
    }
}

pub(super) fn login_timeout_error() -> PostgresBackendError {
    PostgresBackendError::Unusable("the login took longer than `wait`".into())
}
