//! The node logs in at a server, as whom the egress says.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use nearpath_types::egress::Tls;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::backend::Backend;
use super::backend_state::Facts;
use super::connection::Line;
use super::frame::HEAD;
use super::message::{self, state};
use super::startup::Startup;
use crate::Visit;
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::pool::{Lease, NoConnection};
use nearpath_connpool::socket::Socket;
use nearpath_connpool::tls;

/// Why there is no backend.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    #[error("{0}")]
    None(#[from] NoConnection),
    /// An ErrorResponse of the server's.
    #[error("the server refused")]
    Said(Bytes),
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("{0}")]
    Setting(String),
}

impl Unfit {
    /// One more client that got no connection; whom the keeper refused it has counted itself.
    pub(super) fn write_down(&self, ledger: &Ledger) {
        if !matches!(self, Self::None(_)) {
            Ledger::count(&ledger.refused, 1);
        }
    }

    /// What the client hears.
    pub(super) fn words(&self, to: &str) -> Bytes {
        match self {
            Self::None(why) => message::no_connection(why),
            Self::Said(error) => error.clone(),
            Self::Broken(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                message::fatal(state::NO_CONNECTION, &format!("nearpath: {to} closed the connection"), "")
            }
            Self::Broken(error) => message::fatal(state::NO_CONNECTION, &format!("nearpath: {to}: {error}"), ""),
            Self::Setting(what) => message::fatal(state::NO_CONNECTION, &format!("nearpath: {to}: {what}"), ""),
        }
    }
}

/// A new connection, with TLS on it where the node speaks that, and where it goes.
pub(super) async fn open(mut lease: Lease, visit: &Visit) -> Result<(Line<Socket>, SocketAddr), Unfit> {
    let at = lease.stream.peer_addr()?;
    if visit.upstream.destination.egress.tls != Tls::Pass {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        lease.stream.write_all(&request).await?;
        if lease.stream.read_u8().await? != b'S' {
            return Err(Unfit::Setting("it speaks no TLS, which `tls=originate` asks for".into()));
        }
    }
    Ok((Line::new(tls::on(lease, &visit.upstream.destination, &visit.upstream.rooms).await?), at))
}

/// Logs in on a new connection.
pub(super) async fn login(
    lease: Lease,
    visit: &Visit,
    startup: &Startup,
    password: Option<&[u8]>,
) -> Result<Backend, Unfit> {
    let (mut line, at) = open(lease, visit).await?;
    line.out.extend_from_slice(&startup.packet());
    line.flush().await?;
    authenticate(&mut line, &startup.user, password).await?;
    Backend::new(line, Facts::default(), at).begun().await
}

async fn authenticate(line: &mut Line<Socket>, user: &str, password: Option<&[u8]>) -> Result<(), Unfit> {
    let missing = || Unfit::Setting(format!("the server asks for a password of {user}, and `egress` names none"));
    loop {
        match said(line).await? {
            Message::AuthenticationOk => return Ok(()),
            Message::NoticeResponse(_) => continue,
            Message::AuthenticationCleartextPassword => {
                frontend::password_message(password.ok_or_else(missing)?, &mut line.out)?;
            }
            Message::AuthenticationMd5Password(body) => {
                let hash = md5_hash(user.as_bytes(), password.ok_or_else(missing)?, body.salt());
                frontend::password_message(hash.as_bytes(), &mut line.out)?;
            }
            Message::AuthenticationSasl(_) => scram(line, password.ok_or_else(missing)?).await?,
            _ => return Err(Unfit::Setting("the server asks for an authentication that is not spoken here".into())),
        }
        line.flush().await?;
    }
}

/// SCRAM-SHA-256 (RFC 7677). How long the key takes to derive is the server's choice, so that is done on another thread.
async fn scram(line: &mut Line<Socket>, password: &[u8]) -> Result<(), Unfit> {
    let mut scram = sasl::ScramSha256::new(password, sasl::ChannelBinding::unsupported());
    frontend::sasl_initial_response(sasl::SCRAM_SHA_256, scram.message(), &mut line.out)?;
    line.flush().await?;
    let Message::AuthenticationSaslContinue(body) = said(line).await? else { return Err(no_scram()) };
    let challenge = Bytes::copy_from_slice(body.data());
    let derived = tokio::task::spawn_blocking(move || scram.update(&challenge).map(|()| scram)).await;
    let mut scram = derived.map_err(io::Error::other)??;
    frontend::sasl_response(scram.message(), &mut line.out)?;
    line.flush().await?;
    let Message::AuthenticationSaslFinal(body) = said(line).await? else { return Err(no_scram()) };
    Ok(scram.finish(body.data())?)
}

fn no_scram() -> Unfit {
    Unfit::Setting("the server does not keep to SCRAM-SHA-256".into())
}

/// The server's next message; its error is the end.
async fn said(line: &mut Line<Socket>) -> Result<Message, Unfit> {
    let mut message = line.message().await?;
    if message[0] == b'E' {
        return Err(Unfit::Said(message.freeze()));
    }
    let parsed = Message::parse(&mut message)?;
    parsed.ok_or_else(|| Unfit::Setting("the server sent half a message".into()))
}

impl Backend {
    /// What the server says after it has let somebody in, up to its first ReadyForQuery.
    pub(super) async fn begun(mut self) -> Result<Self, Unfit> {
        loop {
            let message = self.line.message().await?;
            let body = &message[HEAD..];
            match (message[0], body) {
                (b'S', body) => self.facts.set(body),
                (b'K', [a, b, c, d, e, f, g, h]) => {
                    self.facts.key = (i32::from_be_bytes([*a, *b, *c, *d]), i32::from_be_bytes([*e, *f, *g, *h]));
                }
                (b'Z', [status]) => {
                    self.facts.status = *status;
                    self.facts.initial = Rc::new(self.facts.values.clone());
                    return Ok(self);
                }
                (b'N', _) => {}
                (b'E', _) => return Err(Unfit::Said(message.freeze())),
                (other, _) => {
                    return Err(Unfit::Setting(format!("the server began with a message of type {other:#x}")));
                }
            }
        }
    }
}
