//! Handshake with a client: startup, authentication, and the session's parameters.
//!
//! The parameters are known from the first session of a kind. So every later client of that kind is
//! admitted without asking the server.

use std::time::{Duration, Instant};

use bytes::Buf;

use super::cancel::CancelRegistration;
use super::client_state::{ClientPassword, HandshakeError, PostgresClientState, admit_client};
use super::connection::PostgresConnection;
use super::login::PostgresBackendError;
use super::message::{self, sqlstate};
use super::startup::{self, FirstPacket, PostgresStartup};
use super::state::{ClientProof, PostgresState};
use super::{auth, startup::parse_first_packet};
use crate::ClientContext;
use crate::client_stream::ClientStream;

/// Time for a client's startup and authentication: PostgreSQL's default of
/// `authentication_timeout`.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// The client's own name. A setting that is restored, and no part of the fingerprint.
const APPLICATION_NAME: &str = "application_name";
const MAX_NAME_CHARS: usize = 63;

/// Reads the first packet of a connection, or the first after a request for encryption.
pub(super) async fn read_packet(
    client: &mut PostgresConnection<ClientStream>,
) -> Result<FirstPacket, HandshakeError> {
    let length = client.read_bytes(4).await?.get_u32() as usize;
    // Checked before the packet is read: the client has not authenticated, and the length decides
    // about memory.
    if !(8..=startup::MAX_PACKET_BYTES).contains(&length) {
        return Err(HandshakeError::Client(
            sqlstate::PROTOCOL_VIOLATION,
            format!("invalid startup packet of {length} bytes"),
        ));
    }
    match parse_first_packet(&client.read_bytes(length - 4).await?) {
        Some(FirstPacket::Unknown(code)) => {
            let what = format!(
                "unsupported protocol {}.{}: expected 3.0",
                code >> 16,
                code & 0xffff
            );
            Err(HandshakeError::Client("0A000", what))
        }
        Some(packet) => Ok(packet),
        None => Err(HandshakeError::Client(
            sqlstate::PROTOCOL_VIOLATION,
            "malformed startup packet".into(),
        )),
    }
}

/// Admits a client. The reply is left in the connection's output.
pub(super) async fn accept_client(
    client: &mut PostgresConnection<ClientStream>,
    mut startup: PostgresStartup,
    context: &ClientContext,
    state: &PostgresState,
    cancel_registration: &CancelRegistration,
) -> Result<PostgresClientState, HandshakeError> {
    // Names differ per process. As part of the fingerprint they would keep backends from being
    // shared.
    let name = startup.options.remove(APPLICATION_NAME).unwrap_or_default();
    startup.write_negotiation(&mut client.outgoing);
    let deadline = Instant::now() + context.upstream.destination.egress.wait;
    let mut client_state = match node_password(&mut startup, context)? {
        Some(password) => {
            admit_client(
                startup,
                ClientPassword::Known(password),
                ClientProof::Function,
                context,
                state,
                deadline,
            )
            .await?
        }
        None => auth::authenticate_client(client, startup, context, state, deadline).await?,
    };
    // PostgreSQL replaces the same characters and cuts at the same length (`NAMEDATALEN`), so the
    // client gets back what it expects.
    let name: String = name
        .chars()
        .map(|character| {
            if matches!(character, ' '..='~') {
                character
            } else {
                '?'
            }
        })
        .take(MAX_NAME_CHARS)
        .collect();
    if !name.is_empty() && client_state.parameters.contains_key(APPLICATION_NAME) {
        client_state
            .parameters
            .insert(APPLICATION_NAME.into(), name);
    }
    client
        .outgoing
        .extend_from_slice(message::AUTHENTICATION_OK);
    client_state
        .parameters
        .iter()
        .for_each(|(name, value)| message::write_parameter(&mut client.outgoing, name, value));
    // The key comes before ReadyForQuery: drivers read it during startup.
    message::write_key(&mut client.outgoing, cancel_registration.key);
    message::write_ready(&mut client.outgoing, super::backend_state::STATUS_IDLE);
    Ok(client_state)
}

/// Returns the node's password. Where the egress names a login, it replaces the client's user and
/// database.
fn node_password(
    startup: &mut PostgresStartup,
    context: &ClientContext,
) -> Result<Option<Option<Vec<u8>>>, PostgresBackendError> {
    let to = &context.upstream.destination;
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

/// Removes a line end, which secrets written with an editor have.
fn trim_line_end(secret: &[u8]) -> &[u8] {
    let secret = secret.strip_suffix(b"\n").unwrap_or(secret);
    secret.strip_suffix(b"\r").unwrap_or(secret)
}
