//! A connection to MySQL or MariaDB: greeted, logged in, cleaned.

use std::io;
use std::time::Duration;

use nearpath_types::egress::EgressTls;
use tokio::net::TcpStream;

use super::MysqlState;
use super::connection::{MysqlConnection, not_mysql_error};
use super::startup::{HandshakeResponse, MysqlGreeting, prove_password};
use crate::ClientContext;
use nearpath_connpool::idle::ReusableConnection;
use nearpath_connpool::pool::{ConnectionLease, NoConnection};
use nearpath_connpool::socket::UpstreamSocket;

/// Longest wait for a backend to be cleaned; one that takes longer is closed.
pub(super) const CLEAN_TIMEOUT: Duration = Duration::from_secs(5);
/// The way of proving that no server has: it names its own.
const UNKNOWN_PLUGIN: &[u8] = b"nearpath";
const QUIT_PACKET: &[u8] = &[1, 0, 0, 0, 1];
const COM_RESET_CONNECTION: &[u8] = &[0x1f];
const COM_QUERY: &[u8] = &[3];

/// See the module.
#[derive(Debug)]
pub(super) struct MysqlBackend {
    pub(super) socket: UpstreamSocket,
    tls: bool,
    greeting: MysqlGreeting,
}

/// One that nobody is logged in at.
pub(super) struct GreetedConnection {
    pub(super) greeting: MysqlGreeting,
    lease: ConnectionLease,
}

/// Why a connection could not be made or cleaned.
#[derive(Debug, thiserror::Error)]
pub(super) enum MysqlBackendError {
    /// What the server said, a payload that is for the client.
    #[error("refused")]
    Refused(Vec<u8>),
    /// It cannot be proved who asks.
    #[error("{0}")]
    AuthFailed(String),
    /// The connection to the server broke, or is not MySQL's.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// The client's broke.
    #[error("the client has left: {0}")]
    ClientGone(io::Error),
    /// There is none.
    #[error(transparent)]
    NoConnection(#[from] NoConnection),
}

/// Who knows the password.
pub(super) enum PasswordSource<'a, 'b> {
    /// The node.
    Node(&'a [u8]),
    /// The client: what the server asks, it is asked.
    Client(&'a mut MysqlConnection<'b, TcpStream>),
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
    /// Reads the server's greeting. A server that is full says so instead.
    pub(super) async fn read_greeting(
        mut lease: ConnectionLease,
        house: &MysqlState,
    ) -> Result<Self, MysqlBackendError> {
        let payload = MysqlConnection::new(&mut lease.stream, 0)
            .read_packet()
            .await?;
        if payload.first() == Some(&0xff) {
            return Err(MysqlBackendError::Refused(payload));
        }
        let greeting = MysqlGreeting::parse(&payload).ok_or_else(not_mysql_error)?;
        house.greeting.replace(Some(greeting.clone()));
        Ok(Self { greeting, lease })
    }

    /// Logs in as `answer` says; the server's OK.
    pub(super) async fn log_in(
        mut self,
        visit: &ClientContext,
        answer: &HandshakeResponse,
        prover: &mut PasswordSource<'_, '_>,
    ) -> Result<(MysqlBackend, Vec<u8>), MysqlBackendError> {
        let tls = visit.upstream.destination.egress.tls != EgressTls::Pass;
        let answer = with_proof(answer, prover, &self.greeting);
        let mut number = 1;
        if tls {
            let mut talk = MysqlConnection::new(&mut self.lease.stream, number);
            talk.write_packet(&answer.encode_tls_request()).await?;
            number = talk.sequence_id();
        }
        let socket = nearpath_connpool::tls::wrap_lease(
            self.lease,
            &visit.upstream.destination,
            &visit.upstream.adapters,
        )
        .await?;
        let mut backend = MysqlBackend {
            socket,
            tls,
            greeting: self.greeting,
        };
        let welcome = backend
            .authenticate(number, &answer.encode(tls), prover)
            .await?;
        Ok((backend, welcome))
    }
}

/// What a connection is asked for with: a first proof of the node's, or a plugin that nobody has, so that the server asks the client itself.
fn with_proof(
    answer: &HandshakeResponse,
    prover: &PasswordSource<'_, '_>,
    greeting: &MysqlGreeting,
) -> HandshakeResponse {
    let (proof, plugin) = match prover {
        PasswordSource::Node(password) => (
            prove_password(&greeting.plugin, password, &greeting.salt),
            greeting.plugin.clone(),
        ),
        PasswordSource::Client(_) => (None, UNKNOWN_PLUGIN.to_vec()),
    };
    match proof {
        Some(proof) => HandshakeResponse {
            proof,
            plugin,
            ..answer.clone()
        },
        None => HandshakeResponse {
            proof: Vec::new(),
            plugin: UNKNOWN_PLUGIN.to_vec(),
            ..answer.clone()
        },
    }
}

impl MysqlBackend {
    /// Makes it another client's; nothing of the last one stays. The server's OK.
    pub(super) async fn change_user(
        &mut self,
        answer: &HandshakeResponse,
        prover: &mut PasswordSource<'_, '_>,
    ) -> Result<Vec<u8>, MysqlBackendError> {
        // The salt of the greeting was used: the server names another one.
        let answer = HandshakeResponse {
            proof: Vec::new(),
            plugin: UNKNOWN_PLUGIN.to_vec(),
            ..answer.clone()
        };
        self.authenticate(0, &answer.encode_change_user(), prover)
            .await
    }

    /// Removes what a client left in it. The server's OK proves it.
    pub(super) async fn reset_connection(&mut self) -> Result<(), MysqlBackendError> {
        let mut talk = MysqlConnection::new(&mut self.socket, 0);
        talk.write_packet(COM_RESET_CONNECTION).await?;
        let said = talk.read_packet().await?;
        if said.first() == Some(&0) {
            Ok(())
        } else {
            Err(MysqlBackendError::Refused(said))
        }
    }

    /// Makes settings anew.
    pub(super) async fn apply_settings(
        &mut self,
        settings: &[Vec<u8>],
    ) -> Result<(), MysqlBackendError> {
        for setting in settings {
            let mut talk = MysqlConnection::new(&mut self.socket, 0);
            talk.write_packet(&[COM_QUERY, setting].concat()).await?;
            let said = talk.read_packet().await?;
            if said.first() != Some(&0) {
                return Err(MysqlBackendError::Refused(said));
            }
        }
        Ok(())
    }

    /// Says who asks, and proves it until the server is content.
    async fn authenticate(
        &mut self,
        number: u8,
        first: &[u8],
        prover: &mut PasswordSource<'_, '_>,
    ) -> Result<Vec<u8>, MysqlBackendError> {
        let tls = self.tls;
        let salt = self.greeting.salt.clone();
        let mut talk = MysqlConnection::new(&mut self.socket, number);
        talk.write_packet(first).await?;
        loop {
            let said = talk.read_packet().await?;
            match said.first() {
                Some(0) => return Ok(said),
                Some(0xff) => return Err(MysqlBackendError::Refused(said)),
                Some(0xfe | 1) => {
                    if let Some(proof) = prover.answer_challenge(&said, &salt, tls).await? {
                        talk.write_packet(&proof).await?;
                    }
                }
                _ => return Err(not_mysql_error().into()),
            }
        }
    }
}

impl PasswordSource<'_, '_> {
    /// The answer to what the server asks, if it waits for one.
    async fn answer_challenge(
        &mut self,
        said: &[u8],
        salt: &[u8],
        tls: bool,
    ) -> Result<Option<Vec<u8>>, MysqlBackendError> {
        let content = said == [1, 3];
        match self {
            Self::Node(_) if content => Ok(None),
            Self::Node(password) => node_answer(said, password, salt, tls).map(Some),
            Self::Client(client) => {
                client
                    .write_packet(said)
                    .await
                    .map_err(MysqlBackendError::ClientGone)?;
                if content {
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

/// The node's own answer.
fn node_answer(
    said: &[u8],
    password: &[u8],
    salt: &[u8],
    tls: bool,
) -> Result<Vec<u8>, MysqlBackendError> {
    if said == [1, 4] {
        // The server has to see the password itself.
        return if tls {
            Ok([password, &[0]].concat())
        } else {
            Err(MysqlBackendError::AuthFailed(
                "the server wants the password itself, which needs `tls=originate`".into(),
            ))
        };
    }
    let mut reader = super::frame::PayloadReader(said.get(1..).unwrap_or_default());
    let plugin = reader.read_text().unwrap_or_default();
    let salt = if reader.0.is_empty() { salt } else { reader.0 };
    prove_password(plugin, password, salt).ok_or_else(|| {
        let plugin = String::from_utf8_lossy(plugin);
        MysqlBackendError::AuthFailed(format!("the server wants the password proved by {plugin}, which the node does not know: mysql_native_password or caching_sha2_password"))
    })
}
