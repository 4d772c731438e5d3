//! A function that logs in by itself: its own password goes through to the server. What it proved there opens used sessions to the next client that proves
//! the same, as far as the method allows: with `trust` there is nothing to prove, a password in clear is compared with the one before, and an answer to
//! an MD5 challenge is, too, when the same salt is shown. SCRAM's proofs hold for one session, so that each client opens its own and keeps it.

use std::rc::Rc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use nearpath_types::egress::PoolingMode;
use postgres_protocol::authentication::sasl::SCRAM_SHA_256;
use tokio::net::TcpStream;

use super::backend::PostgresBackend;
use super::backend_state::BackendState;
use super::connection::PostgresConnection;
use super::frame::{HEADER_BYTES, split_text};
use super::handshake::{
    ClientPassword, HandshakeError, PostgresClientState, admit_client, login_timeout_error,
};
use super::login::{PostgresBackendError, open_connection};
use super::message;
use super::startup::PostgresStartup;
use super::state::{ClientProof, PasswordRequest, PostgresFingerprint, PostgresState};
use crate::ClientContext;
use nearpath_connpool::idle::{AcquireOutcome, UsedConnection};
use nearpath_connpool::socket::UpstreamSocket;

/// Codes of the messages 'R' (the protocol's chapter "Message Formats").
mod code {
    pub(super) const OK: u32 = 0;
    pub(super) const CLEARTEXT: u32 = 3;
    pub(super) const MD5: u32 = 5;
    pub(super) const SASL: u32 = 10;
    pub(super) const SASL_FINAL: u32 = 12;
}

/// Lets a client show its right, to this room if that can be, else to the server.
pub(super) async fn authenticate_client(
    client: &mut PostgresConnection<TcpStream>,
    startup: PostgresStartup,
    visit: &ClientContext,
    room: &PostgresState,
    deadline: Instant,
) -> Result<PostgresClientState, HandshakeError> {
    let asks = room.password_requests(&startup);
    let given = match asks {
        Some(PasswordRequest::Nothing) => {
            return Ok(admit_client(
                startup,
                ClientPassword::Known(None),
                ClientProof::Trust,
                visit,
                room,
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
    let proof = asks
        .zip(given.as_deref())
        .map(|(asks, given)| room.hash_proof(asks, given));
    if let Some(guest) =
        proof.and_then(|proof| reuse_proof(&startup, asks, given.as_deref(), proof, room))
    {
        return Ok(guest);
    }
    let cleartext = given.filter(|_| asks == Some(PasswordRequest::Cleartext));
    let shown = authenticate_at_server(client, startup, cleartext, visit, room, deadline);
    tokio::time::timeout_at(deadline.into(), shown)
        .await
        .unwrap_or_else(|_| Err(login_timeout_error().into()))
}

/// A client that has proved what one before it proved.
fn reuse_proof(
    startup: &PostgresStartup,
    asks: Option<PasswordRequest>,
    given: Option<&[u8]>,
    proof: ClientProof,
    room: &PostgresState,
) -> Option<PostgresClientState> {
    let fingerprint = PostgresFingerprint::from_startup(startup, proof);
    let welcome = room.known_parameters(&fingerprint)?;
    let backend = room.idle_pool.take(&fingerprint);
    let password = match (asks, given) {
        (Some(PasswordRequest::Cleartext), Some(password)) => {
            ClientPassword::Known(Some(password.to_vec()))
        }
        // Its answer opens no other session: there has to be one.
        _ if backend.is_some() => ClientPassword::Spent,
        _ => return None,
    };
    Some(PostgresClientState {
        startup: startup.clone(),
        password,
        fingerprint,
        parameters: Rc::unwrap_or_clone(welcome),
        backend,
    })
}

/// Asks the client in the server's stead, and takes its answer.
async fn ask_password(
    client: &mut PostgresConnection<TcpStream>,
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
    client: &mut PostgresConnection<TcpStream>,
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

/// Lets the server ask, on a connection that nobody has used.
async fn authenticate_at_server(
    client: &mut PostgresConnection<TcpStream>,
    startup: PostgresStartup,
    mut cleartext: Option<Bytes>,
    visit: &ClientContext,
    room: &PostgresState,
    deadline: Instant,
) -> Result<PostgresClientState, HandshakeError> {
    // Its fingerprint is nobody's, so that what comes is new.
    let AcquireOutcome::New(lease) = room
        .idle_pool
        .acquire(
            &visit.upstream,
            &PostgresFingerprint::from_startup(&startup, ClientProof::Once),
            deadline,
        )
        .await
        .map_err(PostgresBackendError::from)?
    else {
        return Err(HandshakeError::Backend(PostgresBackendError::Unusable(
            "a used connection came where a new one was asked for".into(),
        )));
    };
    let (mut line, at) = open_connection(lease, visit).await?;
    line.outgoing.extend_from_slice(&startup.encode());
    line.flush().await.map_err(PostgresBackendError::from)?;
    let (asks, given) = relay_authentication(client, &mut line, &mut cleartext).await?;
    let backend = PostgresBackend::new(line, BackendState::default(), at)
        .read_session_start()
        .await?;
    room.remember_request(&startup, asks);
    let (proof, password) = match (asks, given) {
        (PasswordRequest::Nothing, _) => (ClientProof::Trust, ClientPassword::Known(None)),
        (PasswordRequest::Cleartext, Some(given)) => (
            room.hash_proof(asks, &given),
            ClientPassword::Known(Some(given.to_vec())),
        ),
        (PasswordRequest::Md5(_), Some(given)) => {
            (room.hash_proof(asks, &given), ClientPassword::Spent)
        }
        _ => (ClientProof::Once, ClientPassword::Spent),
    };
    let fingerprint = PostgresFingerprint::from_startup(&startup, proof);
    let initial = backend.state.initial_parameters.clone();
    room.remember_parameters(&fingerprint, &initial);
    let backend = Some(UsedConnection::new(backend, Instant::now()));
    Ok(PostgresClientState {
        startup,
        password,
        fingerprint,
        parameters: Rc::unwrap_or_clone(initial),
        backend,
    })
}

/// Passes questions and answers on until the server is content. How it asked, and the last answer that can be compared.
async fn relay_authentication(
    client: &mut PostgresConnection<TcpStream>,
    server: &mut PostgresConnection<UpstreamSocket>,
    cleartext: &mut Option<Bytes>,
) -> Result<(PasswordRequest, Option<Bytes>), HandshakeError> {
    let (mut asks, mut given) = (PasswordRequest::Nothing, None);
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
                    "the server did not ask who comes".into(),
                )));
            }
        }
        let asked = u32::from_be_bytes(
            question[HEADER_BYTES..HEADER_BYTES + 4]
                .try_into()
                .expect("four bytes"),
        );
        asks = match asked {
            code::OK => return Ok((asks, given)),
            code::CLEARTEXT => PasswordRequest::Cleartext,
            code::MD5 => {
                PasswordRequest::Md5(question[HEADER_BYTES + 4..].try_into().map_err(|_| {
                    PostgresBackendError::Unusable("a salt of another length".into())
                })?)
            }
            _ => PasswordRequest::Unpredictable,
        };
        if asked == code::SASL_FINAL {
            client.outgoing.extend_from_slice(&question);
            continue;
        }
        let answer = match cleartext.take().filter(|_| asked == code::CLEARTEXT) {
            Some(known) => password_message(&known),
            None => {
                match asked {
                    code::SASL => offer_scram(&question, &mut client.outgoing)?,
                    _ => client.outgoing.extend_from_slice(&question),
                }
                read_answer(client).await?
            }
        };
        server.outgoing.extend_from_slice(&answer);
        server.flush().await.map_err(PostgresBackendError::from)?;
        given = split_text(&answer[HEADER_BYTES..]).map(|(text, _)| Bytes::copy_from_slice(text));
    }
}

fn password_message(password: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    message::write_message(&mut out, b'p', |out| message::write_text(out, password));
    out
}

/// The server's list without the methods that are bound to its TLS, of which the client sees nothing.
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
    /// Why this guest keeps the backend that it came in by.
    pub(super) fn pin_reason(&self, mode: PoolingMode) -> Option<&'static str> {
        (mode == PoolingMode::Transaction && matches!(self.password, ClientPassword::Spent))
            .then_some("the function's own password")
    }
}
