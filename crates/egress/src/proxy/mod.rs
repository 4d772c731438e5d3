//! The egress proxy: listeners at the addresses of declared destinations, and their connections.
//!
//! Everything here runs on the thread `pool`: the node sends [`EgressCommand`]s, connections are
//! tasks. The source address of a connection identifies the instance, its local address the
//! destination; both come from the kernel. Undeclared connections are reset. Declared ones are
//! carried by an adapter or as raw TCP ([`forward`]). The connections of an instance end with it,
//! except for accepted async writes.

mod async_writes;
mod connection;
mod forward;
mod inner_sockets;
mod intercepted;
mod prefetch;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nearpath_ca::Authority;
use nearpath_kernel::bpf::{PeerNames, SocketCgroupGuard};
use nearpath_kernel::egress_listener::EgressListener;
use nearpath_kernel::sandbox::InnerSocket;
use nearpath_types::pool_status::PoolStatus;
use nearpath_types::{Eip, FunctionId, InstanceId};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::admission::{AdmissionRequest, DoneSender, TenantLogFn};
use crate::client_tls::acceptor_source;
use crate::intercept::HandedSockets;
use crate::policy::{EgressPolicy, EgressRefusal};
use forward::reset_at_close;
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::pool::ConnectionPool;
use nearpath_dbproxy::ClientInstance;
use nearpath_dbproxy::client_instance::FunctionLogger;
use nearpath_dbproxy::client_stream::TlsAcceptorSource;
use nearpath_dbproxy::failed_writes::FailedWrites;
use nearpath_types::log_limiter::LogLimiter;

/// Maximum time for an ended instance's bytes to arrive. They are on this machine already: only a
/// connection with a full buffer takes long.
const FINAL_WRITES_GRACE: Duration = Duration::from_secs(2);
/// Delay before the next accept when no descriptor is left.
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Commands of the node.
pub(crate) enum EgressCommand {
    /// An instance starts. Confirmed when it may connect.
    Admit(Box<AdmissionRequest>, Vec<EgressDestination>, DoneSender),
    /// The connects of an instance are intercepted; its seccomp listener arrives at this socket.
    Supervise(Eip, OwnedFd),
    /// The node has sockets inside an instance; they arrive at this socket.
    ServeInnerSockets(Eip, Vec<InnerSocket>, OwnedFd),
    /// An instance has ended. Confirmed when no more of its bytes are accepted: only then may
    /// another instance get its address.
    Remove(InstanceId, Eip, DoneSender),
    /// A port has its first declared destination.
    Listen(u16, std::net::TcpListener),
    /// A port has no declared destination left.
    StopListening(u16),
    /// Confirm when all accepted writes are delivered.
    WaitDelivered(DoneSender),
    /// The limits of these groups are shared by so many nodes.
    SetNodeCounts(BTreeMap<String, u32>),
    /// Keep no idle connections from now on.
    DrainIdle,
    /// Report the status of all destinations.
    Report(SyncSender<Vec<PoolStatus>>),
    /// End the thread, with all connections.
    Stop,
}

/// Maximum queued prefetch hints; more are dropped.
const MAX_PREFETCH_HINTS: usize = 256;

/// Channels to the thread.
pub(crate) struct CommandChannels {
    pub(crate) commands: mpsc::UnboundedSender<EgressCommand>,
    /// Functions that are being called.
    pub(crate) prefetch_hints: mpsc::Sender<FunctionId>,
    /// The thread, until [`EgressCommand::Stop`] has ended it.
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

/// State of the thread.
pub(crate) struct EgressProxy {
    pub(crate) policy: RefCell<EgressPolicy>,
    listeners: RefCell<HashMap<u16, PortListener>>,
    /// One line a minute for each function and destination.
    notices: RefCell<LogLimiter<(FunctionId, String)>>,
    log: TenantLogFn,
    pub(crate) pool: Rc<ConnectionPool>,
    pub(crate) egress_listener: Arc<EgressListener>,
    /// Logs for adapters.
    logger: FunctionLogger,
    tls_acceptors: TlsAcceptorSource,
    failed_writes: Rc<FailedWrites>,
    /// Functions that were called and have no instance yet.
    called_functions: RefCell<HashMap<FunctionId, Instant>>,
    /// Handed-over sockets; `None` until the first one, or if the kernel does not report closes.
    handed_sockets: RefCell<Option<Rc<HandedSockets>>>,
}

/// The listener of one port; it closes on drop.
struct PortListener {
    listener: std::net::TcpListener,
    accept_task: AbortHandle,
}

impl Drop for PortListener {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}

/// Starts the thread, which ends with its commands. The inner result says whether its sockets may
/// be handed over: only behind a guard that keeps them at their peer.
pub(crate) fn start_thread(
    log: TenantLogFn,
    egress_listener: Arc<EgressListener>,
    authority: Arc<Authority>,
) -> io::Result<(CommandChannels, io::Result<()>)> {
    let ((commands, command_receiver), (guard_sender, guard_receiver)) =
        (mpsc::unbounded_channel(), std::sync::mpsc::sync_channel(1));
    let (hints, hint_receiver) = mpsc::channel(MAX_PREFETCH_HINTS);
    // Built here, so that its errors reach the caller.
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = move || {
        // Entered by the thread itself: the guard covers the sockets that it creates.
        let (guard, guard_state) = SocketCgroupGuard::enter_current_thread()
            .map_or_else(|why| (None, Err(why)), |guard| (Some(guard), Ok(())));
        // The caller may have given up.
        let _ = guard_sender.send(guard_state);
        LocalSet::new().block_on(&runtime, async {
            EgressProxy::new(log, egress_listener, start_pool(guard.as_ref()), authority)
                .run_commands(command_receiver, hint_receiver)
                .await
        });
    };
    let thread = thread::Builder::new().name("pool".into()).spawn(run)?;
    let guard_state = guard_receiver
        .recv()
        .map_err(|_| io::Error::other("the egress proxy's thread did not start"))?;
    Ok((
        CommandChannels {
            commands,
            prefetch_hints: hints,
            thread: Mutex::new(Some(thread)),
        },
        guard_state,
    ))
}

/// Starts the pool with what the guard of its thread permits.
fn start_pool(guard: Option<&SocketCgroupGuard>) -> Rc<ConnectionPool> {
    let pool = ConnectionPool::start();
    let Some(guard) = guard else {
        pool.disable_handover();
        return pool;
    };
    if guard.check_window_programs().is_ok() {
        pool.enable_cwnd_cache();
    }
    match PeerNames::attach(guard) {
        Ok(names) => pool.enable_peer_names(names),
        Err(why) => {
            tracing::info!(%why, "getpeername() of handed-out sockets returns the destination's own address")
        }
    }
    pool
}

impl EgressProxy {
    pub(crate) fn new(
        log: TenantLogFn,
        egress_listener: Arc<EgressListener>,
        pool: Rc<ConnectionPool>,
        authority: Arc<Authority>,
    ) -> Rc<Self> {
        let (policy, listeners, notices) =
            (RefCell::default(), RefCell::default(), RefCell::default());
        let tls_acceptors = acceptor_source(authority);
        Rc::new_cyclic(|proxy: &Weak<Self>| {
            // A weak reference, because the proxy owns the logger.
            let proxy = Weak::clone(proxy);
            let report = move |caller: &ClientInstance, to: &str, what: &str| {
                if let Some(proxy) = proxy.upgrade() {
                    proxy.notify_tenant(caller, to, what);
                }
            };
            let logger: FunctionLogger = Rc::new(report);
            let failed_writes = Rc::new(FailedWrites::with_logger(Rc::clone(&logger)));
            let (called_functions, handed_sockets) = (RefCell::default(), RefCell::default());
            Self {
                policy,
                listeners,
                notices,
                log,
                pool,
                egress_listener,
                logger,
                tls_acceptors,
                failed_writes,
                called_functions,
                handed_sockets,
            }
        })
    }

    async fn run_commands(
        self: Rc<Self>,
        mut commands: mpsc::UnboundedReceiver<EgressCommand>,
        mut hint_receiver: mpsc::Receiver<FunctionId>,
    ) {
        loop {
            let command = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => command,
                    None => return,
                },
                Some(function) = hint_receiver.recv() => {
                    self.prefetch_reads(&function);
                    continue;
                }
            };
            match command {
                EgressCommand::Admit(request, to, done) => {
                    let source = self.pool.source_for(&request.function);
                    let instance = self
                        .policy
                        .borrow_mut()
                        .admit_instance(*request, to, source);
                    // Wildcards have no address to connect to ahead of use.
                    let named = instance.destinations.iter().filter(|to| !to.is_wildcard());
                    named.for_each(|to| self.pool.retain_destination(to));
                    // The function may have been called before it had an instance.
                    self.prefetch_missed(&instance.caller.function);
                    // The node may have given up.
                    let _ = done.send(());
                }
                EgressCommand::Supervise(eip, listener) => self.supervise_connects(eip, listener),
                EgressCommand::ServeInnerSockets(eip, inner_sockets, socket) => {
                    self.serve_inner_sockets(eip, inner_sockets, socket)
                }
                EgressCommand::Remove(instance, eip, done) => {
                    let proxy = Rc::clone(&self);
                    // A task, because it waits for the last bytes of the instance.
                    spawn_local(async move {
                        proxy.remove_instance(instance, eip).await;
                        // The node may have given up.
                        let _ = done.send(());
                    });
                }
                EgressCommand::Stop => return,
                EgressCommand::SetNodeCounts(counts) => self.pool.set_node_counts(&counts),
                EgressCommand::DrainIdle => self.pool.drain_idle(),
                // The node may have given up, which no command depends on.
                EgressCommand::Report(to) => drop(to.send(self.pool.report(Instant::now()))),
                EgressCommand::WaitDelivered(done) => {
                    let failed_writes = Rc::clone(&self.failed_writes);
                    spawn_local(async move {
                        failed_writes.wait_delivered().await;
                        // The node may have given up.
                        let _ = done.send(());
                    });
                }
                EgressCommand::Listen(port, listener) => self.listen_on_port(port, listener),
                EgressCommand::StopListening(port) => {
                    self.listeners.borrow_mut().remove(&port);
                }
            }
        }
    }

    /// Removes an ended instance. Its writes to destinations with `writes=async` may still be in
    /// its own sockets. The kernel keeps those until everything is sent. So this waits for them.
    async fn remove_instance(self: &Rc<Self>, instance: InstanceId, eip: Eip) {
        // The instance may have connected just before it ended, unseen by the runtime.
        self.accept_pending();
        let released = self.policy.borrow_mut().remove_instance(instance, eip);
        let Some(released) = released else { return };
        released
            .destinations
            .iter()
            .for_each(|to| self.pool.release_destination(to));
        // Bytes that arrive later are lost.
        let _ = timeout(FINAL_WRITES_GRACE, released.writes_expected.closed()).await;
        released
            .wildcard_addresses
            .iter()
            .for_each(|address| self.egress_listener.forbid_instance(eip, *address));
    }

    fn listen_on_port(self: &Rc<Self>, port: u16, listener: std::net::TcpListener) {
        // `accept_pending` accepts on the second descriptor, past the runtime.
        let both = listener
            .try_clone()
            .and_then(|second| Ok((TcpListener::from_std(listener)?, second)));
        match both {
            Ok((listener, second)) => {
                let proxy = Rc::clone(self);
                let handle = move |client, from| proxy.accept_client(client, from);
                let accepting = spawn_local(accept_all(listener, handle)).abort_handle();
                self.listeners.borrow_mut().insert(
                    port,
                    PortListener {
                        listener: second,
                        accept_task: accepting,
                    },
                );
            }
            Err(error) => tracing::error!(port, %error, "egress proxy: cannot listen on port"),
        }
    }

    /// Accepts all connections that have been made by now, even if the runtime has not seen them
    /// yet.
    fn accept_pending(self: &Rc<Self>) {
        let mut log_lines = LogLimiter::default();
        for PortListener { listener, .. } in self.listeners.borrow().values() {
            while let Ok((client, from)) = listener.accept() {
                let client = client
                    .set_nonblocking(true)
                    .and_then(|()| TcpStream::from_std(client));
                match client {
                    Ok(client) => self.accept_client(client, from),
                    Err(error) => warn_of_accept(&error, &mut log_lines),
                }
            }
        }
    }

    /// Accepts a client, identified by its source address.
    fn accept_client(self: &Rc<Self>, client: TcpStream, from: SocketAddr) {
        let (SocketAddr::V4(from), Ok(to)) = (from, client.local_addr()) else {
            return reset_at_close(&client);
        };
        self.route_connection(client, Eip(*from.ip()), to);
    }

    /// Serves a permitted connection and resets any other.
    fn route_connection(self: &Rc<Self>, client: TcpStream, from: Eip, to: SocketAddr) {
        // First, because a new name below a wildcard becomes a destination here.
        let learned = self
            .policy
            .borrow_mut()
            .learn_destination(from.0, to, Instant::now());
        learned
            .iter()
            .for_each(|to| self.pool.retain_destination(to));
        let permit_result = self.policy.borrow().check_connection(from.0, to);
        match permit_result {
            Ok(permit) => drop(spawn_local(
                Rc::clone(self).serve_connection(client, permit),
            )),
            Err(refusal) => {
                // A reset shows the program an error; a plain close would look like an empty
                // answer.
                reset_at_close(&client);
                self.log_refusal(refusal, to);
            }
        }
    }

    fn log_refusal(&self, refusal: EgressRefusal, to: SocketAddr) {
        let Some(instance) = refusal.instance() else {
            return tracing::warn!(%to, "egress proxy: reset a connection from an unknown instance");
        };
        self.notify_tenant(&instance.caller, &to.to_string(), &refusal.to_string());
    }

    /// Notifies a function about its connections, at a limited rate.
    pub(crate) fn notify_tenant(&self, caller: &ClientInstance, to: &str, what: &str) {
        if let Some(more) = self
            .notices
            .borrow_mut()
            .take_due((caller.function.clone(), to.to_owned()), Instant::now())
        {
            let more = if more > 0 {
                format!(" ({more} similar lines suppressed)")
            } else {
                String::new()
            };
            tracing::warn!(function = %caller.function, instance = %caller.instance, "{what}{more}");
            (self.log)(&caller.function, caller.instance, format!("{what}{more}"));
        }
    }
}

fn warn_of_accept(error: &io::Error, log_lines: &mut LogLimiter<io::ErrorKind>) {
    if let Some(suppressed) = log_lines.take_due(error.kind(), Instant::now()) {
        tracing::warn!(%error, suppressed, "egress proxy: accept failed");
    }
}

/// Passes all accepted connections to `handle`, as long as the listener exists.
async fn accept_all(listener: TcpListener, handle: impl Fn(TcpStream, SocketAddr)) {
    let mut log_lines = LogLimiter::default();
    loop {
        match listener.accept().await {
            Ok((client, from)) => {
                handle(client, from);
                // The client has often sent its request already: serving it goes before further
                // accepts.
                tokio::task::yield_now().await;
            }
            // The client has gone before the accept; others are not affected.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                warn_of_accept(&error, &mut log_lines);
                sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}
