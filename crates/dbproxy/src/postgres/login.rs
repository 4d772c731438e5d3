//! The node's login at a server, with the user of the egress.

use std::io;
use std::net::SocketAddr;

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

/// Reason for a missing backend.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostgresBackendError {
    #[error("{0}")]
    NoConnection(#[from] NoConnection),
    /// An ErrorResponse of the server.
    #[error("the server refused")]
    Refused(Bytes),
    /// The server refused the node's own login; its SQLSTATE, and a text for the client.
    #[error("{1}")]
    NodeRefused(String, String),
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("{0}")]
    Unusable(String),
}

impl PostgresBackendError {
    /// Counts one more client without a connection. The connection pool has already counted those
    /// that it refused.
    pub(super) fn count_refusal(&self, counters: &DestinationCounters) {
        if !matches!(self, Self::NoConnection(_)) {
            DestinationCounters::increase(&counters.refused, 1);
        }
    }

    /// Returns whether the server is starting up, recovering or shutting down.
    pub(super) fn is_cannot_connect_now(&self) -> bool {
        let Self::Refused(error) = self else {
            return false;
        };
        message::find_field(&error[HEADER_BYTES..], b'C')
            == Some(sqlstate::CANNOT_CONNECT_NOW.as_bytes())
    }

    /// Returns an error after which the client does not look for the fault in its own password: the
    /// node logged in.
    pub(super) fn of_node_login(self, context: &ClientContext) -> Self {
        let Self::Refused(error) = &self else {
            return self;
        };
        let field = |kind| {
            let value = message::find_field(&error[HEADER_BYTES..], kind);
            String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
        };
        let state = field(b'C');
        // Others, such as a full server, are no matter of the login.
        if !state.starts_with(sqlstate::INVALID_AUTHORIZATION_CLASS) {
            return self;
        }
        Self::NodeRefused(state, context.report_refused_login(&field(b'M')))
    }

    /// Returns the error message for the client.
    pub(super) fn to_message(&self, to: &str) -> Bytes {
        match self {
            Self::NoConnection(error) => message::no_connection_error(error),
            Self::Refused(error) => error.clone(),
            Self::NodeRefused(state, text) => {
                message::fatal_error(state, &format!("nearpath: {text}"), "")
            }
            // The text of the error kind ("unexpected end of file") would not help the function's
            // author.
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

/// Opens a new connection, with TLS if the node originates it. Also returns the server's address.
pub(super) async fn open_connection(
    mut lease: ConnectionLease,
    context: &ClientContext,
) -> Result<(PostgresConnection<UpstreamSocket>, SocketAddr), PostgresBackendError> {
    // Taken before TLS wraps the stream; a CancelRequest has to reach the same server.
    let addr = lease.stream.peer_addr()?;
    if context.upstream.destination.egress.tls != EgressTls::Pass {
        // PostgreSQL negotiates TLS in clear text first (its manual, "SSL Session Encryption").
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        lease.stream.write_all(&request).await?;
        // Exactly one byte is read: everything after it has to come through TLS (CVE-2021-23222).
        if lease.stream.read_u8().await? != b'S' {
            return Err(PostgresBackendError::Unusable(
                "the server has TLS disabled, but `tls=originate` requires it".into(),
            ));
        }
    }
    Ok((
        PostgresConnection::new(
            tls::wrap_lease(
                lease,
                &context.upstream.destination,
                &context.upstream.adapters,
            )
            .await?,
        ),
        addr,
    ))
}

/// Sends the startup message to a server, and waits for its first answer.
pub(super) async fn send_startup(
    connection: &mut PostgresConnection<UpstreamSocket>,
    startup: &PostgresStartup,
) -> io::Result<()> {
    connection.outgoing.extend_from_slice(&startup.encode());
    connection.flush().await?;
    connection.check_first_answer().await
}

/// Logs in on a new connection.
pub(super) async fn log_in(
    lease: ConnectionLease,
    context: &ClientContext,
    startup: &PostgresStartup,
    password: Option<&[u8]>,
) -> Result<PostgresBackend, PostgresBackendError> {
    let (mut connection, addr) = open_connection(lease, context).await?;
    send_startup(&mut connection, startup).await?;
    authenticate_node(&mut connection, &startup.user, password).await?;
    PostgresBackend::new(connection, BackendState::default(), addr)
        .read_session_start()
        .await
}

async fn authenticate_node(
    connection: &mut PostgresConnection<UpstreamSocket>,
    user: &str,
    password: Option<&[u8]>,
) -> Result<(), PostgresBackendError> {
    // The server asks for a password only if its `pg_hba.conf` says so; a missing one is an error
    // only then.
    let missing = || {
        PostgresBackendError::Unusable(format!(
            "the server asks for the password of {user}: set `password` in the egress"
        ))
    };
    loop {
        match read_server_message(connection).await? {
            Message::AuthenticationOk => return Ok(()),
            Message::NoticeResponse(_) => continue,
            Message::AuthenticationCleartextPassword => {
                frontend::password_message(
                    password.ok_or_else(missing)?,
                    &mut connection.outgoing,
                )?;
            }
            Message::AuthenticationMd5Password(body) => {
                let hash = md5_hash(user.as_bytes(), password.ok_or_else(missing)?, body.salt());
                frontend::password_message(hash.as_bytes(), &mut connection.outgoing)?;
            }
            Message::AuthenticationSasl(_) => {
                authenticate_scram(connection, password.ok_or_else(missing)?).await?
            }
            _ => {
                return Err(PostgresBackendError::Unusable(
                    "unsupported authentication method of the server".into(),
                ));
            }
        }
        connection.flush().await?;
    }
}

/// SCRAM-SHA-256 (RFC 7677). The server chooses the cost of the key derivation, so that runs on
/// another thread.
async fn authenticate_scram(
    connection: &mut PostgresConnection<UpstreamSocket>,
    password: &[u8],
) -> Result<(), PostgresBackendError> {
    let mut scram = sasl::ScramSha256::new(password, sasl::ChannelBinding::unsupported());
    frontend::sasl_initial_response(
        sasl::SCRAM_SHA_256,
        scram.message(),
        &mut connection.outgoing,
    )?;
    connection.flush().await?;
    let Message::AuthenticationSaslContinue(body) = read_server_message(connection).await? else {
        return Err(scram_error());
    };
    let challenge = Bytes::copy_from_slice(body.data());
    let derived =
        tokio::task::spawn_blocking(move || scram.update(&challenge).map(|()| scram)).await;
    let mut scram = derived.map_err(io::Error::other)??;
    frontend::sasl_response(scram.message(), &mut connection.outgoing)?;
    connection.flush().await?;
    let Message::AuthenticationSaslFinal(body) = read_server_message(connection).await? else {
        return Err(scram_error());
    };
    Ok(scram.finish(body.data())?)
}

fn scram_error() -> PostgresBackendError {
    PostgresBackendError::Unusable("the server violated SCRAM-SHA-256".into())
}

/// Reads the server's next message; an error of the server is returned as an error.
async fn read_server_message(
    connection: &mut PostgresConnection<UpstreamSocket>,
) -> Result<Message, PostgresBackendError> {
    let mut message = connection.read_message().await?;
    if message[0] == b'E' {
        return Err(PostgresBackendError::Refused(message.freeze()));
    }
    let parsed = Message::parse(&mut message)?;
    parsed.ok_or_else(|| {
        PostgresBackendError::Unusable("the server sent an incomplete message".into())
    })
}

impl PostgresBackend {
    /// Reads the messages after a login, up to the first ReadyForQuery.
    pub(super) async fn read_session_start(mut self) -> Result<Self, PostgresBackendError> {
        loop {
            let message = self.connection.read_message().await?;
            let body = &message[HEADER_BYTES..];
            match (message[0], body) {
                (b'S', body) => {
                    if let Some((name, value)) = message::parse_parameter(body) {
                        self.state.set_initial_parameter(name, value);
                    }
                }
                (b'K', [a, b, c, d, e, f, g, h]) => {
                    self.state.key = (
                        i32::from_be_bytes([*a, *b, *c, *d]),
                        i32::from_be_bytes([*e, *f, *g, *h]),
                    );
                }
                (b'Z', [status]) => {
                    self.state.status = *status;
                    return Ok(self);
                }
                (b'N', _) => {}
                (b'E', _) => return Err(PostgresBackendError::Refused(message.freeze())),
                (other, _) => {
                    return Err(PostgresBackendError::Unusable(format!(
                        "unexpected message of type {other:#x} after the login"
                    )));
                }
            }
        }
    }
}
