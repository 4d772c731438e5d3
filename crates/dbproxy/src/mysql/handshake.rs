//! Start of a client's connection: the adapter greets the client, and the client logs in.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_types::egress::EgressLogin;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::backend::{GreetedConnection, MysqlBackend, MysqlBackendError, PasswordSource};
use super::connection::MysqlConnection;
use super::startup::{HandshakeResponse, MysqlGreeting, OK_PAYLOAD, capability, encode_error};
use super::state::{MysqlFingerprint, MysqlState};
use crate::ClientContext;
use nearpath_connpool::idle::{AcquireOutcome, ReusableConnection, UsedConnection};
use nearpath_connpool::pool::NoConnection;

/// Time for a client's login: the servers' own default of `connect_timeout`.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A client that has logged in.
pub(super) struct MysqlClientState {
    /// Its handshake response.
    pub(super) login: HandshakeResponse,
    pub(super) backend: Option<UsedConnection<MysqlBackend>>,
    /// Its settings since the login, as far as they can be repeated.
    pub(super) settings: Vec<Vec<u8>>,
}

impl MysqlClientState {
    /// Returns which backends can serve the client. Without a login of the node's, each client logs
    /// in anew.
    pub(super) fn fingerprint(&self, context: &ClientContext) -> MysqlFingerprint {
        let HandshakeResponse {
            capabilities,
            charset,
            user,
            db,
            ..
        } = self.login.clone();
        // `CONNECT_WITH_DB` only says that a database follows; the database itself is compared.
        let capabilities = capabilities & capability::SUPPORTED & !capability::CONNECT_WITH_DB;
        match context.upstream.destination.egress.login {
            Some(_) => MysqlFingerprint {
                capabilities,
                user,
                db,
                charset,
                settings: self.settings.clone(),
            },
            // `COM_CHANGE_USER` sets database and character set anew, so only the capabilities have
            // to match.
            None => MysqlFingerprint {
                capabilities,
                user,
                db: Vec::new(),
                charset: 0,
                settings: Vec::new(),
            },
        }
    }
}

/// Greets a client and reads its login. `None`: the client was refused with an error.
pub(super) async fn accept_client(
    client: &mut TcpStream,
    context: &ClientContext,
    state: &MysqlState,
) -> io::Result<Option<MysqlClientState>> {
    let mut connection = MysqlConnection::new(client, 0);
    // The greeting tells the client the server's capabilities, so a first client needs the server
    // at once.
    let (greeting, first) = match fetch_greeting(context, state).await {
        Ok(fetched) => fetched,
        Err(error) => return refuse_client(&mut connection, state, &error, None).await,
    };
    // A new salt: the stored greeting serves many clients, and a salt must not repeat.
    connection
        .write_packet(&greeting.encode(&random_salt()))
        .await?;
    let payload = timeout(LOGIN_TIMEOUT, connection.read_packet()).await??;
    // Without named plugins the server could not challenge the client by another method.
    let Some(mut response) = HandshakeResponse::parse(&payload)
        .filter(|response| response.capabilities & capability::PLUGIN_AUTH != 0)
    else {
        let text = "nearpath: unsupported login: TLS, or a protocol older than 4.1; turn TLS off in the client and set `tls=originate`";
        connection
            .write_packet(&encode_error(1043, Some("08S01"), text))
            .await?;
        return Ok(None);
    };
    let outcome = match &context.upstream.destination.egress.login {
        Some(login) => login_as_node(&mut response, login, context, state, first).await,
        None => login_as_client(&mut connection, &response, context, state, first).await,
    };
    match outcome {
        Ok((backend, ok)) => {
            send_ok(
                &mut connection,
                &response,
                &ok,
                context.upstream.destination.egress.login.is_some(),
            )
            .await?;
            Ok(Some(MysqlClientState {
                login: response,
                backend,
                settings: Vec::new(),
            }))
        }
        Err(error) => refuse_client(&mut connection, state, &error, Some("08S01")).await,
    }
}

/// Sends OK, preceded by what the client's plugin expects.
async fn send_ok(
    connection: &mut MysqlConnection<'_, TcpStream>,
    response: &HandshakeResponse,
    ok: &[u8],
    node_logs_in: bool,
) -> io::Result<()> {
    // A client that sent a proof waits for the fast-authentication marker. After an empty password
    // it expects OK at once.
    let proved = !matches!(*response.proof, [] | [0]);
    if node_logs_in && proved && response.plugin == b"caching_sha2_password" {
        connection.write_packet(&[1, 3]).await?;
    }
    connection.write_packet(ok).await
}

/// Refuses a client with an error.
async fn refuse_client(
    connection: &mut MysqlConnection<'_, TcpStream>,
    state: &MysqlState,
    error: &MysqlBackendError,
    sqlstate: Option<&str>,
) -> io::Result<Option<MysqlClientState>> {
    // The server may have changed, so the next client asks it again.
    state.forget();
    match error {
        MysqlBackendError::ClientGone(left) => {
            return Err(io::Error::new(left.kind(), left.to_string()));
        }
        error => {
            connection
                .write_packet(&error_packet(error, sqlstate))
                .await?
        }
    }
    Ok(None)
}

/// Formats an error as an error packet of MySQL.
pub(super) fn error_packet(error: &MysqlBackendError, sqlstate: Option<&str>) -> Vec<u8> {
    match error {
        MysqlBackendError::Refused(payload) => payload.clone(),
        MysqlBackendError::NoConnection(full @ NoConnection::Exhausted { .. }) => encode_error(
            1040,
            sqlstate,
            &format!("Too many connections: {full} (egress max=)"),
        ),
        MysqlBackendError::AuthFailed(reason) => encode_error(1045, sqlstate, reason),
        // Error of a federated table (1429). Clients treat numbers of their own range, such as
        // 2003, as malformed when a server sends them.
        other => encode_error(
            1429,
            sqlstate,
            &format!("Unable to connect to foreign data source: {other}"),
        ),
    }
}

/// Returns the server's greeting; fetches it if no connection is open. The connection then serves
/// the first client.
async fn fetch_greeting(
    context: &ClientContext,
    state: &MysqlState,
) -> Result<(Rc<MysqlGreeting>, Option<GreetedConnection>), MysqlBackendError> {
    // Only one client asks. The others cannot wait for a returned connection instead, because their
    // fingerprints are unknown before they log in.
    let _turn = state.greeting_lock.lock().await;
    if let Some(known) = state.known_greeting() {
        return Ok((known, None));
    }
    let deadline = Instant::now() + context.upstream.destination.egress.wait;
    let lease = context
        .upstream
        .source
        .connect(&context.upstream.destination, deadline)
        .await?;
    let first = before_deadline(context, deadline, state.read_greeting(lease)).await?;
    Ok((Rc::clone(&first.greeting), Some(first)))
}

/// Replaces the client's user by the node's, and a missing database by the declared one.
pub(super) fn use_node_account(response: &mut HandshakeResponse, login: &EgressLogin) {
    response.user = login.user.clone().into_bytes();
    if let (true, Some(db)) = (response.db.is_empty(), &login.database) {
        response.db = db.clone().into_bytes();
    }
}

/// Logs the node in, unless the server has accepted the same login before.
async fn login_as_node(
    response: &mut HandshakeResponse,
    login: &EgressLogin,
    context: &ClientContext,
    state: &MysqlState,
    first: Option<GreetedConnection>,
) -> Result<(Option<UsedConnection<MysqlBackend>>, Vec<u8>), MysqlBackendError> {
    use_node_account(response, login);
    let client_state = MysqlClientState {
        login: response.clone(),
        backend: None,
        settings: Vec::new(),
    };
    // A known login needs no backend before the first command.
    if first.is_none()
        && state
            .known_logins
            .borrow()
            .contains(&client_state.fingerprint(context))
    {
        return Ok((None, OK_PAYLOAD.to_vec()));
    }
    let backend = acquire_backend(&client_state, context, state, first).await?;
    Ok((Some(backend), OK_PAYLOAD.to_vec()))
}

/// Acquires a backend on which the node has logged in.
pub(super) async fn acquire_backend(
    client_state: &MysqlClientState,
    context: &ClientContext,
    state: &MysqlState,
    first: Option<GreetedConnection>,
) -> Result<UsedConnection<MysqlBackend>, MysqlBackendError> {
    let (started, fingerprint) = (Instant::now(), client_state.fingerprint(context));
    let deadline = started + context.upstream.destination.egress.wait;
    let greeted = match first {
        Some(greeted) => greeted,
        None => match state
            .idle_pool
            .acquire(&context.upstream, &fingerprint, deadline)
            .await?
        {
            AcquireOutcome::Reused(kept) => return Ok(kept),
            AcquireOutcome::New(lease) => {
                before_deadline(context, deadline, state.read_greeting(lease)).await?
            }
        },
    };
    let password = node_password(context);
    let mut source = PasswordSource::Node(&password);
    let (mut backend, _) = before_deadline(
        context,
        deadline,
        greeted.log_in(context, &client_state.login, &mut source),
    )
    .await
    .map_err(|error| error.of_node_login(context))?;
    before_deadline(
        context,
        deadline,
        backend.apply_settings(&client_state.settings),
    )
    .await?;
    // A new client starts without settings, so only plain logins are remembered.
    if client_state.settings.is_empty() {
        state.learn_login(&fingerprint);
    }
    Ok(UsedConnection::new(backend, started))
}

/// Lets the server ask the client for its password.
async fn login_as_client(
    connection: &mut MysqlConnection<'_, TcpStream>,
    response: &HandshakeResponse,
    context: &ClientContext,
    state: &MysqlState,
    first: Option<GreetedConnection>,
) -> Result<(Option<UsedConnection<MysqlBackend>>, Vec<u8>), MysqlBackendError> {
    let (started, fingerprint) = (
        Instant::now(),
        MysqlClientState {
            login: response.clone(),
            backend: None,
            settings: Vec::new(),
        }
        .fingerprint(context),
    );
    let deadline = started + context.upstream.destination.egress.wait;
    let mut source = PasswordSource::Client(connection);
    let greeted = match first {
        Some(greeted) => greeted,
        None => match state
            .idle_pool
            .acquire(&context.upstream, &fingerprint, deadline)
            .await?
        {
            AcquireOutcome::New(lease) => {
                before_deadline(context, deadline, state.read_greeting(lease)).await?
            }
            AcquireOutcome::Reused(mut kept) => {
                return match before_deadline(
                    context,
                    deadline,
                    kept.connection.change_user(response, &mut source),
                )
                .await
                {
                    Ok(ok) => Ok((Some(kept), ok)),
                    Err(error) => {
                        // The failed user may still be the session's last one.
                        kept.connection.close();
                        Err(error)
                    }
                };
            }
        },
    };
    let (backend, ok) = before_deadline(
        context,
        deadline,
        greeted.log_in(context, response, &mut source),
    )
    .await?;
    Ok((Some(UsedConnection::new(backend, started)), ok))
}

async fn before_deadline<T>(
    context: &ClientContext,
    deadline: Instant,
    operation: impl Future<Output = Result<T, MysqlBackendError>>,
) -> Result<T, MysqlBackendError> {
    let timed_out = || NoConnection::Refused {
        to: context.upstream.destination.key.host_port.clone(),
        error: io::ErrorKind::TimedOut.into(),
    };
    tokio::time::timeout_at(deadline.into(), operation)
        .await
        .unwrap_or_else(|_| Err(timed_out().into()))
}

/// Returns the password that the node logs in with.
pub(super) fn node_password(context: &ClientContext) -> Vec<u8> {
    let login = context.upstream.destination.egress.login.as_ref();
    let secret = login.and_then(|login| {
        context
            .upstream
            .destination
            .secrets
            .get(login.password.as_ref()?)
    });
    // Secrets written with an editor end in a newline, which is no part of the password.
    secret
        .map(|secret| secret.trim_ascii_end().to_vec())
        .unwrap_or_default()
}

/// Returns random printable bytes: a zero byte would end the salt.
fn random_salt() -> [u8; 20] {
    let mut salt = [0; 20];
    SystemRandom::new()
        .fill(&mut salt)
        .expect("the kernel has random numbers");
    // 94 printable characters from `!` on. The slight bias does not matter for a salt.
    salt.map(|byte| byte % 94 + 33)
}
