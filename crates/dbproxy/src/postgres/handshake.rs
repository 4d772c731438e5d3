//! How a client comes in: it says who it is, shows by what right, and hears how its session begins. What the server would say is known from the first
//! session of its kind, so that the second client and all after it are let in without asking the server.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Buf;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::backend::Backend;
use super::backend_state::Values;
use super::cancel::Seat;
use super::connection::Line;
use super::login::{Unfit, login};
use super::message::{self, state};
use super::startup::{self, Opening, Startup};
use super::state::{Fingerprint, Proof, Room};
use super::{auth, startup::opening};
use crate::Visit;
use nearpath_connpool::idle::{Got, Kept};

/// Longest that a client may take to say who it is, and to show it; PostgreSQL's `authentication_timeout` is a minute, too.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// What a client wishes to be called. It is no part of a fingerprint, but restored as a setting.
const NAME: &str = "application_name";
const LONGEST_NAME: usize = 63;

/// A client that is in.
pub(super) struct Guest {
    /// How backends for it are logged in at.
    pub(super) startup: Startup,
    pub(super) password: Password,
    pub(super) fingerprint: Fingerprint,
    pub(super) values: Values,
    /// The one that it came in by.
    pub(super) backend: Option<Kept<Backend>>,
}

/// What there is to log in with once more.
pub(super) enum Password {
    /// This.
    Known(Option<Vec<u8>>),
    /// A proof that was good for one session.
    Spent,
}

/// Why a client did not come in.
#[derive(Debug)]
pub(super) enum Turned {
    /// Nobody speaks any more.
    Away(io::Error),
    /// It hears this.
    Down(Unfit),
    /// It hears this, too: the fault is its own.
    Wrong(&'static str, String),
}

impl From<io::Error> for Turned {
    fn from(error: io::Error) -> Self {
        Self::Away(error)
    }
}

impl From<Unfit> for Turned {
    fn from(unfit: Unfit) -> Self {
        Self::Down(unfit)
    }
}

/// The first thing that a client says, after it was told that nothing is encrypted here.
pub(super) async fn first_words(client: &mut Line<TcpStream>) -> Result<Opening, Turned> {
    let hearing = async {
        loop {
            let length = client.bytes(4).await?.get_u32() as usize;
            if !(8..=startup::LONGEST).contains(&length) {
                return Err(Turned::Wrong(state::PROTOCOL, format!("a first message of {length} bytes")));
            }
            match opening(&client.bytes(length - 4).await?) {
                Some(Opening::Encrypt) => client.stream.write_all(b"N").await?,
                Some(Opening::Unknown(code)) => {
                    let what = format!("protocol {}.{} is not spoken here, 3.0 is", code >> 16, code & 0xffff);
                    return Err(Turned::Wrong("0A000", what));
                }
                Some(opening) => return Ok(opening),
                None => return Err(Turned::Wrong(state::PROTOCOL, "a first message that cannot be read".into())),
            }
        }
    };
    let late = |_| Turned::Away(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(PATIENCE, hearing).await.map_err(late)?
}

/// Lets a client in. The answer waits in its line's `out`.
pub(super) async fn enter(
    client: &mut Line<TcpStream>,
    mut startup: Startup,
    visit: &Visit,
    room: &Room,
    seat: &Seat,
) -> Result<Guest, Turned> {
    let name = startup.options.remove(NAME).unwrap_or_default();
    startup.answer_newer(&mut client.out);
    let deadline = Instant::now() + visit.upstream.destination.egress.wait;
    let mut guest = match known_password(&mut startup, visit)? {
        Some(password) => let_in(startup, Password::Known(password), Proof::Function, visit, room, deadline).await?,
        None => auth::show(client, startup, visit, room, deadline).await?,
    };
    let name: String =
        name.chars().map(|letter| if matches!(letter, ' '..='~') { letter } else { '?' }).take(LONGEST_NAME).collect();
    if !name.is_empty() && guest.values.contains_key(NAME) {
        guest.values.insert(NAME.into(), name);
    }
    client.out.extend_from_slice(message::AUTHENTICATED);
    guest.values.iter().for_each(|(name, value)| message::parameter(&mut client.out, name, value));
    message::key(&mut client.out, seat.key);
    message::ready(&mut client.out, super::backend_state::IDLE);
    Ok(guest)
}

/// Where the egress says as whom to log in, that is who the client is, whatever it calls itself.
fn known_password(startup: &mut Startup, visit: &Visit) -> Result<Option<Option<Vec<u8>>>, Unfit> {
    let to = &visit.upstream.destination;
    let Some(login) = &to.egress.login else { return Ok(None) };
    startup.user.clone_from(&login.user);
    login.database.iter().for_each(|database| startup.database.clone_from(database));
    let secret = login.password.as_ref().map(|secret| {
        let missing = || Unfit::Setting(format!("`password=secret:{secret}`: the function has no such secret"));
        to.secrets.get(secret).map(|password| without_line_end(password).to_vec()).ok_or_else(missing)
    });
    Ok(Some(secret.transpose()?))
}

/// Secrets that were written with an editor end in one.
fn without_line_end(secret: &[u8]) -> &[u8] {
    let secret = secret.strip_suffix(b"\n").unwrap_or(secret);
    secret.strip_suffix(b"\r").unwrap_or(secret)
}

/// Lets a client in whose right is shown: at once if it is known how such a session begins.
pub(super) async fn let_in(
    startup: Startup,
    password: Password,
    proof: Proof,
    visit: &Visit,
    room: &Room,
    deadline: Instant,
) -> Result<Guest, Unfit> {
    let fingerprint = Fingerprint::of(&startup, proof);
    let mut guest = Guest { startup, password, fingerprint, values: Values::new(), backend: None };
    let welcome = match room.welcome(&guest.fingerprint) {
        Some(welcome) => welcome,
        None => {
            let kept = guest.find(visit, room, deadline).await?;
            let initial = kept.item.facts.initial.clone();
            guest.backend = Some(kept);
            room.remember(&guest.fingerprint, &initial);
            initial
        }
    };
    guest.values = Rc::unwrap_or_clone(welcome);
    Ok(guest)
}

impl Guest {
    /// A backend for it: one that is idle, one that is given back, or a new one.
    pub(super) async fn find(&self, visit: &Visit, room: &Room, deadline: Instant) -> Result<Kept<Backend>, Unfit> {
        let lease = loop {
            match room.bench.acquire(&visit.upstream, &self.fingerprint, deadline).await? {
                Got::New(lease) => break lease,
                Got::Used(kept) => {
                    let (backend, born) = kept.apart();
                    if let Some(backend) = backend.roused().await {
                        return Ok(Kept::new(backend, born));
                    }
                }
            }
        };
        let Password::Known(password) = &self.password else {
            return Err(Unfit::Setting("the function's password was good for one session only".into()));
        };
        let login = login(lease, visit, &self.startup, password.as_deref());
        let backend = tokio::time::timeout_at(deadline.into(), login).await.unwrap_or_else(|_| Err(too_slow()));
        let backend = backend.inspect_err(|_| room.forget(&self.fingerprint))?;
        Ok(Kept::new(backend, Instant::now()))
    }
}

pub(super) fn too_slow() -> Unfit {
    Unfit::Setting("the server took longer than `wait` to let the node in".into())
}
