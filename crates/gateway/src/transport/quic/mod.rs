//! QUIC connections of one thread: one UDP socket, and as few connections per instance as its
//! calls need.
//!
//! A connection serves many calls; another is opened when all are full. A connection is dropped
//! when it is closed, idle for too long, or its certificate has expired; it then ends with its
//! last call. TCP notices when a process is gone, UDP does not: the snapshot tells, and open
//! calls are cut.

mod warmup;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use nearpath_wire::quic::config::MAX_CALLS_PER_CONNECTION;
use nearpath_wire::quic::{CallerConfig, CallerConnection, Dialer};
use quinn::Endpoint;
use tokio::sync::{Semaphore, watch};

use crate::function::{DialTarget, FunctionEntry, monotonic_millis};
use warmup::CallRate;

/// Cause for which there is no connection. Nothing was sent.
pub(crate) enum QuicUnavailable {
    /// UDP is blocked: another path may work.
    Blocked,
    /// Another cause, which another path does not solve.
    Failed(String),
}

struct PooledQuic {
    connection: CallerConnection,
    /// Tick of the last use.
    last_used: Cell<u32>,
    /// The caller's certificate was renewed: no new calls.
    is_retired: bool,
}

impl PooledQuic {
    fn has_free_stream(&self) -> bool {
        !self.is_retired
            && !self.connection.is_closed()
            && self.connection.open_calls() < MAX_CALLS_PER_CONNECTION
    }
}

struct EndpointConnections {
    target: Arc<DialTarget>,
    connections: Vec<PooledQuic>,
    // One dial at a time: concurrent calls then share the new connection.
    dialing: Rc<Semaphore>,
}

impl EndpointConnections {
    fn new(target: &Arc<DialTarget>) -> Self {
        Self {
            target: target.clone(),
            connections: Vec::new(),
            dialing: Rc::new(Semaphore::new(1)),
        }
    }

    fn take_free(&self, now: u32) -> Option<CallerConnection> {
        let pooled = self
            .connections
            .iter()
            .find(|pooled| pooled.has_free_stream())?;
        pooled.last_used.set(now);
        Some(pooled.connection.clone())
    }

    /// Removes unusable connections. Returns whether anything is left.
    fn sweep_closed(&mut self, oldest_tick: u32, now: SystemTime) -> bool {
        if self.target.is_gone() {
            self.connections
                .drain(..)
                .for_each(|pooled| close_after_grace(pooled.connection));
        }
        let withdrawn = self.target.is_withdrawn();
        // Noted before the connection is dropped, which is the last chance to learn of it.
        if self
            .connections
            .iter()
            .any(|pooled| pooled.connection.is_stalled())
        {
            self.target
                .udp
                // Answers broke off: others take another path.
                .note_failure(monotonic_millis(Instant::now()));
        }
        self.connections.retain_mut(|pooled| {
            pooled.is_retired |= withdrawn || pooled.connection.has_expired(now);
            // Open calls keep even a retired connection: it ends with the last of them.
            let wanted = pooled.connection.open_calls() > 0
                || (!pooled.is_retired && pooled.last_used.get() >= oldest_tick);
            if !wanted {
                pooled.connection.close();
            }
            wanted && !pooled.connection.is_closed()
        });
        // A dial in progress needs the entry, into which it puts its connection.
        !self.connections.is_empty() || self.dialing.available_permits() == 0
    }
}

/// Closes the connection of an instance that is gone, after what it had sent has been read.
fn close_after_grace(connection: CallerConnection) {
    /// Time to read what is left in the socket and in the buffers of the connection.
    const CLOSE_GRACE: Duration = Duration::from_millis(20);
    tokio::task::spawn_local(async move {
        tokio::time::sleep(CLOSE_GRACE).await;
        connection.close();
    });
}

/// QUIC connections of one thread.
pub(crate) struct QuicConnections {
    by_endpoint: RefCell<HashMap<u64, EndpointConnections>>,
    /// The gateway's certificate, which changes on renewal and revocation. `None`: HTTP only.
    caller: Option<watch::Receiver<CallerConfig>>,
    /// Endpoint of the thread for connections to other nodes; unset: a socket of the thread's network
    /// namespace.
    endpoint: OnceCell<Endpoint>,
    /// Dialer and certificate of the last use.
    dialer: RefCell<Option<(CallerConfig, Dialer)>>,
    /// Call rates of functions, by address in memory. The `Weak` keeps the address from being
    /// reused.
    call_rates: RefCell<HashMap<*const FunctionEntry, (Weak<FunctionEntry>, CallRate)>>,
}

impl QuicConnections {
    /// Creates the set without connections.
    pub(crate) fn new(caller: Option<watch::Receiver<CallerConfig>>) -> Self {
        Self {
            by_endpoint: RefCell::default(),
            caller,
            endpoint: OnceCell::new(),
            dialer: RefCell::default(),
            call_rates: RefCell::default(),
        }
    }

    /// Dials from this endpoint.
    pub(crate) fn set_endpoint(&self, endpoint: Endpoint) {
        let _ = self.endpoint.set(endpoint); // set once, when the thread begins to serve
    }

    /// Returns the endpoint to dial from.
    pub(crate) fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.get()
    }

    /// Returns whether the gateway has a certificate.
    pub(crate) fn has_caller(&self) -> bool {
        self.caller.is_some()
    }

    /// Returns the current certificate.
    pub(crate) fn current_caller(&self) -> Option<CallerConfig> {
        Some(self.caller.as_ref()?.borrow().clone())
    }

    /// Returns a connection with a free stream: an existing one or a new one.
    pub(crate) async fn acquire_connection(
        &self,
        target: &Arc<DialTarget>,
        now: u32,
        limit: Duration,
    ) -> Result<AcquiredQuic, QuicUnavailable> {
        if let Some(connection) =
            self.with_endpoint(target, |connections| connections.take_free(now))
        {
            return Ok(AcquiredQuic {
                connection,
                is_new: false,
            });
        }
        let dialing = self.with_endpoint(target, |connections| connections.dialing.clone());
        // Another call may dial at this moment: then its connection is used.
        let _turn = dialing
            .acquire()
            .await
            .expect("this semaphore is never closed");
        if let Some(connection) =
            self.with_endpoint(target, |connections| connections.take_free(now))
        {
            return Ok(AcquiredQuic {
                connection,
                is_new: false,
            });
        }
        if target.udp.is_blocked_now() {
            return Err(QuicUnavailable::Blocked); // another call has just found out
        }
        let connection = self.dial_endpoint(target, limit).await?;
        let pooled = PooledQuic {
            connection: connection.clone(),
            last_used: Cell::new(now),
            is_retired: false,
        };
        self.with_endpoint(target, |connections| connections.connections.push(pooled));
        Ok(AcquiredQuic {
            connection,
            is_new: true,
        })
    }

    /// Retires a connection on which the instance takes no more calls.
    pub(crate) fn retire_connection(
        &self,
        target: &Arc<DialTarget>,
        connection: &CallerConnection,
    ) {
        let id = connection.connection().stable_id();
        let same = |pooled: &&mut PooledQuic| pooled.connection.connection().stable_id() == id;
        self.with_endpoint(target, |connections| {
            connections
                .connections
                .iter_mut()
                .filter(same)
                .for_each(|pooled| pooled.is_retired = true)
        });
    }

    /// Notes a call of a function.
    pub(crate) fn note_call(&self, function: &Arc<FunctionEntry>, now: u32) {
        let mut rates = self.call_rates.borrow_mut();
        let entry = rates.entry(Arc::as_ptr(function));
        let first_call = || (Arc::downgrade(function), CallRate::first_call(now));
        entry
            .and_modify(|(_, rate)| rate.note_call(now))
            .or_insert_with(first_call);
    }

    /// Returns the instances to connect to ahead of calls. Forgets functions that are not called
    /// any more.
    pub(crate) fn warmup_targets(&self, now: u32) -> Vec<Arc<DialTarget>> {
        let (mut rates, by_endpoint) = (self.call_rates.borrow_mut(), self.by_endpoint.borrow());
        let mut chosen = Vec::new();
        rates.retain(|_, (function, rate)| {
            let calls = rate.recent_calls(now);
            let Some(function) = function.upgrade().filter(|_| calls > 0) else {
                return false;
            };
            let route = function.route();
            let is_connected = |one: &&Arc<DialTarget>| {
                by_endpoint
                    .get(&one.serial)
                    .is_some_and(|connections| !connections.connections.is_empty())
            };
            let (connected, unconnected): (Vec<_>, Vec<_>) = route
                .ready
                .iter()
                .map(|one| &one.target)
                .partition(is_connected);
            // Without a certificate there is no name to verify, and a blocked instance would only
            // cost time.
            let candidates = unconnected
                .into_iter()
                .filter(|one| one.server_name().is_some() && !one.udp.is_blocked_now());
            let wanted =
                warmup::connections_wanted(calls, connected.len(), candidates.clone().count());
            chosen.extend(candidates.take(wanted).cloned());
            true
        });
        chosen
    }

    async fn dial_endpoint(
        &self,
        target: &DialTarget,
        limit: Duration,
    ) -> Result<CallerConnection, QuicUnavailable> {
        let name = target
            .server_name()
            .ok_or_else(|| QuicUnavailable::Failed("the instance has no certificate".to_owned()))?;
        let dialer = self.dialer_for(target.addr).map_err(|error| {
            QuicUnavailable::Failed(format!("cannot open a UDP socket: {error}"))
        })?;
        dialer
            .dial_worker(target.addr, name, limit)
            .await
            .map_err(|error| match error.is_no_response() {
                true => {
                    target.udp.note_failure(monotonic_millis(Instant::now()));
                    QuicUnavailable::Blocked
                }
                false => QuicUnavailable::Failed(error.to_string()),
            })
    }

    /// Returns a dialer with the current certificate. Its socket belongs to the network namespace
    /// of the thread.
    fn dialer_for(&self, to: SocketAddr) -> io::Result<Dialer> {
        let caller = self
            .caller
            .as_ref()
            .ok_or_else(|| io::Error::other("the gateway has no certificate"))?
            .borrow()
            .clone();
        let mut current = self.dialer.borrow_mut();
        let dialer = match &*current {
            // The socket survives a renewal, so that open calls go on.
            Some((_, dialer)) => caller.rebind_dialer(dialer),
            None if let Some(endpoint) = self.endpoint.get() => caller.dialer_on(endpoint),
            None => caller.open_dialer(bind_socket(to)?)?,
        };
        *current = Some((caller, dialer.clone()));
        Ok(dialer)
    }

    /// Follows renewals of the certificate and calls `notify`. Connections of the old one take no
    /// new calls.
    pub(crate) async fn follow_caller(&self, notify: impl Fn(&CallerConfig)) {
        let Some(mut callers) = self.caller.clone() else {
            return;
        };
        while callers.changed().await.is_ok() {
            let now = callers.borrow_and_update().clone();
            notify(&now);
            let renewed = self
                .dialer
                .borrow()
                .as_ref()
                .is_some_and(|(before, _)| !before.has_same_certificate(&now));
            if renewed {
                self.by_endpoint
                    .borrow_mut()
                    .values_mut()
                    .flat_map(|connections| &mut connections.connections)
                    .for_each(|pooled| pooled.is_retired = true);
            }
        }
    }

    /// Removes connections that are closed, idle since before `oldest_tick`, or lead to a
    /// withdrawn instance. Cuts those to an instance that is gone.
    pub(crate) fn sweep_idle(&self, oldest_tick: u32) {
        let mut by_endpoint = self.by_endpoint.borrow_mut();
        // Spares a read of the clock on threads without QUIC.
        if !by_endpoint.is_empty() {
            let now = SystemTime::now();
            by_endpoint.retain(|_, connections| connections.sweep_closed(oldest_tick, now));
        }
    }

    fn with_endpoint<T>(
        &self,
        target: &Arc<DialTarget>,
        f: impl FnOnce(&mut EndpointConnections) -> T,
    ) -> T {
        f(self
            .by_endpoint
            .borrow_mut()
            .entry(target.serial)
            .or_insert_with(|| EndpointConnections::new(target)))
    }
}

/// A connection, and whether it was opened for this call.
pub(crate) struct AcquiredQuic {
    pub(crate) connection: CallerConnection,
    pub(crate) is_new: bool,
}

fn bind_socket(to: SocketAddr) -> io::Result<UdpSocket> {
    match to {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    }
}
