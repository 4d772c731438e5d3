//! How a client comes in: it says who it is, shows by what right, and hears how its session begins. What the server would say is known from the first
//! session of its kind, so that the second client and all after it are let in without asking the server.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Buf;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::backend::PostgresBackend;
use super::backend_state::SessionParameters;
use super::cancel::CancelRegistration;
use super::connection::PostgresConnection;
use super::login::{PostgresBackendError, log_in};
use super::message::{self, sqlstate};
use super::startup::{self, FirstPacket, PostgresStartup};
use super::state::{ClientProof, PostgresFingerprint, PostgresState};
use super::{auth, startup::parse_first_packet};
use crate::ClientContext;
use nearpath_connpool::idle::{AcquireOutcome, UsedConnection};

/// Longest that a client may take to say who it is, and to show it; PostgreSQL's `authentication_timeout` is a minute, too.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// What a client wishes to be called. It is no part of a fingerprint, but restored as a setting.
const APPLICATION_NAME: &str = "application_name";
const MAX_NAME_CHARS: usize = 63;

/// A client that is in.
pub(super) struct PostgresClientState {
    /// How backends for it are logged in at.
    pub(super) startup: PostgresStartup,
    pub(super) password: ClientPassword,
    pub(super) fingerprint: PostgresFingerprint,
    pub(super) parameters: SessionParameters,
    /// The one that it came in by.
    pub(super) backend: Option<UsedConnection<PostgresBackend>>,
}

/// What there is to log in with once more.
pub(super) enum ClientPassword {
    /// This.
    Known(Option<Vec<u8>>),
    /// A proof that was good for one session.
    Spent,
}

/// Why a client did not come in.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// Nobody speaks any more.
    Disconnected(io::Error),
    /// It hears this.
    Backend(PostgresBackendError),
    /// It hears this, too: the fault is its own.
    Client(&'static str, String),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Disconnected(error)
    }
}

impl From<PostgresBackendError> for HandshakeError {
    fn from(unfit: PostgresBackendError) -> Self {
        Self::Backend(unfit)
    }
}

/// The first thing that a client says, after it was told that nothing is encrypted here.
pub(super) async fn read_first_packet(
    client: &mut PostgresConnection<TcpStream>,
) -> Result<FirstPacket, HandshakeError> {
    let hearing = async {
        loop {
            let length = client.read_bytes(4).await?.get_u32() as usize;
            if !(8..=startup::MAX_PACKET_BYTES).contains(&length) {
                return Err(HandshakeError::Client(
                    sqlstate::PROTOCOL_VIOLATION,
                    format!("a first message of {length} bytes"),
                ));
            }
            match parse_first_packet(&client.read_bytes(length - 4).await?) {
                Some(FirstPacket::Encryption) => client.stream.write_all(b"N").await?,
                Some(FirstPacket::Unknown(code)) => {
                    let what = format!(
                        "protocol {}.{} is not spoken here, 3.0 is",
                        code >> 16,
                        code & 0xffff
                    );
                    return Err(HandshakeError::Client("0A000", what));
                }
                Some(opening) => return Ok(opening),
                None => {
                    return Err(HandshakeError::Client(
                        sqlstate::PROTOCOL_VIOLATION,
                        "a first message that cannot be read".into(),
                    ));
                }
            }
        }
    };
    let late = |_| HandshakeError::Disconnected(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(HANDSHAKE_TIMEOUT, hearing)
        .await
        .map_err(late)?
}

/// Lets a client in. The answer waits in its line's `out`.
pub(super) async fn accept_client(
    client: &mut PostgresConnection<TcpStream>,
    mut startup: PostgresStartup,
    visit: &ClientContext,
    room: &PostgresState,
    seat: &CancelRegistration,
) -> Result<PostgresClientState, HandshakeError> {
    let name = startup.options.remove(APPLICATION_NAME).unwrap_or_default();
    startup.write_negotiation(&mut client.outgoing);
    let deadline = Instant::now() + visit.upstream.destination.egress.wait;
    let mut guest = match node_password(&mut startup, visit)? {
        Some(password) => {
            admit_client(
                startup,
                ClientPassword::Known(password),
                ClientProof::Function,
                visit,
                room,
                deadline,
            )
            .await?
        }
        None => auth::authenticate_client(client, startup, visit, room, deadline).await?,
    };
    let name: String = name
        .chars()
        .map(|letter| {
            if matches!(letter, ' '..='~') {
                letter
            } else {
                '?'
            }
        })
        .take(MAX_NAME_CHARS)
        .collect();
    if !name.is_empty() && guest.parameters.contains_key(APPLICATION_NAME) {
        guest.parameters.insert(APPLICATION_NAME.into(), name);
    }
    client
        .outgoing
        .extend_from_slice(message::AUTHENTICATION_OK);
    guest
        .parameters
        .iter()
        .for_each(|(name, value)| message::write_parameter(&mut client.outgoing, name, value));
    message::write_key(&mut client.outgoing, seat.key);
    message::write_ready(&mut client.outgoing, super::backend_state::STATUS_IDLE);
    Ok(guest)
}

/// Where the egress says as whom to log in, that is who the client is, whatever it calls itself.
fn node_password(
    startup: &mut PostgresStartup,
    visit: &ClientContext,
) -> Result<Option<Option<Vec<u8>>>, PostgresBackendError> {
    let to = &visit.upstream.destination;
    let Some(login) = &to.egress.login else {
        return Ok(None);
    };
    startup.user.clone_from(&login.user);
    login
        .database
        .iter()
        .for_each(|database| startup.database.clone_from(database));
    let secret = login.password.as_ref().map(|secret| {
        let missing = || {
            PostgresBackendError::Unusable(format!(
                "`password=secret:{secret}`: the function has no such secret"
            ))
        };
        to.secrets
            .get(secret)
            .map(|password| trim_line_end(password).to_vec())
            .ok_or_else(missing)
    });
    Ok(Some(secret.transpose()?))
}

/// Secrets that were written with an editor end in one.
fn trim_line_end(secret: &[u8]) -> &[u8] {
    let secret = secret.strip_suffix(b"\n").unwrap_or(secret);
    secret.strip_suffix(b"\r").unwrap_or(secret)
}

/// Lets a client in whose right is shown: at once if it is known how such a session begins.
pub(super) async fn admit_client(
    startup: PostgresStartup,
    password: ClientPassword,
    proof: ClientProof,
    visit: &ClientContext,
    room: &PostgresState,
    deadline: Instant,
) -> Result<PostgresClientState, PostgresBackendError> {
    let fingerprint = PostgresFingerprint::from_startup(&startup, proof);
    let mut guest = PostgresClientState {
        startup,
        password,
        fingerprint,
        parameters: SessionParameters::new(),
        backend: None,
    };
    let welcome = match room.known_parameters(&guest.fingerprint) {
        Some(welcome) => welcome,
        None => {
            let kept = guest.acquire_backend(visit, room, deadline).await?;
            let initial = kept.connection.state.initial_parameters.clone();
            guest.backend = Some(kept);
            room.remember_parameters(&guest.fingerprint, &initial);
            initial
        }
    };
    guest.parameters = Rc::unwrap_or_clone(welcome);
    Ok(guest)
}

impl PostgresClientState {
    /// A backend for it: one that is idle, one that is given back, or a new one.
    pub(super) async fn acquire_backend(
        &self,
        visit: &ClientContext,
        room: &PostgresState,
        deadline: Instant,
    ) -> Result<UsedConnection<PostgresBackend>, PostgresBackendError> {
        let lease = loop {
            match room
                .idle_pool
                .acquire(&visit.upstream, &self.fingerprint, deadline)
                .await?
            {
                AcquireOutcome::New(lease) => break lease,
                AcquireOutcome::Reused(kept) => {
                    let (backend, born) = kept.into_parts();
                    if let Some(backend) = backend.probe().await {
                        return Ok(UsedConnection::new(backend, born));
                    }
                }
            }
        };
        let ClientPassword::Known(password) = &self.password else {
            return Err(PostgresBackendError::Unusable(
                "the function's password was good for one session only".into(),
            ));
        };
        let login = log_in(lease, visit, &self.startup, password.as_deref());
        let backend = tokio::time::timeout_at(deadline.into(), login)
            .await
            .unwrap_or_else(|_| Err(login_timeout_error()));
        let backend = backend.inspect_err(|_| room.forget_session(&self.fingerprint))?;
        Ok(UsedConnection::new(backend, Instant::now()))
    }
}

pub(super) fn login_timeout_error() -> PostgresBackendError {
    PostgresBackendError::Unusable("the server took longer than `wait` to let the node in".into())
}
