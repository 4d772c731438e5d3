//! A connection to MySQL or MariaDB: greeting, login, cleaning.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use nearpath_types::egress::EgressTls;
use tokio::net::TcpStream;

use super::connection::{MysqlConnection, not_mysql_error};
use super::startup::{HandshakeResponse, MysqlGreeting, prove_password};
use crate::ClientContext;
use nearpath_connpool::idle::ReusableConnection;
use nearpath_connpool::pool::{ConnectionLease, NoConnection};
use nearpath_connpool::socket::UpstreamSocket;

/// Time for cleaning a backend; one that takes longer is closed.
pub(super) const CLEAN_TIMEOUT: Duration = Duration::from_secs(5);
/// Name of a plugin that no server has, so that the server answers with an AuthSwitchRequest for
/// its own.
const UNKNOWN_PLUGIN: &[u8] = b"nearpath";
const QUIT_PACKET: &[u8] = &[1, 0, 0, 0, 1];
const COM_RESET_CONNECTION: &[u8] = &[0x1f];
const COM_QUERY: &[u8] = &[3];

/// A connection that is logged in.
#[derive(Debug)]
pub(super) struct MysqlBackend {
    pub(super) socket: UpstreamSocket,
    tls: bool,
    greeting: Rc<MysqlGreeting>,
}

/// A connection before the login.
pub(super) struct GreetedConnection {
    pub(super) greeting: Rc<MysqlGreeting>,
    lease: ConnectionLease,
}

/// Reason for a failed login or cleanup.
#[derive(Debug, thiserror::Error)]
pub(super) enum MysqlBackendError {
    /// Error packet of the server; its payload goes to the client.
    #[error("refused")]
    Refused(Vec<u8>),
    /// The password cannot be proven.
    #[error("{0}")]
    AuthFailed(String),
    /// The connection to the server broke, or the server does not speak MySQL's protocol.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// The connection to the client broke.
    #[error("the client has left: {0}")]
    ClientGone(io::Error),
    /// No connection is available.
    #[error(transparent)]
    NoConnection(#[from] NoConnection),
}

/// Source of the password.
pub(super) enum PasswordSource<'a, 'b> {
    /// The node knows the password.
    Node(&'a [u8]),
    /// The client knows it: the server's challenges go to the client.
    Client(&'a mut MysqlConnection<'b, TcpStream>),
}

impl MysqlBackendError {
    /// Returns an error after which the client does not look for the fault in its own password: the
    /// node logged in.
    pub(super) fn of_node_login(self, context: &ClientContext) -> Self {
        match &self {
            Self::Refused(packet) => match login_refusal(packet) {
                Some(reason) => Self::AuthFailed(context.report_refused_login(&reason)),
                // Others, such as a full server, are no matter of the login.
                None => self,
            },
            _ => self,
        }
    }
}

/// Returns the text of an error packet that refuses user, password or database.
fn login_refusal(packet: &[u8]) -> Option<String> {
    let [0xff, low, high, b'#', text @ ..] = packet else {
        return None;
    };
    // ER_DBACCESS_DENIED_ERROR, ER_ACCESS_DENIED_ERROR, ER_ACCESS_DENIED_NO_PASSWORD_ERROR. The
    // SQLSTATE before the text has five characters.
    let is_refusal = matches!(u16::from_le_bytes([*low, *high]), 1044 | 1045 | 1698);
    is_refusal.then(|| String::from_utf8_lossy(text.get(5..).unwrap_or_default()).into_owned())
}

impl ReusableConnection for MysqlBackend {
    fn is_quiet(&self) -> bool {
        self.socket.is_quiet()
    }

    fn is_binding_current(&self) -> bool {
        self.socket.is_binding_current()
    }

    fn close(self) {
        tokio::task::spawn_local(self.socket.close_with_message(QUIT_PACKET));
    }
}

impl GreetedConnection {
    /// Reads the server's greeting. A server that is full sends an error instead.
    pub(super) async fn read_greeting(
        mut lease: ConnectionLease,
    ) -> Result<Self, MysqlBackendError> {
        // No timeout here: callers bound the whole login by `wait`.
        let payload = MysqlConnection::new(&mut lease.stream, 0)
            .read_packet()
            .await?;
        if payload.first() == Some(&0xff) {
            return Err(MysqlBackendError::Refused(payload));
        }
        let greeting = MysqlGreeting::parse(&payload).ok_or_else(not_mysql_error)?;
        Ok(Self {
            greeting: Rc::new(greeting),
            lease,
        })
    }

    /// Logs in as `response` says. Returns the server's OK packet.
    pub(super) async fn log_in(
        mut self,
        context: &ClientContext,
        response: &HandshakeResponse,
        source: &mut PasswordSource<'_, '_>,
    ) -> Result<(MysqlBackend, Vec<u8>), MysqlBackendError> {
        let tls = context.upstream.destination.egress.tls != EgressTls::Pass;
        let response = with_proof(response, source, &self.greeting);
        let mut number = 1;
        // An SSLRequest comes first, in clear text; the login itself already goes over TLS.
        if tls {
            let mut connection = MysqlConnection::new(&mut self.lease.stream, number);
            connection
                .write_packet(&response.encode_tls_request())
                .await?;
            number = connection.sequence_id();
        }
        let socket = nearpath_connpool::tls::wrap_lease(
            self.lease,
            &context.upstream.destination,
            &context.upstream.adapters,
        )
        .await?;
        let mut backend = MysqlBackend {
            socket,
            tls,
            greeting: self.greeting,
        };
        let ok_packet = backend
            .authenticate(number, &response.encode(tls), source)
            .await?;
        Ok((backend, ok_packet))
    }
}

/// Returns the response with the node's first proof, or with an unknown plugin, so that the server
/// challenges the client.
fn with_proof(
    response: &HandshakeResponse,
    source: &PasswordSource<'_, '_>,
    greeting: &MysqlGreeting,
) -> HandshakeResponse {
    let (proof, plugin) = match source {
        PasswordSource::Node(password) => (
            prove_password(&greeting.plugin, password, &greeting.salt),
            greeting.plugin.clone(),
        ),
        // A proof of the client is bound to the salt that the adapter sent, not to the server's.
        PasswordSource::Client(_) => (None, UNKNOWN_PLUGIN.to_vec()),
    };
    match proof {
        Some(proof) => HandshakeResponse {
            proof,
            plugin,
            ..response.clone()
        },
        None => HandshakeResponse {
            proof: Vec::new(),
            plugin: UNKNOWN_PLUGIN.to_vec(),
            ..response.clone()
        },
    }
}

impl MysqlBackend {
    /// Makes the connection another client's; no state of the previous one stays. Returns the
    /// server's OK packet.
    pub(super) async fn change_user(
        &mut self,
        response: &HandshakeResponse,
        source: &mut PasswordSource<'_, '_>,
    ) -> Result<Vec<u8>, MysqlBackendError> {
        // The greeting's salt was used by the login. The server sends a new one with its
        // AuthSwitchRequest.
        let response = HandshakeResponse {
            proof: Vec::new(),
            plugin: UNKNOWN_PLUGIN.to_vec(),
            ..response.clone()
        };
        self.authenticate(0, &response.encode_change_user(), source)
            .await
    }

    /// Removes the state of a client. The server's OK proves it.
    pub(super) async fn reset_connection(&mut self) -> Result<(), MysqlBackendError> {
        let mut connection = MysqlConnection::new(&mut self.socket, 0);
        connection.write_packet(COM_RESET_CONNECTION).await?;
        let reply = connection.read_packet().await?;
        // Servers before 5.7.3 do not know the command and answer with an error; the connection is
        // closed then.
        if reply.first() == Some(&0) {
            Ok(())
        } else {
            Err(MysqlBackendError::Refused(reply))
        }
    }

    /// Repeats settings.
    pub(super) async fn apply_settings(
        &mut self,
        settings: &[Vec<u8>],
    ) -> Result<(), MysqlBackendError> {
        for setting in settings {
            let mut connection = MysqlConnection::new(&mut self.socket, 0);
            connection
                .write_packet(&[COM_QUERY, setting].concat())
                .await?;
            let reply = connection.read_packet().await?;
            if reply.first() != Some(&0) {
                return Err(MysqlBackendError::Refused(reply));
            }
        }
        Ok(())
    }

    /// Authenticates until the server accepts or refuses.
    async fn authenticate(
        &mut self,
        number: u8,
        first: &[u8],
        source: &mut PasswordSource<'_, '_>,
    ) -> Result<Vec<u8>, MysqlBackendError> {
        let tls = self.tls;
        let salt = self.greeting.salt.clone();
        let mut connection = MysqlConnection::new(&mut self.socket, number);
        connection.write_packet(first).await?;
        loop {
            let reply = connection.read_packet().await?;
            match reply.first() {
                // The two markers of the protocol: 0x00 is OK, 0xff an error. 0xfe asks for another
                // plugin, 0x01 carries more data.
                Some(0) => return Ok(reply),
                Some(0xff) => return Err(MysqlBackendError::Refused(reply)),
                Some(0xfe | 1) => {
                    if let Some(proof) = source.answer_challenge(&reply, &salt, tls).await? {
                        connection.write_packet(&proof).await?;
                    }
                }
                _ => return Err(not_mysql_error().into()),
            }
        }
    }
}

impl PasswordSource<'_, '_> {
    /// Returns the answer to a challenge, if the server waits for one.
    async fn answer_challenge(
        &mut self,
        reply: &[u8],
        salt: &[u8],
        tls: bool,
    ) -> Result<Option<Vec<u8>>, MysqlBackendError> {
        // `caching_sha2_password`: 0x03 means that the fast authentication succeeded, and an OK
        // follows without an answer.
        let is_accepted = reply == [1, 3];
        match self {
            Self::Node(_) if is_accepted => Ok(None),
            Self::Node(password) => node_answer(reply, password, salt, tls).map(Some),
            Self::Client(client) => {
                client
                    .write_packet(reply)
                    .await
                    .map_err(MysqlBackendError::ClientGone)?;
                if is_accepted {
                    Ok(None)
                } else {
                    client
                        .read_packet()
                        .await
                        .map(Some)
                        .map_err(MysqlBackendError::ClientGone)
                }
            }
        }
    }
}

/// Returns the node's own answer.
fn node_answer(
    reply: &[u8],
    password: &[u8],
    salt: &[u8],
    tls: bool,
) -> Result<Vec<u8>, MysqlBackendError> {
    // `caching_sha2_password`: 0x04 asks for the full authentication.
    if reply == [1, 4] {
        // The server has to see the password itself. In clear text it would be readable on the
        // network.
        return if tls {
            Ok([password, &[0]].concat())
        } else {
            Err(MysqlBackendError::AuthFailed(
                "the server asks for the cleartext password, which needs `tls=originate`".into(),
            ))
        };
    }
    let mut reader = super::frame::PayloadReader(reply.get(1..).unwrap_or_default());
    // An AuthSwitchRequest names the plugin and a new salt. Without a salt the earlier one counts.
    let plugin = reader.read_text().unwrap_or_default();
    let salt = if reader.0.is_empty() { salt } else { reader.0 };
    prove_password(plugin, password, salt).ok_or_else(|| {
        let plugin = String::from_utf8_lossy(plugin);
        MysqlBackendError::AuthFailed(format!("unsupported authentication plugin {plugin}: expected mysql_native_password or caching_sha2_password"))
    })
}
