//! Logins with the function's own password, which goes through to the server.
//!
//! A client that gives the same proof as an earlier one gets that one's session, as far as the
//! method allows. With `trust` there is nothing to prove. A cleartext password is compared with the
//! earlier one. So is the answer to an MD5 challenge, if the client gets the same salt. A SCRAM
//! proof is valid for one session, so each such client opens a backend and keeps it.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use nearpath_types::egress::PoolingMode;
use postgres_protocol::authentication::sasl::SCRAM_SHA_256;

use super::backend::PostgresBackend;
use super::backend_state::BackendState;
use super::client_state::{
    ClientPassword, HandshakeError, PostgresClientState, admit_client, login_timeout_error,
};
use super::connection::PostgresConnection;
use super::frame::{HEADER_BYTES, split_text};
use super::login::{PostgresBackendError, open_connection, send_startup};
use super::message;
use super::startup::PostgresStartup;
use super::state::{ClientProof, PasswordRequest, PostgresFingerprint, PostgresState};
use crate::ClientContext;
use crate::client_stream::ClientStream;
use nearpath_connpool::idle::{AcquireOutcome, UsedConnection};
use nearpath_connpool::pool::ConnectionLease;
use nearpath_connpool::socket::UpstreamSocket;

/// Codes of the messages 'R' (the manual's chapter "Message Formats").
mod code {
    pub(super) const OK: u32 = 0;
    pub(super) const CLEARTEXT: u32 = 3;
    pub(super) const MD5: u32 = 5;
    pub(super) const SASL: u32 = 10;
    pub(super) const SASL_FINAL: u32 = 12;
}

/// Authenticates a client: by an earlier proof if possible, else at the server.
pub(super) async fn authenticate_client(
    client: &mut PostgresConnection<ClientStream>,
    startup: PostgresStartup,
    context: &ClientContext,
    state: &PostgresState,
    deadline: Instant,
) -> Result<PostgresClientState, HandshakeError> {
    let request = state.password_request(&startup);
    let answer_given = match request {
        Some(PasswordRequest::Nothing) => {
            return Ok(admit_client(
                startup,
                ClientPassword::Known(None),
                ClientProof::Trust,
                context,
                state,
                deadline,
            )
            .await?);
        }
        Some(PasswordRequest::Cleartext) => {
            Some(ask_password(client, message::CLEARTEXT_REQUEST).await?)
        }
        Some(PasswordRequest::Md5(salt)) => {
            Some(ask_password(client, &message::md5_request(salt)).await?)
        }
        _ => None,
    };
    let proof = request
        .zip(answer_given.as_deref())
        .map(|(request, answer_given)| state.hash_proof(request, answer_given));
    if let Some(proof) = proof
        && let Some(client_state) =
            reuse_proof(&startup, request, answer_given.as_deref(), proof, state).await
    {
        return Ok(client_state);
    }
    let lease = acquire_unused(&startup, context, state, deadline).await?;
    // A cleartext password can answer the server's question, too, so the client is not asked twice.
    let cleartext = answer_given.filter(|_| request == Some(PasswordRequest::Cleartext));
    let dialogue = authenticate_at_server(client, startup, cleartext, context, state, lease);
    // The client can delay its answers, so the deadline bounds the dialogue. The wait for a
    // connection has its own errors.
    tokio::time::timeout_at(deadline.into(), dialogue)
        .await
        .unwrap_or_else(|_| Err(login_timeout_error().into()))
}

/// Returns the state of a client that has given the same proof as an earlier one.
async fn reuse_proof(
    startup: &PostgresStartup,
    request: Option<PasswordRequest>,
    answer_given: Option<&[u8]>,
    proof: ClientProof,
    state: &PostgresState,
) -> Option<PostgresClientState> {
    let fingerprint = PostgresFingerprint::from_startup(startup, proof);
    state.known_parameters(&fingerprint)?;
    let backend = state.take_current(&fingerprint).await;
    // Asked again, because the sessions may have ended.
    let parameters = state.known_parameters(&fingerprint)?.borrow().clone();
    let password = match (request, answer_given) {
        (Some(PasswordRequest::Cleartext), Some(password)) => {
            ClientPassword::Known(Some(password.to_vec()))
        }
        // Its answer opens no other session, so an idle one is required.
        _ if backend.is_some() => ClientPassword::Spent,
        _ => return None,
    };
    Some(PostgresClientState {
        startup: startup.clone(),
        password,
        fingerprint,
        parameters,
        backend,
    })
}

/// Asks the client in place of the server, and returns its answer.
async fn ask_password(
    client: &mut PostgresConnection<ClientStream>,
    question: &[u8],
) -> Result<Bytes, HandshakeError> {
    client.outgoing.extend_from_slice(question);
    read_answer(client).await.map(|message| {
        let body = message.freeze().slice(HEADER_BYTES..);
        body.strip_suffix(&[0])
            .map_or_else(|| body.clone(), |text| body.slice_ref(text))
    })
}

async fn read_answer(
    client: &mut PostgresConnection<ClientStream>,
) -> Result<BytesMut, HandshakeError> {
    client.flush().await?;
    let message = client.read_message().await?;
    if message[0] == b'p' {
        return Ok(message);
    }
    Err(HandshakeError::Client(
        message::sqlstate::INVALID_PASSWORD,
        "a password was expected".into(),
    ))
}

/// Acquires an unused connection, which the client's own login needs.
async fn acquire_unused(
    startup: &PostgresStartup,
    context: &ClientContext,
    state: &PostgresState,
    deadline: Instant,
) -> Result<ConnectionLease, PostgresBackendError> {
    // Backends with such a proof are never given back, so no used connection can match.
    let fingerprint = PostgresFingerprint::from_startup(startup, ClientProof::Once);
    match state
        .idle_pool
        .acquire(&context.upstream, &fingerprint, deadline)
        .await?
    {
        AcquireOutcome::New(lease) => Ok(lease),
        AcquireOutcome::Reused(_) => Err(PostgresBackendError::Unusable(
            "expected a new connection, got a used one".into(),
        )),
    }
}

/// Lets the server ask the client, on an unused connection.
async fn authenticate_at_server(
    client: &mut PostgresConnection<ClientStream>,
    startup: PostgresStartup,
    mut cleartext: Option<Bytes>,
    context: &ClientContext,
    state: &PostgresState,
    lease: ConnectionLease,
) -> Result<PostgresClientState, HandshakeError> {
    let (mut connection, addr) = open_connection(lease, context).await?;
    send_startup(&mut connection, &startup)
        .await
        .map_err(PostgresBackendError::from)?;
    let (request, answer_given) =
        relay_authentication(client, &mut connection, &mut cleartext).await?;
    let mut backend = PostgresBackend::new(connection, BackendState::default(), addr)
        .read_session_start()
        .await?;
    state.remember_request(&startup, request);
    let (proof, password) = match (request, answer_given) {
        (PasswordRequest::Nothing, _) => (ClientProof::Trust, ClientPassword::Known(None)),
        (PasswordRequest::Cleartext, Some(answer_given)) => (
            state.hash_proof(request, &answer_given),
            ClientPassword::Known(Some(answer_given.to_vec())),
        ),
        (PasswordRequest::Md5(_), Some(answer_given)) => (
            state.hash_proof(request, &answer_given),
            ClientPassword::Spent,
        ),
        _ => (ClientProof::Once, ClientPassword::Spent),
    };
    let fingerprint = PostgresFingerprint::from_startup(&startup, proof);
    state.remember_parameters(&fingerprint, &mut backend.state);
    let parameters = backend.state.initial_parameters.borrow().clone();
    // The login may have spent the proof, so this backend may be the only one that the client can
    // have.
    let backend = Some(UsedConnection::new(backend, Instant::now()));
    Ok(PostgresClientState {
        startup,
        password,
        fingerprint,
        parameters,
        backend,
    })
}

/// Relays questions and answers until the server accepts. Returns the method, and the last answer
/// if it can be compared.
async fn relay_authentication(
    client: &mut PostgresConnection<ClientStream>,
    server: &mut PostgresConnection<UpstreamSocket>,
    cleartext: &mut Option<Bytes>,
) -> Result<(PasswordRequest, Option<Bytes>), HandshakeError> {
    let (mut request, mut answer_given) = (PasswordRequest::Nothing, None);
    loop {
        let question = server
            .read_message()
            .await
            .map_err(PostgresBackendError::from)?;
        match (question[0], question.get(HEADER_BYTES..HEADER_BYTES + 4)) {
            (b'E', _) => {
                return Err(HandshakeError::Backend(PostgresBackendError::Refused(
                    question.freeze(),
                )));
            }
            (b'N', _) => continue,
            (b'R', Some(_)) => {}
            _ => {
                return Err(HandshakeError::Backend(PostgresBackendError::Unusable(
                    "expected an authentication request from the server".into(),
                )));
            }
        }
        let code_received = u32::from_be_bytes(
            question[HEADER_BYTES..HEADER_BYTES + 4]
                .try_into()
                .expect("four bytes"),
        );
        request = match code_received {
            code::OK => return Ok((request, answer_given)),
            // Only these methods give an answer that a later client can repeat.
            code::CLEARTEXT => PasswordRequest::Cleartext,
            code::MD5 => {
                PasswordRequest::Md5(question[HEADER_BYTES + 4..].try_into().map_err(|_| {
                    PostgresBackendError::Unusable("a salt of another length".into())
                })?)
            }
            _ => PasswordRequest::Unpredictable,
        };
        // The last message of SCRAM is not a question; an OK follows it.
        if code_received == code::SASL_FINAL {
            client.outgoing.extend_from_slice(&question);
            continue;
        }
        let answer = match cleartext
            .take()
            .filter(|_| code_received == code::CLEARTEXT)
        {
            Some(known) => password_message(&known),
            None => {
                match code_received {
                    // Offered with channel binding, a client would bind its proof to a TLS
                    // connection that it does not have.
                    code::SASL => offer_scram(&question, &mut client.outgoing)?,
                    _ => client.outgoing.extend_from_slice(&question),
                }
                read_answer(client).await?
            }
        };
        server.outgoing.extend_from_slice(&answer);
        server.flush().await.map_err(PostgresBackendError::from)?;
        answer_given =
            split_text(&answer[HEADER_BYTES..]).map(|(text, _)| Bytes::copy_from_slice(text));
    }
}

fn password_message(password: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    message::write_message(&mut out, b'p', |out| message::write_text(out, password));
    out
}

/// Writes the server's list of methods without those that are bound to its TLS connection, which
/// the client does not see.
fn offer_scram(question: &[u8], out: &mut BytesMut) -> Result<(), PostgresBackendError> {
    let mut methods = question[HEADER_BYTES + 4..].split(|&byte| byte == 0);
    if !methods.any(|method| method == SCRAM_SHA_256.as_bytes()) {
        return Err(PostgresBackendError::Unusable(
            "the server offers no SCRAM-SHA-256".into(),
        ));
    }
    message::write_message(out, b'R', |out| {
        out.extend_from_slice(&code::SASL.to_be_bytes());
        message::write_text(out, SCRAM_SHA_256.as_bytes());
        out.extend_from_slice(&[0]);
    });
    Ok(())
}

impl PostgresClientState {
    /// Returns why a client keeps the backend of its login.
    pub(super) fn pin_reason(&self, mode: PoolingMode) -> Option<&'static str> {
        (mode == PoolingMode::Transaction && matches!(self.password, ClientPassword::Spent))
            .then_some("the function's own password")
    }
}
