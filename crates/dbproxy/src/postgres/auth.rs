//! A function that logs in by itself: its own password goes through to the server. What it proved there opens used sessions to the next client that proves
//! the same, as far as the method allows: with `trust` there is nothing to prove, a password in clear is compared with the one before, and an answer to
//! an MD5 challenge is, too, when the same salt is shown. SCRAM's proofs hold for one session, so that each client opens its own and keeps it.

use std::rc::Rc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use nearpath_types::egress::Mode;
use postgres_protocol::authentication::sasl::SCRAM_SHA_256;
use tokio::net::TcpStream;

use super::backend::Backend;
use super::backend_state::Facts;
use super::connection::Line;
use super::frame::{HEAD, text};
use super::handshake::{Guest, Password, Turned, let_in, too_slow};
use super::login::{Unfit, open};
use super::message;
use super::startup::Startup;
use super::state::{Asks, Fingerprint, Proof, Room};
use crate::Visit;
use nearpath_connpool::idle::{Got, Kept};
use nearpath_connpool::socket::Socket;

/// Codes of the messages 'R' (the protocol's chapter "Message Formats").
mod code {
    pub(super) const OK: u32 = 0;
    pub(super) const CLEARTEXT: u32 = 3;
    pub(super) const MD5: u32 = 5;
    pub(super) const SASL: u32 = 10;
    pub(super) const SASL_FINAL: u32 = 12;
}

/// Lets a client show its right, to this room if that can be, else to the server.
pub(super) async fn show(
    client: &mut Line<TcpStream>,
    startup: Startup,
    visit: &Visit,
    room: &Room,
    deadline: Instant,
) -> Result<Guest, Turned> {
    let asks = room.asks(&startup);
    let given = match asks {
        Some(Asks::Nothing) => {
            return Ok(let_in(startup, Password::Known(None), Proof::Trust, visit, room, deadline).await?);
        }
        Some(Asks::Cleartext) => Some(ask(client, message::ASK_CLEARTEXT).await?),
        Some(Asks::Md5(salt)) => Some(ask(client, &message::ask_md5(salt)).await?),
        _ => None,
    };
    let proof = asks.zip(given.as_deref()).map(|(asks, given)| room.proof(asks, given));
    if let Some(guest) = proof.and_then(|proof| returning(&startup, asks, given.as_deref(), proof, room)) {
        return Ok(guest);
    }
    let cleartext = given.filter(|_| asks == Some(Asks::Cleartext));
    let shown = to_server(client, startup, cleartext, visit, room, deadline);
    tokio::time::timeout_at(deadline.into(), shown).await.unwrap_or_else(|_| Err(too_slow().into()))
}

/// A client that has proved what one before it proved.
fn returning(startup: &Startup, asks: Option<Asks>, given: Option<&[u8]>, proof: Proof, room: &Room) -> Option<Guest> {
    let fingerprint = Fingerprint::of(startup, proof);
    let welcome = room.welcome(&fingerprint)?;
    let backend = room.bench.take(&fingerprint);
    let password = match (asks, given) {
        (Some(Asks::Cleartext), Some(password)) => Password::Known(Some(password.to_vec())),
        // Its answer opens no other session: there has to be one.
        _ if backend.is_some() => Password::Spent,
        _ => return None,
    };
    Some(Guest { startup: startup.clone(), password, fingerprint, values: Rc::unwrap_or_clone(welcome), backend })
}

/// Asks the client in the server's stead, and takes its answer.
async fn ask(client: &mut Line<TcpStream>, question: &[u8]) -> Result<Bytes, Turned> {
    client.out.extend_from_slice(question);
    answer(client).await.map(|message| {
        let body = message.freeze().slice(HEAD..);
        body.strip_suffix(&[0]).map_or_else(|| body.clone(), |text| body.slice_ref(text))
    })
}

async fn answer(client: &mut Line<TcpStream>) -> Result<BytesMut, Turned> {
    client.flush().await?;
    let message = client.message().await?;
    if message[0] == b'p' {
        return Ok(message);
    }
    Err(Turned::Wrong(message::state::WRONG_PASSWORD, "a password was expected".into()))
}

/// Lets the server ask, on a connection that nobody has used.
async fn to_server(
    client: &mut Line<TcpStream>,
    startup: Startup,
    mut cleartext: Option<Bytes>,
    visit: &Visit,
    room: &Room,
    deadline: Instant,
) -> Result<Guest, Turned> {
    // Its fingerprint is nobody's, so that what comes is new.
    let Got::New(lease) = room
        .bench
        .acquire(&visit.upstream, &Fingerprint::of(&startup, Proof::Once), deadline)
        .await
        .map_err(Unfit::from)?
    else {
        return Err(Turned::Down(Unfit::Setting("a used connection came where a new one was asked for".into())));
    };
    let (mut line, at) = open(lease, visit).await?;
    line.out.extend_from_slice(&startup.packet());
    line.flush().await.map_err(Unfit::from)?;
    let (asks, given) = pass_through(client, &mut line, &mut cleartext).await?;
    let backend = Backend::new(line, Facts::default(), at).begun().await?;
    room.asked(&startup, asks);
    let (proof, password) = match (asks, given) {
        (Asks::Nothing, _) => (Proof::Trust, Password::Known(None)),
        (Asks::Cleartext, Some(given)) => (room.proof(asks, &given), Password::Known(Some(given.to_vec()))),
        (Asks::Md5(_), Some(given)) => (room.proof(asks, &given), Password::Spent),
        _ => (Proof::Once, Password::Spent),
    };
    let fingerprint = Fingerprint::of(&startup, proof);
    let initial = backend.facts.initial.clone();
    room.remember(&fingerprint, &initial);
    let backend = Some(Kept::new(backend, Instant::now()));
    Ok(Guest { startup, password, fingerprint, values: Rc::unwrap_or_clone(initial), backend })
}

/// Passes questions and answers on until the server is content. How it asked, and the last answer that can be compared.
async fn pass_through(
    client: &mut Line<TcpStream>,
    server: &mut Line<Socket>,
    cleartext: &mut Option<Bytes>,
) -> Result<(Asks, Option<Bytes>), Turned> {
    let (mut asks, mut given) = (Asks::Nothing, None);
    loop {
        let question = server.message().await.map_err(Unfit::from)?;
        match (question[0], question.get(HEAD..HEAD + 4)) {
            (b'E', _) => return Err(Turned::Down(Unfit::Said(question.freeze()))),
            (b'N', _) => continue,
            (b'R', Some(_)) => {}
            _ => return Err(Turned::Down(Unfit::Setting("the server did not ask who comes".into()))),
        }
        let asked = u32::from_be_bytes(question[HEAD..HEAD + 4].try_into().expect("four bytes"));
        asks = match asked {
            code::OK => return Ok((asks, given)),
            code::CLEARTEXT => Asks::Cleartext,
            code::MD5 => Asks::Md5(
                question[HEAD + 4..].try_into().map_err(|_| Unfit::Setting("a salt of another length".into()))?,
            ),
            _ => Asks::Anew,
        };
        if asked == code::SASL_FINAL {
            client.out.extend_from_slice(&question);
            continue;
        }
        let answer = match cleartext.take().filter(|_| asked == code::CLEARTEXT) {
            Some(known) => password_message(&known),
            None => {
                match asked {
                    code::SASL => offer_scram(&question, &mut client.out)?,
                    _ => client.out.extend_from_slice(&question),
                }
                answer(client).await?
            }
        };
        server.out.extend_from_slice(&answer);
        server.flush().await.map_err(Unfit::from)?;
        given = text(&answer[HEAD..]).map(|(text, _)| Bytes::copy_from_slice(text));
    }
}

fn password_message(password: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    message::message(&mut out, b'p', |out| message::text(out, password));
    out
}

/// The server's list without the methods that are bound to its TLS, of which the client sees nothing.
fn offer_scram(question: &[u8], out: &mut BytesMut) -> Result<(), Unfit> {
    let mut methods = question[HEAD + 4..].split(|&byte| byte == 0);
    if !methods.any(|method| method == SCRAM_SHA_256.as_bytes()) {
        return Err(Unfit::Setting("the server offers no SCRAM-SHA-256".into()));
    }
    message::message(out, b'R', |out| {
        out.extend_from_slice(&code::SASL.to_be_bytes());
        message::text(out, SCRAM_SHA_256.as_bytes());
        out.extend_from_slice(&[0]);
    });
    Ok(())
}

impl Guest {
    /// Why this guest keeps the backend that it came in by.
    pub(super) fn keeps_backend(&self, mode: Mode) -> Option<&'static str> {
        (mode == Mode::Transaction && matches!(self.password, Password::Spent)).then_some("the function's own password")
    }
}
