//! The node logs in at a server, as whom the egress says.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use nearpath_types::egress::EgressTls;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::backend::PostgresBackend;
use super::backend_state::BackendState;
use super::connection::PostgresConnection;
use super::frame::HEADER_BYTES;
use super::message::{self, sqlstate};
use super::startup::PostgresStartup;
use crate::ClientContext;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::pool::{ConnectionLease, NoConnection};
use nearpath_connpool::socket::UpstreamSocket;
use nearpath_connpool::tls;

/// Why there is no backend.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostgresBackendError {
    #[error("{0}")]
    NoConnection(#[from] NoConnection),
    /// An ErrorResponse of the server's.
    #[error("the server refused")]
    Refused(Bytes),
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("{0}")]
    Unusable(String),
}

impl PostgresBackendError {
    /// One more client that got no connection; whom the keeper refused it has counted itself.
    pub(super) fn count_refusal(&self, ledger: &DestinationCounters) {
        if !matches!(self, Self::NoConnection(_)) {
            DestinationCounters::increase(&ledger.refused, 1);
        }
    }

    /// What the client hears.
    pub(super) fn to_message(&self, to: &str) -> Bytes {
        match self {
            Self::NoConnection(why) => message::no_connection_error(why),
            Self::Refused(error) => error.clone(),
            Self::Broken(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                message::fatal_error(
                    sqlstate::CONNECTION_FAILURE,
                    &format!("nearpath: {to} closed the connection"),
                    "",
                )
            }
            Self::Broken(error) => message::fatal_error(
                sqlstate::CONNECTION_FAILURE,
                &format!("nearpath: {to}: {error}"),
                "",
            ),
            Self::Unusable(what) => message::fatal_error(
                sqlstate::CONNECTION_FAILURE,
                &format!("nearpath: {to}: {what}"),
                "",
            ),
        }
    }
}

/// A new connection, with TLS on it where the node speaks that, and where it goes.
pub(super) async fn open_connection(
    mut lease: ConnectionLease,
    visit: &ClientContext,
) -> Result<(PostgresConnection<UpstreamSocket>, SocketAddr), PostgresBackendError> {
    let at = lease.stream.peer_addr()?;
    if visit.upstream.destination.egress.tls != EgressTls::Pass {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        lease.stream.write_all(&request).await?;
        if lease.stream.read_u8().await? != b'S' {
            return Err(PostgresBackendError::Unusable(
                "it speaks no TLS, which `tls=originate` asks for".into(),
            ));
        }
    }
    Ok((
        PostgresConnection::new(
            tls::wrap_lease(lease, &visit.upstream.destination, &visit.upstream.adapters).await?,
        ),
        at,
    ))
}

/// Logs in on a new connection.
pub(super) async fn log_in(
    lease: ConnectionLease,
    visit: &ClientContext,
    startup: &PostgresStartup,
    password: Option<&[u8]>,
) -> Result<PostgresBackend, PostgresBackendError> {
    let (mut line, at) = open_connection(lease, visit).await?;
    line.outgoing.extend_from_slice(&startup.encode());
    line.flush().await?;
    authenticate_node(&mut line, &startup.user, password).await?;
    PostgresBackend::new(line, BackendState::default(), at)
        .read_session_start()
        .await
}

async fn authenticate_node(
    line: &mut PostgresConnection<UpstreamSocket>,
    user: &str,
    password: Option<&[u8]>,
) -> Result<(), PostgresBackendError> {
    let missing = || {
        PostgresBackendError::Unusable(format!(
            "the server asks for a password of {user}, and `egress` names none"
        ))
    };
    loop {
        match read_server_message(line).await? {
            Message::AuthenticationOk => return Ok(()),
            Message::NoticeResponse(_) => continue,
            Message::AuthenticationCleartextPassword => {
                frontend::password_message(password.ok_or_else(missing)?, &mut line.outgoing)?;
            }
            Message::AuthenticationMd5Password(body) => {
                let hash = md5_hash(user.as_bytes(), password.ok_or_else(missing)?, body.salt());
                frontend::password_message(hash.as_bytes(), &mut line.outgoing)?;
            }
            Message::AuthenticationSasl(_) => {
                authenticate_scram(line, password.ok_or_else(missing)?).await?
            }
            _ => {
                return Err(PostgresBackendError::Unusable(
                    "the server asks for an authentication that is not spoken here".into(),
                ));
            }
        }
        line.flush().await?;
    }
}

/// SCRAM-SHA-256 (RFC 7677). How long the key takes to derive is the server's choice, so that is done on another thread.
async fn authenticate_scram(
    line: &mut PostgresConnection<UpstreamSocket>,
    password: &[u8],
) -> Result<(), PostgresBackendError> {
    let mut scram = sasl::ScramSha256::new(password, sasl::ChannelBinding::unsupported());
    frontend::sasl_initial_response(sasl::SCRAM_SHA_256, scram.message(), &mut line.outgoing)?;
    line.flush().await?;
    let Message::AuthenticationSaslContinue(body) = read_server_message(line).await? else {
        return Err(scram_error());
    };
    let challenge = Bytes::copy_from_slice(body.data());
    let derived =
        tokio::task::spawn_blocking(move || scram.update(&challenge).map(|()| scram)).await;
    let mut scram = derived.map_err(io::Error::other)??;
    frontend::sasl_response(scram.message(), &mut line.outgoing)?;
    line.flush().await?;
    let Message::AuthenticationSaslFinal(body) = read_server_message(line).await? else {
        return Err(scram_error());
    };
    Ok(scram.finish(body.data())?)
}

fn scram_error() -> PostgresBackendError {
    PostgresBackendError::Unusable("the server does not keep to SCRAM-SHA-256".into())
}

/// The server's next message; its error is the end.
async fn read_server_message(
    line: &mut PostgresConnection<UpstreamSocket>,
) -> Result<Message, PostgresBackendError> {
    let mut message = line.read_message().await?;
    if message[0] == b'E' {
        return Err(PostgresBackendError::Refused(message.freeze()));
    }
    let parsed = Message::parse(&mut message)?;
    parsed.ok_or_else(|| PostgresBackendError::Unusable("the server sent half a message".into()))
}

impl PostgresBackend {
    /// What the server says after it has let somebody in, up to its first ReadyForQuery.
    pub(super) async fn read_session_start(mut self) -> Result<Self, PostgresBackendError> {
        loop {
            let message = self.connection.read_message().await?;
            let body = &message[HEADER_BYTES..];
            match (message[0], body) {
                (b'S', body) => self.state.set_parameter(body),
                (b'K', [a, b, c, d, e, f, g, h]) => {
                    self.state.key = (
                        i32::from_be_bytes([*a, *b, *c, *d]),
                        i32::from_be_bytes([*e, *f, *g, *h]),
                    );
                }
                (b'Z', [status]) => {
                    self.state.status = *status;
                    self.state.initial_parameters = Rc::new(self.state.parameters.clone());
                    return Ok(self);
                }
                (b'N', _) => {}
                (b'E', _) => return Err(PostgresBackendError::Refused(message.freeze())),
                (other, _) => {
                    return Err(PostgresBackendError::Unusable(format!(
                        "the server began with a message of type {other:#x}"
                    )));
                }
            }
        }
    }
}
