//! A client's beginning: it is greeted, and says who it is.

use std::io;
use std::time::{Duration, Instant};

use nearpath_types::egress::Login;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::backend::{Backend, Greeted, Prover, Unfit};
use super::connection::{Talk, no_mysql};
use super::startup::{Answer, OK, can, error};
use super::{Fingerprint, House};
use crate::Visit;
use nearpath_connpool::idle::{Got, Kept, Reused};
use nearpath_connpool::pool::NoConnection;

/// A client says who it is within this time, as servers have it by default.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client that was let in.
pub(super) struct Guest {
    /// Who it is, to the server.
    pub(super) answer: Answer,
    pub(super) backend: Option<Kept<Backend>>,
    /// What it has set since, as far as it can be set again.
    pub(super) settings: Vec<Vec<u8>>,
}

impl Guest {
    /// Which backends serve it. Without a login of the node's, who it is is asked anew each time.
    pub(super) fn fingerprint(&self, visit: &Visit) -> Fingerprint {
        let Answer { can, charset, user, db, .. } = self.answer.clone();
        let can = can & can::UNDERSTOOD & !can::DB;
        match visit.upstream.destination.egress.login {
            Some(_) => Fingerprint { can, user, db, charset, settings: self.settings.clone() },
            None => Fingerprint { can, user, db: Vec::new(), charset: 0, settings: Vec::new() },
        }
    }
}

/// Greets a client and hears who it is; `None`: it was told why it cannot stay.
pub(super) async fn welcome(client: &mut TcpStream, visit: &Visit, house: &House) -> io::Result<Option<Guest>> {
    let mut talk = Talk::new(client, 0);
    let first = match greeted(visit, house).await {
        Ok(first) => first,
        Err(unfit) => return refuse(&mut talk, house, &unfit, None).await,
    };
    let greeting = house.greeting.borrow().clone().ok_or_else(no_mysql)?;
    talk.write(&greeting.write(&salt())).await?;
    let said = timeout(PATIENCE, talk.read()).await??;
    let Some(mut answer) = Answer::read(&said).filter(|answer| answer.can & can::PLUGIN_AUTH != 0) else {
        let text = "nearpath: the client asks for TLS, or speaks a protocol older than 4.1; the node speaks TLS with `tls=originate`";
        talk.write(&error(1043, Some("08S01"), text)).await?;
        return Ok(None);
    };
    let entered = match &visit.upstream.destination.egress.login {
        Some(login) => own(&mut answer, login, visit, house, first).await,
        None => theirs(&mut talk, &answer, visit, house, first).await,
    };
    match entered {
        Ok((backend, ok)) => {
            content(&mut talk, &answer, &ok, visit.upstream.destination.egress.login.is_some()).await?;
            Ok(Some(Guest { answer, backend, settings: Vec::new() }))
        }
        Err(unfit) => refuse(&mut talk, house, &unfit, Some("08S01")).await,
    }
}

/// Says OK, after what the client's way of proving expects before it.
async fn content(talk: &mut Talk<'_, TcpStream>, answer: &Answer, ok: &[u8], own: bool) -> io::Result<()> {
    let proved = !matches!(*answer.proof, [] | [0]);
    if own && proved && answer.plugin == b"caching_sha2_password" {
        talk.write(&[1, 3]).await?;
    }
    talk.write(ok).await
}

/// Tells a client why it cannot stay.
async fn refuse(
    talk: &mut Talk<'_, TcpStream>,
    house: &House,
    unfit: &Unfit,
    state: Option<&str>,
) -> io::Result<Option<Guest>> {
    house.forget();
    match unfit {
        Unfit::Left(left) => return Err(io::Error::new(left.kind(), left.to_string())),
        unfit => talk.write(&line(unfit, state)).await?,
    }
    Ok(None)
}

/// An error in the words of MySQL.
pub(super) fn line(unfit: &Unfit, state: Option<&str>) -> Vec<u8> {
    match unfit {
        Unfit::Refused(said) => said.clone(),
        Unfit::NoConnection(full @ NoConnection::Exhausted { .. }) => {
            error(1040, state, &format!("Too many connections: {full} (egress max=)"))
        }
        Unfit::Unproved(why) => error(1045, state, why),
        // As of a table that is elsewhere: clients refuse numbers of their own, such as 2003, from a server.
        other => error(1429, state, &format!("Unable to connect to foreign data source: {other}")),
    }
}

/// A first connection, if the server's greeting is not known yet.
async fn greeted(visit: &Visit, house: &House) -> Result<Option<Greeted>, Unfit> {
    // One asks for all: nobody can wait here for a connection that is given back, for it is not known yet who he is.
    let _turn = house.first.lock().await;
    if house.greeting.borrow().is_some() {
        return Ok(None);
    }
    let deadline = Instant::now() + visit.upstream.destination.egress.wait;
    let lease = visit.upstream.backends.connect(&visit.upstream.destination, deadline).await?;
    in_time(visit, deadline, Greeted::open(lease, house)).await.map(Some)
}

/// The node logs in, unless it has done so before.
async fn own(
    answer: &mut Answer,
    login: &Login,
    visit: &Visit,
    house: &House,
    first: Option<Greeted>,
) -> Result<(Option<Kept<Backend>>, Vec<u8>), Unfit> {
    answer.user = login.user.clone().into_bytes();
    if let (true, Some(db)) = (answer.db.is_empty(), &login.database) {
        answer.db = db.clone().into_bytes();
    }
    let guest = Guest { answer: answer.clone(), backend: None, settings: Vec::new() };
    if first.is_none() && house.proven.borrow().contains(&guest.fingerprint(visit)) {
        return Ok((None, OK.to_vec()));
    }
    let backend = attach(&guest, visit, house, first).await?;
    Ok((Some(backend), OK.to_vec()))
}

/// A backend on which the node has logged in.
pub(super) async fn attach(
    guest: &Guest,
    visit: &Visit,
    house: &House,
    first: Option<Greeted>,
) -> Result<Kept<Backend>, Unfit> {
    let (born, fingerprint) = (Instant::now(), guest.fingerprint(visit));
    let deadline = born + visit.upstream.destination.egress.wait;
    let greeted = match first {
        Some(greeted) => greeted,
        None => match house.bench.acquire(&visit.upstream, &fingerprint, deadline).await? {
            Got::Used(kept) => return Ok(kept),
            Got::New(lease) => in_time(visit, deadline, Greeted::open(lease, house)).await?,
        },
    };
    let password = password(visit);
    let mut prover = Prover::Node(&password);
    let (mut backend, _) = in_time(visit, deadline, greeted.log_in(visit, &guest.answer, &mut prover)).await?;
    in_time(visit, deadline, backend.apply(&guest.settings)).await?;
    if guest.settings.is_empty() {
        house.learn(&fingerprint);
    }
    Ok(Kept::new(backend, born))
}

/// The server asks the client.
async fn theirs(
    talk: &mut Talk<'_, TcpStream>,
    answer: &Answer,
    visit: &Visit,
    house: &House,
    first: Option<Greeted>,
) -> Result<(Option<Kept<Backend>>, Vec<u8>), Unfit> {
    let (born, fingerprint) =
        (Instant::now(), Guest { answer: answer.clone(), backend: None, settings: Vec::new() }.fingerprint(visit));
    let deadline = born + visit.upstream.destination.egress.wait;
    let mut prover = Prover::Client(talk);
    let greeted = match first {
        Some(greeted) => greeted,
        None => match house.bench.acquire(&visit.upstream, &fingerprint, deadline).await? {
            Got::New(lease) => in_time(visit, deadline, Greeted::open(lease, house)).await?,
            Got::Used(mut kept) => {
                return match in_time(visit, deadline, kept.item.change_user(answer, &mut prover)).await {
                    Ok(ok) => Ok((Some(kept), ok)),
                    Err(unfit) => {
                        // Who failed may still be its last user.
                        kept.item.close();
                        Err(unfit)
                    }
                };
            }
        },
    };
    let (backend, ok) = in_time(visit, deadline, greeted.log_in(visit, answer, &mut prover)).await?;
    Ok((Some(Kept::new(backend, born)), ok))
}

async fn in_time<T>(
    visit: &Visit,
    deadline: Instant,
    what: impl Future<Output = Result<T, Unfit>>,
) -> Result<T, Unfit> {
    let late = || NoConnection::Refused {
        to: visit.upstream.destination.key.to.clone(),
        error: io::ErrorKind::TimedOut.into(),
    };
    tokio::time::timeout_at(deadline.into(), what).await.unwrap_or_else(|_| Err(late().into()))
}

/// The password that the node logs in with.
pub(super) fn password(visit: &Visit) -> Vec<u8> {
    let login = visit.upstream.destination.egress.login.as_ref();
    let secret = login.and_then(|login| visit.upstream.destination.secrets.get(login.password.as_ref()?));
    secret.map(|secret| secret.trim_ascii_end().to_vec()).unwrap_or_default()
}

/// Random, without what ends a text.
fn salt() -> [u8; 20] {
    let mut salt = [0; 20];
    SystemRandom::new().fill(&mut salt).expect("the kernel has random numbers");
    salt.map(|byte| byte % 94 + 33)
}
