//! A connection to MySQL or MariaDB: greeted, logged in, cleaned.

use std::io;
use std::time::Duration;

use nearpath_types::egress::Tls;
use tokio::net::TcpStream;

use super::House;
use super::connection::{Talk, no_mysql};
use super::startup::{Answer, Greeting, prove};
use crate::Visit;
use nearpath_connpool::idle::Reused;
use nearpath_connpool::pool::{Lease, NoConnection};
use nearpath_connpool::socket::Socket;

/// Longest wait for a backend to be cleaned; one that takes longer is closed.
pub(super) const CLEANING: Duration = Duration::from_secs(5);
/// The way of proving that no server has: it names its own.
const NO_PLUGIN: &[u8] = b"nearpath";
const QUIT: &[u8] = &[1, 0, 0, 0, 1];
const RESET: &[u8] = &[0x1f];
const QUERY: &[u8] = &[3];

/// See the module.
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) socket: Socket,
    tls: bool,
    greeting: Greeting,
}

/// One that nobody is logged in at.
pub(super) struct Greeted {
    pub(super) greeting: Greeting,
    lease: Lease,
}

/// Why a connection could not be made or cleaned.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    /// What the server said, a payload that is for the client.
    #[error("refused")]
    Refused(Vec<u8>),
    /// It cannot be proved who asks.
    #[error("{0}")]
    Unproved(String),
    /// The connection to the server broke, or is not MySQL's.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// The client's broke.
    #[error("the client has left: {0}")]
    Left(io::Error),
    /// There is none.
    #[error(transparent)]
    NoConnection(#[from] NoConnection),
}

/// Who knows the password.
pub(super) enum Prover<'a, 'b> {
    /// The node.
    Node(&'a [u8]),
    /// The client: what the server asks, it is asked.
    Client(&'a mut Talk<'b, TcpStream>),
}

impl Reused for Backend {
    fn is_quiet(&self) -> bool {
        self.socket.is_quiet()
    }

    fn is_at_home(&self) -> bool {
        self.socket.is_at_home()
    }

    fn close(self) {
        tokio::task::spawn_local(self.socket.leave(QUIT));
    }
}

impl Greeted {
    /// Reads the server's greeting. A server that is full says so instead.
    pub(super) async fn open(mut lease: Lease, house: &House) -> Result<Self, Unfit> {
        let payload = Talk::new(&mut lease.stream, 0).read().await?;
        if payload.first() == Some(&0xff) {
            return Err(Unfit::Refused(payload));
        }
        let greeting = Greeting::read(&payload).ok_or_else(no_mysql)?;
        house.greeting.replace(Some(greeting.clone()));
        Ok(Self { greeting, lease })
    }

    /// Logs in as `answer` says; the server's OK.
    pub(super) async fn log_in(
        mut self,
        visit: &Visit,
        answer: &Answer,
        prover: &mut Prover<'_, '_>,
    ) -> Result<(Backend, Vec<u8>), Unfit> {
        let tls = visit.upstream.destination.egress.tls != Tls::Pass;
        let answer = proved(answer, prover, &self.greeting);
        let mut number = 1;
        if tls {
            let mut talk = Talk::new(&mut self.lease.stream, number);
            talk.write(&answer.ask_for_tls()).await?;
            number = talk.number();
        }
        let socket = nearpath_connpool::tls::on(self.lease, &visit.upstream.destination, &visit.upstream.rooms).await?;
        let mut backend = Backend { socket, tls, greeting: self.greeting };
        let welcome = backend.dialogue(number, &answer.write(tls), prover).await?;
        Ok((backend, welcome))
    }
}

/// What a connection is asked for with: a first proof of the node's, or a plugin that nobody has, so that the server asks the client itself.
fn proved(answer: &Answer, prover: &Prover<'_, '_>, greeting: &Greeting) -> Answer {
    let (proof, plugin) = match prover {
        Prover::Node(password) => (prove(&greeting.plugin, password, &greeting.salt), greeting.plugin.clone()),
        Prover::Client(_) => (None, NO_PLUGIN.to_vec()),
    };
    match proof {
        Some(proof) => Answer { proof, plugin, ..answer.clone() },
        None => Answer { proof: Vec::new(), plugin: NO_PLUGIN.to_vec(), ..answer.clone() },
    }
}

impl Backend {
    /// Makes it another client's; nothing of the last one stays. The server's OK.
    pub(super) async fn change_user(&mut self, answer: &Answer, prover: &mut Prover<'_, '_>) -> Result<Vec<u8>, Unfit> {
        // The salt of the greeting was used: the server names another one.
        let answer = Answer { proof: Vec::new(), plugin: NO_PLUGIN.to_vec(), ..answer.clone() };
        self.dialogue(0, &answer.change_user(), prover).await
    }

    /// Removes what a client left in it. The server's OK proves it.
    pub(super) async fn reset(&mut self) -> Result<(), Unfit> {
        let mut talk = Talk::new(&mut self.socket, 0);
        talk.write(RESET).await?;
        let said = talk.read().await?;
        if said.first() == Some(&0) { Ok(()) } else { Err(Unfit::Refused(said)) }
    }

    /// Makes settings anew.
    pub(super) async fn apply(&mut self, settings: &[Vec<u8>]) -> Result<(), Unfit> {
        for setting in settings {
            let mut talk = Talk::new(&mut self.socket, 0);
            talk.write(&[QUERY, setting].concat()).await?;
            let said = talk.read().await?;
            if said.first() != Some(&0) {
                return Err(Unfit::Refused(said));
            }
        }
        Ok(())
    }

    /// Says who asks, and proves it until the server is content.
    async fn dialogue(&mut self, number: u8, first: &[u8], prover: &mut Prover<'_, '_>) -> Result<Vec<u8>, Unfit> {
        let tls = self.tls;
        let salt = self.greeting.salt.clone();
        let mut talk = Talk::new(&mut self.socket, number);
        talk.write(first).await?;
        loop {
            let said = talk.read().await?;
            match said.first() {
                Some(0) => return Ok(said),
                Some(0xff) => return Err(Unfit::Refused(said)),
                Some(0xfe | 1) => {
                    if let Some(proof) = prover.answer(&said, &salt, tls).await? {
                        talk.write(&proof).await?;
                    }
                }
                _ => return Err(no_mysql().into()),
            }
        }
    }
}

impl Prover<'_, '_> {
    /// The answer to what the server asks, if it waits for one.
    async fn answer(&mut self, said: &[u8], salt: &[u8], tls: bool) -> Result<Option<Vec<u8>>, Unfit> {
        let content = said == [1, 3];
        match self {
            Self::Node(_) if content => Ok(None),
            Self::Node(password) => node(said, password, salt, tls).map(Some),
            Self::Client(client) => {
                client.write(said).await.map_err(Unfit::Left)?;
                if content { Ok(None) } else { client.read().await.map(Some).map_err(Unfit::Left) }
            }
        }
    }
}

/// The node's own answer.
fn node(said: &[u8], password: &[u8], salt: &[u8], tls: bool) -> Result<Vec<u8>, Unfit> {
    if said == [1, 4] {
        // The server has to see the password itself.
        return if tls {
            Ok([password, &[0]].concat())
        } else {
            Err(Unfit::Unproved("the server wants the password itself, which needs `tls=originate`".into()))
        };
    }
    let mut reader = super::frame::Reader(said.get(1..).unwrap_or_default());
    let plugin = reader.text().unwrap_or_default();
    let salt = if reader.0.is_empty() { salt } else { reader.0 };
    prove(plugin, password, salt).ok_or_else(|| {
        let plugin = String::from_utf8_lossy(plugin);
        Unfit::Unproved(format!("the server wants the password proved by {plugin}, which the node does not know: mysql_native_password or caching_sha2_password"))
    })
}
