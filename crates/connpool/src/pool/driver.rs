//! The rim of the stock: does what it says, tells it what happened.
//!
//! Everything is on one thread. No borrow is held over a call to another part, and a lease that is dropped, wherever that happens, only leaves word for
//! [`ConnectionPool::run_maintenance`]: adapters may drop one in the middle of something.

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

use super::declared_keys::DeclaredKeys;
use super::dial::configure_socket;
use super::liveness::is_quiet;
use super::pending_connect::{ConnectFailure, ConnectResult, PendingConnect};
use super::ready_slots::{ReadySlotTable, TakeBackResult};
use super::resolver::NameResolver;
use super::{ConnectionLease, ConnectionSource, LeaseGuard, NextWaiter, NoConnection};
use crate::adapter_state::AdapterRegistry;
use crate::counters::DestinationCounters;
use crate::cwnd::CwndCache;
use crate::destination::{EgressDestination, PoolKey};
use crate::state::{KeyId, KeyTerms, PoolState, RequestOutcome, RequesterId, SocketId, WaitTicket};

/// All connections to destinations, and who waits for one.
#[derive(Debug, Default)]
pub struct ConnectionPool {
    pub(super) state: RefCell<PoolState>,
    pub(super) sockets: RefCell<HashMap<SocketId, PooledSocket>>,
    /// Leases that were dropped, of which the stock does not know yet.
    pub(super) dropped_leases: RefCell<Vec<SocketId>>,
    /// Wakes [`ConnectionPool::run_maintenance`], which else sleeps until it is due.
    pub(super) state_changed: Notify,
    pub(super) next_wake: Cell<Option<Instant>>,
    /// State that protocol adapters keep between clients.
    pub adapters: Rc<AdapterRegistry>,
    pub(super) declared_keys: RefCell<DeclaredKeys>,
    /// Whether nothing is kept for nobody.
    pub(super) is_draining_idle: Cell<bool>,
    /// Whether none is ever given away.
    pub(super) handover_disabled: Cell<bool>,
    /// What paths bear; `NoConnection`: no windows are opened.
    pub(super) cwnd_cache: RefCell<Option<CwndCache>>,
    pub(super) ready_slots: RefCell<ReadySlotTable>,
    pub(super) pending_connects: RefCell<HashMap<WaitTicket, oneshot::Sender<ConnectResult>>>,
    pub(super) resolver: NameResolver,
    /// Why the connection was not taken that is being reported to the stock.
    pub(super) last_error: RefCell<Option<io::Error>>,
}

/// A connection that nobody has been given.
#[derive(Debug)]
pub(super) enum PooledSocket {
    /// It is being opened.
    Connecting(AbortHandle),
    /// It is open.
    Warm(TcpStream),
    /// It is a clerk's, whose word is on its way.
    Taken(TcpStream),
}

/// See [`ConnectionPool::reserve_key`].
#[derive(Debug)]
pub struct KeyReservation {
    pool: Rc<ConnectionPool>,
    destination: Rc<EgressDestination>,
}

impl Drop for KeyReservation {
    fn drop(&mut self) {
        self.pool.release_destination(&self.destination);
    }
}

/// The connections that one function asks for: its clients wait in a line of their own.
struct FunctionSource {
    pool: Rc<ConnectionPool>,
    requester: Rc<RequesterId>,
}

/// What instances are told and tell.
impl ConnectionPool {
    /// Starts minding.
    pub fn start() -> Rc<Self> {
        let keeper = Rc::<Self>::default();
        spawn_local(Rc::clone(&keeper).run_maintenance());
        keeper
    }

    /// No connection is given away on this machine. What makes it fit for that is not for everybody: a user may not have a filter on a socket everywhere.
    pub fn disable_handover(&self) {
        self.handover_disabled.set(true);
    }

    /// An instance starts that will want connections to it.
    pub fn retain_destination(self: &Rc<Self>, to: &Rc<EgressDestination>) {
        let now = Instant::now();
        if !self.declared_keys.borrow_mut().add_user(&to.key) {
            let before = self.declared_keys.borrow().earlier_epochs(&to.key);
            for (key, id) in before {
                self.state.borrow_mut().retire_key(now, id);
                self.adapters.forget_key(&key);
            }
            let id = self.state.borrow_mut().declare_key(
                now,
                &to.key.limit_group(),
                KeyTerms::from_egress(&to.egress),
            );
            self.declared_keys.borrow_mut().add_key(to, id);
            if self.is_draining_idle.get() {
                self.state.borrow_mut().retire_key(now, id);
            }
        }
        if let Some(id) = self.key_id(&to.key) {
            self.state.borrow_mut().expect_clients(now, id, 1);
        }
        self.apply_and_reschedule();
    }

    /// Somebody who came from an instance may need connections when that has ended: as long as this is kept, the key is known.
    pub fn reserve_key(self: &Rc<Self>, to: &Rc<EgressDestination>) -> Option<KeyReservation> {
        let known =
            self.key_id(&to.key).is_some() && self.declared_keys.borrow_mut().add_user(&to.key);
        known.then(|| KeyReservation {
            pool: Rc::clone(self),
            destination: Rc::clone(to),
        })
    }

    /// Such an instance has ended.
    pub fn release_destination(self: &Rc<Self>, to: &EgressDestination) {
        let last = self.declared_keys.borrow_mut().remove_user(&to.key);
        if let Some(id) = last {
            self.adapters.forget_key(&to.key);
            if let Some(figures) = self.state.borrow().key_figures(id) {
                self.counters_for(to).add_key_figures(&figures);
            }
            self.state.borrow_mut().forget_key(Instant::now(), id);
            self.apply_and_reschedule();
            self.forget_ready_slot(id);
        }
    }

    /// Keeps nothing for nobody any more, whatever is declared later.
    pub fn drain_idle(self: &Rc<Self>) {
        self.is_draining_idle.set(true);
        self.adapters.shut_down();
        let ids = self.declared_keys.borrow().key_ids();
        ids.into_iter()
            .for_each(|id| self.state.borrow_mut().retire_key(Instant::now(), id));
        self.apply_and_reschedule();
    }

    /// Whether a name leads somewhere, as far as the machine can say now.
    pub async fn check_name_resolves(&self, name: &str) -> io::Result<()> {
        self.resolver.resolve(name).await.map(drop)
    }

    /// What a function asks with.
    pub fn source_for(self: &Rc<Self>, function: &FunctionId) -> Rc<dyn ConnectionSource> {
        let asker = self.declared_keys.borrow_mut().requester_for(function);
        Rc::new(FunctionSource {
            pool: Rc::clone(self),
            requester: asker,
        })
    }

    /// What is written down of a destination.
    pub fn counters_for(&self, to: &EgressDestination) -> Rc<DestinationCounters> {
        self.declared_keys.borrow_mut().counters_for(to)
    }

    /// A warm connection at once, or none; what is wanted and not there is learnt from.
    pub fn take_warm(self: &Rc<Self>, to: &EgressDestination) -> Option<ConnectionLease> {
        let id = self.key_id(&to.key)?;
        loop {
            let socket = self.state.borrow_mut().take_warm(Instant::now(), id);
            let good = self.take_if_alive(to, socket?);
            self.apply_and_reschedule();
            if let Some(stream) = good {
                return Some(self.make_lease(to, socket?, stream));
            }
        }
    }

    /// Whether what would be taken next is of another family: of `AF_INET6` while `v4` is wanted, or the other way round.
    pub fn next_has_other_family(&self, to: &EgressDestination, v4: bool) -> bool {
        let next = self
            .key_id(&to.key)
            .and_then(|id| self.state.borrow().warm_sockets(id).next());
        let sockets = self.sockets.borrow();
        match next.and_then(|socket| sockets.get(&socket)) {
            Some(PooledSocket::Warm(stream)) => {
                stream.local_addr().is_ok_and(|own| own.is_ipv4() != v4)
            }
            _ => false,
        }
    }

    /// Whether instances have a key.
    #[cfg(test)]
    pub(super) fn is_declared(&self, key: &PoolKey) -> bool {
        self.key_id(key).is_some()
    }

    pub(super) fn key_id(&self, key: &PoolKey) -> Option<KeyId> {
        self.declared_keys.borrow().key_id(key)
    }
}

/// Who asks.
impl ConnectionPool {
    async fn connect(
        self: &Rc<Self>,
        asker: RequesterId,
        to: &EgressDestination,
        deadline: Instant,
    ) -> Result<ConnectionLease, NoConnection> {
        let begun = Instant::now();
        self.refresh_name(to).await;
        loop {
            let id = self.key_id(&to.key).ok_or_else(|| {
                no_connection(to, begun, ConnectFailure::Other(NO_INSTANCE_MESSAGE))
            })?;
            let answer =
                self.state
                    .borrow_mut()
                    .request_socket(Instant::now(), id, asker, deadline);
            let told = match answer {
                RequestOutcome::Take(socket) => match self.take_if_alive(to, socket) {
                    Some(stream) => Ok((socket, stream)),
                    None => continue,
                },
                RequestOutcome::Wait(ticket) => self.start_waiting(ticket).wait().await,
                RequestOutcome::Refused(why) => Err(self.failure_of(why)),
            };
            self.apply_and_reschedule();
            let (socket, stream) = told.map_err(|why| no_connection(to, begun, why))?;
            let lease = self.make_lease(to, socket, stream);
            configure_socket(&lease.stream)
                .map_err(|error| no_connection(to, begun, ConnectFailure::Failed(error)))?;
            return Ok(lease);
        }
    }

    fn start_waiting(self: &Rc<Self>, ticket: WaitTicket) -> PendingConnect {
        let (waiting, tell) = PendingConnect::start(self, ticket);
        self.pending_connects.borrow_mut().insert(ticket, tell);
        self.apply_and_reschedule();
        waiting
    }

    pub(super) fn cancel_wait(self: &Rc<Self>, now: Instant, ticket: WaitTicket) {
        self.pending_connects.borrow_mut().remove(&ticket);
        if self.state.borrow_mut().cancel_wait(now, ticket) {
            self.apply_and_reschedule();
        }
    }

    /// A connection was given to somebody who had gone.
    pub(super) fn return_unused(self: &Rc<Self>, socket: SocketId, stream: TcpStream) {
        self.sockets
            .borrow_mut()
            .insert(socket, PooledSocket::Warm(stream));
        self.state
            .borrow_mut()
            .socket_unused(Instant::now(), socket);
        self.mark_slot_fillable(socket);
        self.state_changed.notify_one();
        self.apply_and_reschedule();
    }

    /// A warm connection that is handed out, unless it has ended meanwhile, or a clerk was quicker: then that one is who it was handed out to.
    fn take_if_alive(
        self: &Rc<Self>,
        to: &EgressDestination,
        socket: SocketId,
    ) -> Option<TcpStream> {
        if self.take_back(socket) == TakeBackResult::AlreadyTaken {
            return None;
        }
        let held = self.sockets.borrow_mut().remove(&socket);
        match held {
            Some(PooledSocket::Warm(stream))
                if is_quiet(&stream) && self.is_binding_current(to, &stream) =>
            {
                Some(stream)
            }
            _ => {
                self.state.borrow_mut().socket_stale(Instant::now(), socket);
                self.apply_and_reschedule();
                None
            }
        }
    }

    pub(super) fn make_lease(
        self: &Rc<Self>,
        to: &EgressDestination,
        socket: SocketId,
        stream: TcpStream,
    ) -> ConnectionLease {
        let keeper = Rc::clone(self);
        let gone = LeaseGuard::on_drop(move || {
            keeper.dropped_leases.borrow_mut().push(socket);
            keeper.state_changed.notify_one();
        });
        let gone = self
            .set_initial_cwnd(to, &stream, gone)
            .with_binding(self.name_binding(to, &stream));
        ConnectionLease {
            guard: gone,
            stream,
        }
    }
}

pub(super) const NO_INSTANCE_MESSAGE: &str = "no instance that declares it is there any more";

fn no_connection(to: &EgressDestination, begun: Instant, why: ConnectFailure) -> NoConnection {
    let to = to.key.host_port.clone();
    match why {
        ConnectFailure::Failed(error) => NoConnection::Refused { to, error },
        ConnectFailure::TimedOut(open) => NoConnection::Exhausted {
            to,
            open,
            waited: begun.elapsed(),
        },
        ConnectFailure::Other(what) => NoConnection::Refused {
            to,
            error: io::Error::other(what),
        },
    }
}

impl ConnectionSource for FunctionSource {
    fn next_waiter(&self, to: &EgressDestination) -> NextWaiter {
        self.pool.key_id(&to.key).map_or(NextWaiter::None, |id| {
            self.pool.state.borrow().next_waiter(id)
        })
    }

    fn connect<'a>(
        &'a self,
        to: &'a EgressDestination,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<ConnectionLease, NoConnection>> + 'a>> {
        Box::pin(self.pool.connect(*self.requester, to, deadline))
    }
}
