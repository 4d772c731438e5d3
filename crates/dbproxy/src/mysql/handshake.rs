//! A client's beginning: it is greeted, and says who it is.

use std::io;
use std::time::{Duration, Instant};

use nearpath_types::egress::EgressLogin;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::backend::{GreetedConnection, MysqlBackend, MysqlBackendError, PasswordSource};
use super::connection::{MysqlConnection, not_mysql_error};
use super::startup::{HandshakeResponse, OK_PAYLOAD, capability, encode_error};
use super::{MysqlFingerprint, MysqlState};
use crate::ClientContext;
use nearpath_connpool::idle::{AcquireOutcome, ReusableConnection, UsedConnection};
use nearpath_connpool::pool::NoConnection;

/// A client says who it is within this time, as servers have it by default.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A client that was let in.
pub(super) struct MysqlClientState {
    /// Who it is, to the server.
    pub(super) login: HandshakeResponse,
    pub(super) backend: Option<UsedConnection<MysqlBackend>>,
    /// What it has set since, as far as it can be set again.
    pub(super) settings: Vec<Vec<u8>>,
}

impl MysqlClientState {
    /// Which backends serve it. Without a login of the node's, who it is is asked anew each time.
    pub(super) fn fingerprint(&self, visit: &ClientContext) -> MysqlFingerprint {
        let HandshakeResponse {
            capabilities: can,
            charset,
            user,
            db,
            ..
        } = self.login.clone();
        let can = can & capability::SUPPORTED & !capability::CONNECT_WITH_DB;
        match visit.upstream.destination.egress.login {
            Some(_) => MysqlFingerprint {
                capabilities: can,
                user,
                db,
                charset,
                settings: self.settings.clone(),
            },
            None => MysqlFingerprint {
                capabilities: can,
                user,
                db: Vec::new(),
                charset: 0,
                settings: Vec::new(),
            },
        }
    }
}

/// Greets a client and hears who it is; `NoConnection`: it was told why it cannot stay.
pub(super) async fn accept_client(
    client: &mut TcpStream,
    visit: &ClientContext,
    house: &MysqlState,
) -> io::Result<Option<MysqlClientState>> {
    let mut talk = MysqlConnection::new(client, 0);
    let first = match fetch_greeting(visit, house).await {
        Ok(first) => first,
        Err(unfit) => return refuse_client(&mut talk, house, &unfit, None).await,
    };
    let greeting = house
        .greeting
        .borrow()
        .clone()
        .ok_or_else(not_mysql_error)?;
    talk.write_packet(&greeting.encode(&random_salt())).await?;
    let said = timeout(LOGIN_TIMEOUT, talk.read_packet()).await??;
    let Some(mut answer) = HandshakeResponse::parse(&said)
        .filter(|answer| answer.capabilities & capability::PLUGIN_AUTH != 0)
    else {
        let text = "nearpath: the client asks for TLS, or speaks a protocol older than 4.1; the node speaks TLS with `tls=originate`";
        talk.write_packet(&encode_error(1043, Some("08S01"), text))
            .await?;
        return Ok(None);
    };
    let entered = match &visit.upstream.destination.egress.login {
        Some(login) => login_as_node(&mut answer, login, visit, house, first).await,
        None => login_as_client(&mut talk, &answer, visit, house, first).await,
    };
    match entered {
        Ok((backend, ok)) => {
            send_ok(
                &mut talk,
                &answer,
                &ok,
                visit.upstream.destination.egress.login.is_some(),
            )
            .await?;
            Ok(Some(MysqlClientState {
                login: answer,
                backend,
                settings: Vec::new(),
            }))
        }
        Err(unfit) => refuse_client(&mut talk, house, &unfit, Some("08S01")).await,
    }
}

/// Says OK, after what the client's way of proving expects before it.
async fn send_ok(
    talk: &mut MysqlConnection<'_, TcpStream>,
    answer: &HandshakeResponse,
    ok: &[u8],
    own: bool,
) -> io::Result<()> {
    let proved = !matches!(*answer.proof, [] | [0]);
    if own && proved && answer.plugin == b"caching_sha2_password" {
        talk.write_packet(&[1, 3]).await?;
    }
    talk.write_packet(ok).await
}

/// Tells a client why it cannot stay.
async fn refuse_client(
    talk: &mut MysqlConnection<'_, TcpStream>,
    house: &MysqlState,
    unfit: &MysqlBackendError,
    state: Option<&str>,
) -> io::Result<Option<MysqlClientState>> {
    house.forget();
    match unfit {
        MysqlBackendError::ClientGone(left) => {
            return Err(io::Error::new(left.kind(), left.to_string()));
        }
        unfit => talk.write_packet(&error_packet(unfit, state)).await?,
    }
    Ok(None)
}

/// An error in the words of MySQL.
pub(super) fn error_packet(unfit: &MysqlBackendError, state: Option<&str>) -> Vec<u8> {
    match unfit {
        MysqlBackendError::Refused(said) => said.clone(),
        MysqlBackendError::NoConnection(full @ NoConnection::Exhausted { .. }) => encode_error(
            1040,
            state,
            &format!("Too many connections: {full} (egress max=)"),
        ),
        MysqlBackendError::AuthFailed(why) => encode_error(1045, state, why),
        // As of a table that is elsewhere: clients refuse numbers of their own, such as 2003, from a server.
        other => encode_error(
            1429,
            state,
            &format!("Unable to connect to foreign data source: {other}"),
        ),
    }
}

/// A first connection, if the server's greeting is not known yet.
async fn fetch_greeting(
    visit: &ClientContext,
    house: &MysqlState,
) -> Result<Option<GreetedConnection>, MysqlBackendError> {
    // One asks for all: nobody can wait here for a connection that is given back, for it is not known yet who he is.
    let _turn = house.greeting_lock.lock().await;
    if house.greeting.borrow().is_some() {
        return Ok(None);
    }
    let deadline = Instant::now() + visit.upstream.destination.egress.wait;
    let lease = visit
        .upstream
        .source
        .connect(&visit.upstream.destination, deadline)
        .await?;
    before_deadline(
        visit,
        deadline,
        GreetedConnection::read_greeting(lease, house),
    )
    .await
    .map(Some)
}

/// The node logs in, unless it has done so before.
async fn login_as_node(
    answer: &mut HandshakeResponse,
    login: &EgressLogin,
    visit: &ClientContext,
    house: &MysqlState,
    first: Option<GreetedConnection>,
) -> Result<(Option<UsedConnection<MysqlBackend>>, Vec<u8>), MysqlBackendError> {
    answer.user = login.user.clone().into_bytes();
    if let (true, Some(db)) = (answer.db.is_empty(), &login.database) {
        answer.db = db.clone().into_bytes();
    }
    let guest = MysqlClientState {
        login: answer.clone(),
        backend: None,
        settings: Vec::new(),
    };
    if first.is_none()
        && house
            .known_logins
            .borrow()
            .contains(&guest.fingerprint(visit))
    {
        return Ok((None, OK_PAYLOAD.to_vec()));
    }
    let backend = acquire_backend(&guest, visit, house, first).await?;
    Ok((Some(backend), OK_PAYLOAD.to_vec()))
}

/// A backend on which the node has logged in.
pub(super) async fn acquire_backend(
    guest: &MysqlClientState,
    visit: &ClientContext,
    house: &MysqlState,
    first: Option<GreetedConnection>,
) -> Result<UsedConnection<MysqlBackend>, MysqlBackendError> {
    let (born, fingerprint) = (Instant::now(), guest.fingerprint(visit));
    let deadline = born + visit.upstream.destination.egress.wait;
    let greeted = match first {
        Some(greeted) => greeted,
        None => match house
            .idle_pool
            .acquire(&visit.upstream, &fingerprint, deadline)
            .await?
        {
            AcquireOutcome::Reused(kept) => return Ok(kept),
            AcquireOutcome::New(lease) => {
                before_deadline(
                    visit,
                    deadline,
                    GreetedConnection::read_greeting(lease, house),
                )
                .await?
            }
        },
    };
    let password = node_password(visit);
    let mut prover = PasswordSource::Node(&password);
    let (mut backend, _) = before_deadline(
        visit,
        deadline,
        greeted.log_in(visit, &guest.login, &mut prover),
    )
    .await?;
    before_deadline(visit, deadline, backend.apply_settings(&guest.settings)).await?;
    if guest.settings.is_empty() {
        house.learn_login(&fingerprint);
    }
    Ok(UsedConnection::new(backend, born))
}

/// The server asks the client.
async fn login_as_client(
    talk: &mut MysqlConnection<'_, TcpStream>,
    answer: &HandshakeResponse,
    visit: &ClientContext,
    house: &MysqlState,
    first: Option<GreetedConnection>,
) -> Result<(Option<UsedConnection<MysqlBackend>>, Vec<u8>), MysqlBackendError> {
    let (born, fingerprint) = (
        Instant::now(),
        MysqlClientState {
            login: answer.clone(),
            backend: None,
            settings: Vec::new(),
        }
        .fingerprint(visit),
    );
    let deadline = born + visit.upstream.destination.egress.wait;
    let mut prover = PasswordSource::Client(talk);
    let greeted = match first {
        Some(greeted) => greeted,
        None => match house
            .idle_pool
            .acquire(&visit.upstream, &fingerprint, deadline)
            .await?
        {
            AcquireOutcome::New(lease) => {
                before_deadline(
                    visit,
                    deadline,
                    GreetedConnection::read_greeting(lease, house),
                )
                .await?
            }
            AcquireOutcome::Reused(mut kept) => {
                return match before_deadline(
                    visit,
                    deadline,
                    kept.connection.change_user(answer, &mut prover),
                )
                .await
                {
                    Ok(ok) => Ok((Some(kept), ok)),
                    Err(unfit) => {
                        // Who failed may still be its last user.
                        kept.connection.close();
                        Err(unfit)
                    }
                };
            }
        },
    };
    let (backend, ok) =
        before_deadline(visit, deadline, greeted.log_in(visit, answer, &mut prover)).await?;
    Ok((Some(UsedConnection::new(backend, born)), ok))
}

async fn before_deadline<T>(
    visit: &ClientContext,
    deadline: Instant,
    what: impl Future<Output = Result<T, MysqlBackendError>>,
) -> Result<T, MysqlBackendError> {
    let late = || NoConnection::Refused {
        to: visit.upstream.destination.key.host_port.clone(),
        error: io::ErrorKind::TimedOut.into(),
    };
    tokio::time::timeout_at(deadline.into(), what)
        .await
        .unwrap_or_else(|_| Err(late().into()))
}

/// The password that the node logs in with.
pub(super) fn node_password(visit: &ClientContext) -> Vec<u8> {
    let login = visit.upstream.destination.egress.login.as_ref();
    let secret = login.and_then(|login| {
        visit
            .upstream
            .destination
            .secrets
            .get(login.password.as_ref()?)
    });
    secret
        .map(|secret| secret.trim_ascii_end().to_vec())
        .unwrap_or_default()
}

/// Random, without what ends a text.
fn random_salt() -> [u8; 20] {
    let mut salt = [0; 20];
    SystemRandom::new()
        .fill(&mut salt)
        .expect("the kernel has random numbers");
    salt.map(|byte| byte % 94 + 33)
}
