//! Driver of the state machine: carries out its actions and reports events.
//!
//! Everything runs on one thread. No borrow is held over a call to another part. A dropped lease
//! only queues its id for [`ConnectionPool::run_maintenance`], because adapters may drop one while
//! the state is borrowed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use nearpath_kernel::bpf::PeerNames;
use nearpath_types::FunctionId;
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, spawn_local};

use super::declared_keys::DeclaredKeys;
use super::dial::configure_socket;
use super::liveness::is_quiet;
use super::ready_slot_table::{ReadySlotTable, TakeBackResult};
use super::resolver::NameResolver;
use super::{ConnectionLease, ConnectionSource, LeaseGuard, NextWaiter, NoConnection};
use crate::adapter_state::AdapterRegistry;
use crate::counters::DestinationCounters;
use crate::cwnd::CwndCache;
use crate::destination::{EgressDestination, PoolKey};
use crate::state::{KeyId, KeyTerms, PoolState, RequestOutcome, RequesterId, SocketId, WaitTicket};

/// All connections to destinations, and the clients that wait for one.
#[derive(Debug, Default)]
pub struct ConnectionPool {
    pub(super) state: RefCell<PoolState>,
    pub(super) sockets: RefCell<HashMap<SocketId, PooledSocket>>,
    /// Dropped leases that the state machine does not know of yet.
    pub(super) dropped_leases: RefCell<Vec<SocketId>>,
    /// Wakes [`ConnectionPool::run_maintenance`], which otherwise sleeps until the next timer.
    pub(super) state_changed: Notify,
    pub(super) next_wake: Cell<Option<Instant>>,
    /// State that protocol adapters keep between clients.
    pub adapters: Rc<AdapterRegistry>,
    pub(super) declared_keys: RefCell<DeclaredKeys>,
    /// Nodes that share the limit of a declaration, by its limit group; absent: this one alone.
    pub(super) node_counts: RefCell<BTreeMap<String, u32>>,
    /// True if nothing is kept open ahead of use.
    pub(super) is_draining_idle: Cell<bool>,
    /// True if no socket is ever handed over.
    pub(super) handover_disabled: Cell<bool>,
    /// Capacity of paths; `None` if windows are left to the kernel.
    pub(super) cwnd_cache: RefCell<Option<CwndCache>>,
    /// Peers that functions see on handed-out sockets; `None` if they see the kernel's.
    pub(super) peer_names: RefCell<Option<PeerNames>>,
    pub(super) ready_slots: RefCell<ReadySlotTable>,
    pub(super) pending_connects: RefCell<HashMap<WaitTicket, oneshot::Sender<ConnectResult>>>,
    pub(super) resolver: NameResolver,
    /// Error of the failed connect that is being reported to the state machine.
    pub(super) last_error: RefCell<Option<io::Error>>,
}

/// A connection that has not been handed out.
#[derive(Debug)]
pub(super) enum PooledSocket {
    /// The connect is running.
    Connecting(AbortHandle),
    /// The connection is open.
    Warm(TcpStream),
    /// A supervisor has taken it, and its report is on the way.
    Taken(TcpStream),
}

/// Outcome for a waiting client.
pub(super) type ConnectResult = Result<(SocketId, TcpStream), ConnectFailure>;

/// Reason why a waiting client gets no connection.
#[derive(Debug)]
pub(super) enum ConnectFailure {
    /// The destination refused the connection.
    Failed(std::io::Error),
    /// No slot became free in time; so many connections are open.
    TimedOut(u32),
    /// Another reason, as text.
    Other(&'static str),
}

/// Keeps a key declared; see [`ConnectionPool::reserve_key`].
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

/// Source of connections for one function, whose clients share one queue.
struct FunctionSource {
    pool: Rc<ConnectionPool>,
    requester: Rc<RequesterId>,
}

/// Operations of instances.
impl ConnectionPool {
    /// Starts the pool and its maintenance task on the current local set.
    pub fn start() -> Rc<Self> {
        let pool = Rc::<Self>::default();
        spawn_local(Rc::clone(&pool).run_maintenance());
        pool
    }

    /// Disables handover on this machine. Otherwise sockets get a filter that locks them to their
    /// peer, which unprivileged users may not set everywhere.
    pub fn disable_handover(&self) {
        self.handover_disabled.set(true);
    }

    /// Registers an instance that will connect to this destination.
    pub fn retain_destination(self: &Rc<Self>, to: &Rc<EgressDestination>) {
        let now = Instant::now();
        if !self.declared_keys.borrow_mut().add_user(&to.key) {
            // Connections of earlier epochs close now. Instances that still have those keys get new
            // ones.
            let earlier = self.declared_keys.borrow().earlier_epochs(&to.key);
            for (key, id) in earlier {
                self.state.borrow_mut().retire_key(now, id);
                self.adapters.forget_key(&key);
            }
            let id = self.state.borrow_mut().declare_key(
                now,
                &to.key.limit_group(),
                KeyTerms::from_egress(&to.egress.for_one_of(self.node_count(to))),
            );
            self.declared_keys.borrow_mut().add_key(to, id);
            // A draining pool serves this key but keeps nothing warm for it.
            if self.is_draining_idle.get() {
                self.state.borrow_mut().retire_key(now, id);
            }
        }
        // Connections open while the instance starts, so that its first request finds one.
        if let Some(id) = self.key_id(&to.key) {
            self.state.borrow_mut().expect_clients(now, id, 1);
        }
        self.apply_and_reschedule();
    }

    /// Sets the numbers of nodes that share the limits of declarations, by limit group. Connections in use
    /// stay open, also above a lower limit.
    pub fn set_node_counts(self: &Rc<Self>, changes: &BTreeMap<String, u32>) {
        let now = Instant::now();
        self.node_counts.borrow_mut().extend(changes.clone());
        self.node_counts.borrow_mut().retain(|_, count| *count > 1);
        for (id, to) in self.declared_keys.borrow().destinations() {
            if changes.contains_key(&to.declared_group()) {
                let terms = KeyTerms::from_egress(&to.egress.for_one_of(self.node_count(&to)));
                let mut state = self.state.borrow_mut();
                state.set_limits(now, id, terms.max, terms.warm);
            }
        }
        self.apply_and_reschedule();
    }

    /// Returns the number of nodes that share the limit of a destination.
    pub(super) fn node_count(&self, to: &EgressDestination) -> u32 {
        let counts = self.node_counts.borrow();
        counts.get(&to.declared_group()).copied().unwrap_or(1)
    }

    /// Keeps the key declared until the result is dropped, for work that outlives its instance.
    pub fn reserve_key(self: &Rc<Self>, to: &Rc<EgressDestination>) -> Option<KeyReservation> {
        // A key without instances is not declared again: its settings may be outdated.
        let is_declared =
            self.key_id(&to.key).is_some() && self.declared_keys.borrow_mut().add_user(&to.key);
        is_declared.then(|| KeyReservation {
            pool: Rc::clone(self),
            destination: Rc::clone(to),
        })
    }

    /// Unregisters an instance of this destination.
    pub fn release_destination(self: &Rc<Self>, to: &EgressDestination) {
        let last = self.declared_keys.borrow_mut().remove_user(&to.key);
        if let Some(id) = last {
            self.adapters.forget_key(&to.key);
            // Kept for the report, because the state machine forgets its counts with the key.
            if let Some(figures) = self.state.borrow().key_figures(id) {
                self.counters_for(to).add_key_figures(&figures);
            }
            self.state.borrow_mut().forget_key(Instant::now(), id);
            self.apply_and_reschedule();
            // After the actions: closing ready sockets takes them back from the slot.
            self.forget_ready_slot(id);
        }
    }

    /// Closes unused connections and keeps none from now on, whatever is declared later.
    pub fn drain_idle(self: &Rc<Self>) {
        self.is_draining_idle.set(true);
        self.adapters.shut_down();
        let ids = self.declared_keys.borrow().key_ids();
        // Retired rather than forgotten: running instances still get connections.
        ids.into_iter()
            .for_each(|id| self.state.borrow_mut().retire_key(Instant::now(), id));
        self.apply_and_reschedule();
    }

    /// Checks that the machine can resolve a name now.
    pub async fn check_name_resolves(&self, name: &str) -> io::Result<()> {
        self.resolver.resolve(name).await.map(drop)
    }

    /// Returns the source of connections for a function.
    pub fn source_for(self: &Rc<Self>, function: &FunctionId) -> Rc<dyn ConnectionSource> {
        let requester = self.declared_keys.borrow_mut().requester_for(function);
        Rc::new(FunctionSource {
            pool: Rc::clone(self),
            requester,
        })
    }

    /// Returns the counters of a destination.
    pub fn counters_for(&self, to: &EgressDestination) -> Rc<DestinationCounters> {
        self.declared_keys.borrow_mut().counters_for(to)
    }

    /// Takes a warm connection without waiting. A miss raises the demand.
    pub fn take_warm(self: &Rc<Self>, to: &EgressDestination) -> Option<ConnectionLease> {
        let id = self.key_id(&to.key)?;
        // A warm socket may have died unnoticed, so the next one is tried until none is left.
        loop {
            let socket = self.state.borrow_mut().take_warm(Instant::now(), id);
            let alive = self.take_if_alive(to, socket?);
            self.apply_and_reschedule();
            if let Some(stream) = alive {
                return Some(self.make_lease(to, socket?, stream));
            }
        }
    }

    /// Returns true if the next warm connection is of another family: `AF_INET6` while `v4` is set,
    /// or the other way round.
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

    /// Returns true if instances have the key.
    #[cfg(test)]
    pub(super) fn is_declared(&self, key: &PoolKey) -> bool {
        self.key_id(key).is_some()
    }

    pub(super) fn key_id(&self, key: &PoolKey) -> Option<KeyId> {
        self.declared_keys.borrow().key_id(key)
    }
}

/// Operations of clients.
impl ConnectionPool {
    async fn connect(
        self: &Rc<Self>,
        requester: RequesterId,
        to: &EgressDestination,
        deadline: Instant,
    ) -> Result<ConnectionLease, NoConnection> {
        let started = Instant::now();
        let lease = self.request_lease(requester, to, deadline).await?;
        // Only here: sockets for handover keep the kernel's defaults.
        configure_socket(&lease.stream)
            .map_err(|error| no_connection(to, started, ConnectFailure::Failed(error)))?;
        Ok(lease)
    }

    /// Returns an unused connection as the kernel made it.
    pub(super) async fn request_lease(
        self: &Rc<Self>,
        requester: RequesterId,
        to: &EgressDestination,
        deadline: Instant,
    ) -> Result<ConnectionLease, NoConnection> {
        let started = Instant::now();
        // Before the request, so that a connection to a server that the name has left is not used.
        self.refresh_name(to).await;
        loop {
            // Looked up in every round: the key may be forgotten during an await.
            let id = self.key_id(&to.key).ok_or_else(|| {
                no_connection(to, started, ConnectFailure::Other(NO_INSTANCE_MESSAGE))
            })?;
            let outcome =
                self.state
                    .borrow_mut()
                    .request_socket(Instant::now(), id, requester, deadline);
            let result = match outcome {
                RequestOutcome::Take(socket) => match self.take_if_alive(to, socket) {
                    Some(stream) => Ok((socket, stream)),
                    None => continue,
                },
                RequestOutcome::Wait(ticket) => self.start_waiting(ticket).wait().await,
                RequestOutcome::Refused(why) => Err(self.failure_of(why)),
            };
            self.apply_and_reschedule();
            let (socket, stream) = result.map_err(|why| no_connection(to, started, why))?;
            return Ok(self.make_lease(to, socket, stream));
        }
    }

    pub(super) fn cancel_wait(self: &Rc<Self>, now: Instant, ticket: WaitTicket) {
        // The sender goes first. A `Give` that is queued already then finds no client and returns
        // the socket.
        self.pending_connects.borrow_mut().remove(&ticket);
        if self.state.borrow_mut().cancel_wait(now, ticket) {
            self.apply_and_reschedule();
        }
    }

    /// Takes back a connection that was given to a client that had gone.
    pub(super) fn return_unused(self: &Rc<Self>, socket: SocketId, stream: TcpStream) {
        self.sockets
            .borrow_mut()
            .insert(socket, PooledSocket::Warm(stream));
        self.state
            .borrow_mut()
            .socket_unused(Instant::now(), socket);
        self.mark_slot_fillable(socket);
        // The socket may stay warm, so the maintenance task has to poll it.
        self.state_changed.notify_one();
        self.apply_and_reschedule();
    }

    /// Takes a socket that the state machine hands out. Returns `None` if it has ended. If a
    /// supervisor was faster, it counts as handed out to that one.
    fn take_if_alive(
        self: &Rc<Self>,
        to: &EgressDestination,
        socket: SocketId,
    ) -> Option<TcpStream> {
        // Taken back first: a socket must not be used here and by a supervisor at once.
        if self.take_back(socket) == TakeBackResult::AlreadyTaken {
            return None;
        }
        let removed = self.sockets.borrow_mut().remove(&socket);
        match removed {
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
        let pool = Rc::clone(self);
        // Only queued here: an adapter may drop a lease while the state is borrowed.
        let guard = LeaseGuard::on_drop(move || {
            pool.dropped_leases.borrow_mut().push(socket);
            pool.state_changed.notify_one();
        });
        let guard = self
            .set_initial_cwnd(to, &stream, guard)
            .with_binding(self.name_binding(to, &stream));
        ConnectionLease { guard, stream }
    }
}

pub(super) const NO_INSTANCE_MESSAGE: &str = "no running instance declares this destination";

fn no_connection(to: &EgressDestination, started: Instant, why: ConnectFailure) -> NoConnection {
    let to = to.key.host_port.clone();
    match why {
        ConnectFailure::Failed(error) => NoConnection::Refused { to, error },
        ConnectFailure::TimedOut(open) => NoConnection::Exhausted {
            to,
            open,
            waited: started.elapsed(),
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
