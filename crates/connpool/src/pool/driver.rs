//! The rim of the stock: does what it says, tells it what happened.
//!
//! Everything is on one thread. No borrow is held over a call to another part, and a lease that is dropped, wherever that happens, only leaves word for
//! [`Keeper::mind`]: adapters may drop one in the middle of something.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use nearpath_types::FunctionId;
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, spawn_local};

use super::declared_keys::Declared;
use super::dial::set_up;
use super::liveness::is_quiet;
use super::pending_connect::{Refused, Told, Waiting};
use super::ready_slots::{Lifted, Trays};
use super::resolver::Names;
use super::{Backends, Gone, Lease, Need, NoConnection};
use crate::adapter_state::Rooms;
use crate::counters::Ledger;
use crate::cwnd::Windows;
use crate::destination::{Destination, Key};
use crate::state::{Answer, Asker, KeyId, SocketId, Stock, Terms, Ticket};

/// All connections to destinations, and who waits for one.
#[derive(Debug, Default)]
pub struct Keeper {
    pub(super) stock: RefCell<Stock>,
    pub(super) sockets: RefCell<HashMap<SocketId, Held>>,
    /// Leases that were dropped, of which the stock does not know yet.
    pub(super) gone: RefCell<Vec<SocketId>>,
    /// Wakes [`Keeper::mind`], which else sleeps until it is due.
    pub(super) changed: Notify,
    pub(super) minded: Cell<Option<Instant>>,
    /// State that protocol adapters keep between clients.
    pub rooms: Rc<Rooms>,
    pub(super) declared: RefCell<Declared>,
    /// Whether nothing is kept for nobody.
    pub(super) resting: Cell<bool>,
    /// Whether none is ever given away.
    pub(super) keeps_all: Cell<bool>,
    /// What paths bear; `None`: no windows are opened.
    pub(super) windows: RefCell<Option<Windows>>,
    pub(super) trays: RefCell<Trays>,
    pub(super) waiting: RefCell<HashMap<Ticket, oneshot::Sender<Told>>>,
    pub(super) names: Names,
    /// Why the connection was not taken that is being reported to the stock.
    pub(super) refusal: RefCell<Option<io::Error>>,
}

/// A connection that nobody has been given.
#[derive(Debug)]
pub(super) enum Held {
    /// It is being opened.
    Opening(AbortHandle),
    /// It is open.
    Warm(TcpStream),
    /// It is a clerk's, whose word is on its way.
    Taken(TcpStream),
}

/// See [`Keeper::stay`].
#[derive(Debug)]
pub struct Stay {
    keeper: Rc<Keeper>,
    to: Rc<Destination>,
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.keeper.expect_no_more(&self.to);
    }
}

/// The connections that one function asks for: its clients wait in a line of their own.
struct Asking {
    keeper: Rc<Keeper>,
    asker: Rc<Asker>,
}

/// What instances are told and tell.
impl Keeper {
    /// Starts minding.
    pub fn start() -> Rc<Self> {
        let keeper = Rc::<Self>::default();
        spawn_local(Rc::clone(&keeper).mind());
        keeper
    }

    /// No connection is given away on this machine. What makes it fit for that is not for everybody: a user may not have a filter on a socket everywhere.
    pub fn keep_all(&self) {
        self.keeps_all.set(true);
    }

    /// An instance starts that will want connections to it.
    pub fn expect(self: &Rc<Self>, to: &Rc<Destination>) {
        let now = Instant::now();
        if !self.declared.borrow_mut().joins(&to.key) {
            let before = self.declared.borrow().before(&to.key);
            for (key, id) in before {
                self.stock.borrow_mut().retire(now, id);
                self.rooms.forget(&key);
            }
            let id = self.stock.borrow_mut().declare(now, &to.key.place(), Terms::of(&to.egress));
            self.declared.borrow_mut().begin(to, id);
            if self.resting.get() {
                self.stock.borrow_mut().retire(now, id);
            }
        }
        if let Some(id) = self.id(&to.key) {
            self.stock.borrow_mut().expects(now, id, 1);
        }
        self.act();
    }

    /// Somebody who came from an instance may need connections when that has ended: as long as this is kept, the key is known.
    pub fn stay(self: &Rc<Self>, to: &Rc<Destination>) -> Option<Stay> {
        let known = self.id(&to.key).is_some() && self.declared.borrow_mut().joins(&to.key);
        known.then(|| Stay { keeper: Rc::clone(self), to: Rc::clone(to) })
    }

    /// Such an instance has ended.
    pub fn expect_no_more(self: &Rc<Self>, to: &Destination) {
        let last = self.declared.borrow_mut().leaves(&to.key);
        if let Some(id) = last {
            self.rooms.forget(&to.key);
            if let Some(figures) = self.stock.borrow().figures(id) {
                self.ledger(to).keep(&figures);
            }
            self.stock.borrow_mut().forget(Instant::now(), id);
            self.act();
            self.forget_tray(id);
        }
    }

    /// Keeps nothing for nobody any more, whatever is declared later.
    pub fn rest(self: &Rc<Self>) {
        self.resting.set(true);
        self.rooms.shut();
        let ids = self.declared.borrow().ids();
        ids.into_iter().for_each(|id| self.stock.borrow_mut().retire(Instant::now(), id));
        self.act();
    }

    /// Whether a name leads somewhere, as far as the machine can say now.
    pub async fn leads_somewhere(&self, name: &str) -> io::Result<()> {
        self.names.addresses(name).await.map(drop)
    }

    /// What a function asks with.
    pub fn for_function(self: &Rc<Self>, function: &FunctionId) -> Rc<dyn Backends> {
        let asker = self.declared.borrow_mut().asker(function);
        Rc::new(Asking { keeper: Rc::clone(self), asker })
    }

    /// What is written down of a destination.
    pub fn ledger(&self, to: &Destination) -> Rc<Ledger> {
        self.declared.borrow_mut().ledger(to)
    }

    /// A warm connection at once, or none; what is wanted and not there is learnt from.
    pub fn take(self: &Rc<Self>, to: &Destination) -> Option<Lease> {
        let id = self.id(&to.key)?;
        loop {
            let socket = self.stock.borrow_mut().take(Instant::now(), id);
            let good = self.good(to, socket?);
            self.act();
            if let Some(stream) = good {
                return Some(self.lease(to, socket?, stream));
            }
        }
    }

    /// Whether what would be taken next is of another family: of `AF_INET6` while `v4` is wanted, or the other way round.
    pub fn differs(&self, to: &Destination, v4: bool) -> bool {
        let next = self.id(&to.key).and_then(|id| self.stock.borrow().warm(id).next());
        let sockets = self.sockets.borrow();
        match next.and_then(|socket| sockets.get(&socket)) {
            Some(Held::Warm(stream)) => stream.local_addr().is_ok_and(|own| own.is_ipv4() != v4),
            _ => false,
        }
    }

    /// Whether instances have a key.
    #[cfg(test)]
    pub(super) fn id_of(&self, key: &Key) -> bool {
        self.id(key).is_some()
    }

    pub(super) fn id(&self, key: &Key) -> Option<KeyId> {
        self.declared.borrow().id(key)
    }
}

/// Who asks.
impl Keeper {
    async fn connect(
        self: &Rc<Self>,
        asker: Asker,
        to: &Destination,
        deadline: Instant,
    ) -> Result<Lease, NoConnection> {
        let begun = Instant::now();
        self.look_up(to).await;
        loop {
            let id = self.id(&to.key).ok_or_else(|| refused(to, begun, Refused::Because(GONE)))?;
            let answer = self.stock.borrow_mut().ask(Instant::now(), id, asker, deadline);
            let told = match answer {
                Answer::Take(socket) => match self.good(to, socket) {
                    Some(stream) => Ok((socket, stream)),
                    None => continue,
                },
                Answer::Wait(ticket) => self.wait(ticket).end().await,
                Answer::Refused(why) => Err(self.why(why)),
            };
            self.act();
            let (socket, stream) = told.map_err(|why| refused(to, begun, why))?;
            let lease = self.lease(to, socket, stream);
            set_up(&lease.stream).map_err(|error| refused(to, begun, Refused::Failed(error)))?;
            return Ok(lease);
        }
    }

    fn wait(self: &Rc<Self>, ticket: Ticket) -> Waiting {
        let (waiting, tell) = Waiting::begin(self, ticket);
        self.waiting.borrow_mut().insert(ticket, tell);
        self.act();
        waiting
    }

    pub(super) fn cancel(self: &Rc<Self>, now: Instant, ticket: Ticket) {
        self.waiting.borrow_mut().remove(&ticket);
        if self.stock.borrow_mut().cancel(now, ticket) {
            self.act();
        }
    }

    /// A connection was given to somebody who had gone.
    pub(super) fn unused(self: &Rc<Self>, socket: SocketId, stream: TcpStream) {
        self.sockets.borrow_mut().insert(socket, Held::Warm(stream));
        self.stock.borrow_mut().unused(Instant::now(), socket);
        self.has_more(socket);
        self.changed.notify_one();
        self.act();
    }

    /// A warm connection that is handed out, unless it has ended meanwhile, or a clerk was quicker: then that one is who it was handed out to.
    fn good(self: &Rc<Self>, to: &Destination, socket: SocketId) -> Option<TcpStream> {
        if self.lift(socket) == Lifted::Taken {
            return None;
        }
        let held = self.sockets.borrow_mut().remove(&socket);
        match held {
            Some(Held::Warm(stream)) if is_quiet(&stream) && self.is_at_home(to, &stream) => Some(stream),
            _ => {
                self.stock.borrow_mut().stale(Instant::now(), socket);
                self.act();
                None
            }
        }
    }

    pub(super) fn lease(self: &Rc<Self>, to: &Destination, socket: SocketId, stream: TcpStream) -> Lease {
        let keeper = Rc::clone(self);
        let gone = Gone::then(move || {
            keeper.gone.borrow_mut().push(socket);
            keeper.changed.notify_one();
        });
        let gone = self.follow(to, &stream, gone).at_home(self.home(to, &stream));
        Lease { gone, stream }
    }
}

pub(super) const GONE: &str = "no instance that declares it is there any more";

fn refused(to: &Destination, begun: Instant, why: Refused) -> NoConnection {
    let to = to.key.to.clone();
    match why {
        Refused::Failed(error) => NoConnection::Refused { to, error },
        Refused::Late(open) => NoConnection::Exhausted { to, open, waited: begun.elapsed() },
        Refused::Because(what) => NoConnection::Refused { to, error: io::Error::other(what) },
    }
}

impl Backends for Asking {
    fn need(&self, to: &Destination) -> Need {
        self.keeper.id(&to.key).map_or(Need::Nobody, |id| self.keeper.stock.borrow().need(id))
    }

    fn connect<'a>(
        &'a self,
        to: &'a Destination,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<Lease, NoConnection>> + 'a>> {
        Box::pin(self.keeper.connect(*self.asker, to, deadline))
    }
}
