//! The way out: listeners at the addresses of declared destinations, and what becomes of who comes.
//!
//! Everything here is on one thread, `pool`: the node sends [`EgressCommand`]s, connections are tasks. Who calls is known by the address that a connection comes
//! from, where it wants to go by the one that it was made to, both as the kernel has them. What was not declared is reset, what was is carried, by an
//! adapter or as it is ([`forward`]). Whatever an instance had open ends with it, but for writes that were taken or are about to be.

mod async_writes;
mod connection;
mod forward;
mod inner_sockets;
mod intercepted;
mod notices;
mod prefetch;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use nearpath_kernel::bpf::SocketCgroupGuard;
use nearpath_kernel::egress_listener::EgressListener;
use nearpath_kernel::sandbox::InnerSocket;
use nearpath_types::pool_status::PoolStatus;
use nearpath_types::{Eip, FunctionId, InstanceId};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::handle::{AdmissionRequest, DoneSender, TenantLogFn};
use crate::intercept::HandedSockets;
use crate::policy::{EgressPolicy, EgressRefusal};
use forward::reset_at_close;
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::pool::ConnectionPool;
use nearpath_dbproxy::ClientInstance;
use nearpath_dbproxy::failed_writes::FailedWrites;
use notices::NoticeLimiter;

/// How long what an ended instance wrote may take to get here. It is all on this machine: only a connection that holds as much as it may takes long.
const FINAL_WRITES_GRACE: Duration = Duration::from_secs(2);
/// How long nobody is let in when there is no descriptor left.
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// What the node wants.
pub(crate) enum EgressCommand {
    /// An instance starts. Answered when it may go out.
    Admit(Box<AdmissionRequest>, Vec<EgressDestination>, DoneSender),
    /// Its connects are asked about; the listener comes from here.
    Supervise(Eip, OwnedFd),
    /// The node has sockets inside it; they come from here.
    ServeInnerSockets(Eip, Vec<InnerSocket>, OwnedFd),
    /// It has ended. Answered when nothing more is taken of what it wrote: its address may be another's then.
    Remove(InstanceId, Eip, DoneSender),
    /// Somebody declared a destination at this port.
    Listen(u16, std::net::TcpListener),
    /// Nobody does any more.
    StopListening(u16),
    /// Somebody wants to know when all is delivered that was taken.
    WaitDelivered(DoneSender),
    /// Nothing is to be kept open for nobody any more.
    DrainIdle,
    /// Somebody wants to know how things stand.
    Report(SyncSender<Vec<PoolStatus>>),
}

/// Calls of functions that are remembered until the thread has looked at them; more are passed over.
const MAX_PREFETCH_HINTS: usize = 256;

/// Ways to the thread.
pub(crate) struct CommandChannels {
    pub(crate) commands: mpsc::UnboundedSender<EgressCommand>,
    /// Functions that were called just now.
    pub(crate) prefetch_hints: mpsc::Sender<FunctionId>,
}

/// What the thread has.
pub(crate) struct EgressProxy {
    pub(crate) policy: RefCell<EgressPolicy>,
    listeners: RefCell<HashMap<u16, PortListener>>,
    notices: RefCell<NoticeLimiter>,
    log: TenantLogFn,
    pub(crate) pool: Rc<ConnectionPool>,
    pub(crate) egress_listener: Arc<EgressListener>,
    failed_writes: Rc<FailedWrites>,
    /// Functions that were called and have no instance yet.
    called_functions: RefCell<HashMap<FunctionId, Instant>>,
    /// What was given away; `NoConnection` until something is, or where the kernel does not tell.
    handed_sockets: RefCell<Option<Rc<HandedSockets>>>,
}

/// One port of the switch; dropped, nobody listens there any more.
struct PortListener {
    listener: std::net::TcpListener,
    accept_task: AbortHandle,
}

impl Drop for PortListener {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}

/// Starts the thread; it ends with its orders. Whether its connections may be given away is known then, or why not: not without a fence that keeps them
/// where they were connected to.
pub(crate) fn start_thread(
    tell: TenantLogFn,
    doorway: Arc<EgressListener>,
) -> io::Result<(CommandChannels, io::Result<()>)> {
    let ((give, take), (began, begun)) =
        (mpsc::unbounded_channel(), std::sync::mpsc::sync_channel(1));
    let (hint, hints) = mpsc::channel(MAX_PREFETCH_HINTS);
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = move || {
        let (fence, fenced) = SocketCgroupGuard::enter_current_thread()
            .map_or_else(|why| (None, Err(why)), |fence| (Some(fence), Ok(())));
        let _ = began.send(fenced); // the node may have given up
        let (gives, opens) = (
            fence.is_some(),
            fence
                .as_ref()
                .is_some_and(|fence| fence.check_window_programs().is_ok()),
        );
        LocalSet::new().block_on(&runtime, async {
            EgressProxy::new(tell, doorway, [gives, opens])
                .run_commands(take, hints)
                .await
        });
    };
    thread::Builder::new().name("pool".into()).spawn(run)?;
    let fenced = begun
        .recv()
        .map_err(|_| io::Error::other("the pool's thread did not start"))?;
    Ok((
        CommandChannels {
            commands: give,
            prefetch_hints: hint,
        },
        fenced,
    ))
}

impl EgressProxy {
    fn new(
        tell: TenantLogFn,
        doorway: Arc<EgressListener>,
        [gives, opens_windows]: [bool; 2],
    ) -> Rc<Self> {
        let (guests, listeners, notices) =
            (RefCell::default(), RefCell::default(), RefCell::default());
        let keeper = ConnectionPool::start();
        if !gives {
            keeper.disable_handover();
        }
        if opens_windows {
            keeper.enable_cwnd_cache();
        }
        Rc::new_cyclic(|exit: &Weak<Self>| {
            let exit = Weak::clone(exit);
            let say = move |caller: &ClientInstance, to: &str, what: &str| {
                if let Some(exit) = exit.upgrade() {
                    exit.notify_tenant(caller, to, what);
                }
            };
            let unwritten = Rc::new(FailedWrites::with_logger(Box::new(say)));
            let (called, given) = (RefCell::default(), RefCell::default());
            Self {
                policy: guests,
                listeners,
                notices,
                log: tell,
                pool: keeper,
                egress_listener: doorway,
                failed_writes: unwritten,
                called_functions: called,
                handed_sockets: given,
            }
        })
    }

    async fn run_commands(
        self: Rc<Self>,
        mut orders: mpsc::UnboundedReceiver<EgressCommand>,
        mut hints: mpsc::Receiver<FunctionId>,
    ) {
        loop {
            let order = tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => order,
                    None => return,
                },
                Some(function) = hints.recv() => {
                    self.prefetch_reads(&function);
                    continue;
                }
            };
            match order {
                EgressCommand::Admit(who, to, done) => {
                    let backends = self.pool.source_for(&who.function);
                    let caller = self.policy.borrow_mut().admit_instance(*who, to, backends);
                    let whole = caller.destinations.iter().filter(|to| !to.is_wildcard());
                    whole.for_each(|to| self.pool.retain_destination(to));
                    self.prefetch_missed(&caller.caller.function);
                    let _ = done.send(()); // the node may have given up
                }
                EgressCommand::Supervise(eip, listener) => self.supervise_connects(eip, listener),
                EgressCommand::ServeInnerSockets(eip, hatches, socket) => {
                    self.serve_inner_sockets(eip, hatches, socket)
                }
                EgressCommand::Remove(instance, eip, done) => {
                    let exit = Rc::clone(&self);
                    spawn_local(async move {
                        exit.remove_instance(instance, eip).await;
                        let _ = done.send(()); // who asked may have given up
                    });
                }
                EgressCommand::DrainIdle => self.pool.drain_idle(),
                EgressCommand::Report(to) => drop(to.send(self.pool.report(Instant::now()))), // who asked may have gone
                EgressCommand::WaitDelivered(done) => {
                    let unwritten = Rc::clone(&self.failed_writes);
                    spawn_local(async move {
                        unwritten.wait_delivered().await;
                        let _ = done.send(()); // who asked may have given up
                    });
                }
                EgressCommand::Listen(port, listener) => self.listen_on_port(port, listener),
                EgressCommand::StopListening(port) => {
                    self.listeners.borrow_mut().remove(&port);
                }
            }
        }
    }

    /// An instance has ended. What it wrote to destinations with `writes=async` may still lie in its own sockets, which the kernel keeps until all of it
    /// is sent: that is waited for.
    async fn remove_instance(self: &Rc<Self>, instance: InstanceId, eip: Eip) {
        self.accept_pending();
        let left = self.policy.borrow_mut().remove_instance(instance, eip);
        let Some(left) = left else { return };
        left.destinations
            .iter()
            .for_each(|to| self.pool.release_destination(to));
        let _ = timeout(FINAL_WRITES_GRACE, left.writes_expected.closed()).await; // what has not come by then does not
        left.wildcard_addresses
            .iter()
            .for_each(|address| self.egress_listener.forbid_instance(eip, *address));
    }

    fn listen_on_port(self: &Rc<Self>, port: u16, listener: std::net::TcpListener) {
        let both = listener
            .try_clone()
            .and_then(|same| Ok((TcpListener::from_std(listener)?, same)));
        match both {
            Ok((listener, same)) => {
                let exit = Rc::clone(self);
                let meet = move |client, from| exit.accept_client(client, from);
                let accepting = spawn_local(accept_all(listener, meet)).abort_handle();
                self.listeners.borrow_mut().insert(
                    port,
                    PortListener {
                        listener: same,
                        accept_task: accepting,
                    },
                );
            }
            Err(error) => tracing::error!(port, %error, "no way out at this port"),
        }
    }

    /// Lets in all who have connected by now, whether the thread has heard of it or not.
    fn accept_pending(self: &Rc<Self>) {
        for PortListener { listener, .. } in self.listeners.borrow().values() {
            while let Ok((client, from)) = listener.accept() {
                let client = client
                    .set_nonblocking(true)
                    .and_then(|()| TcpStream::from_std(client));
                match client {
                    Ok(client) => self.accept_client(client, from),
                    Err(error) => tracing::warn!(%error, "the way out cannot take a connection"),
                }
            }
        }
    }

    /// Who comes is known by the address that a connection comes from.
    fn accept_client(self: &Rc<Self>, client: TcpStream, from: SocketAddr) {
        let (SocketAddr::V4(from), Ok(to)) = (from, client.local_addr()) else {
            return reset_at_close(&client);
        };
        self.route_connection(client, Eip(*from.ip()), to);
    }

    /// Carries who may go there, resets all others.
    fn route_connection(self: &Rc<Self>, client: TcpStream, from: Eip, to: SocketAddr) {
        let learnt = self
            .policy
            .borrow_mut()
            .learn_destination(from.0, to, Instant::now());
        learnt
            .iter()
            .for_each(|to| self.pool.retain_destination(to));
        let judged = self.policy.borrow().check_connection(from.0, to);
        match judged {
            Ok(pass) => drop(spawn_local(Rc::clone(self).serve_connection(client, pass))),
            Err(refusal) => {
                reset_at_close(&client);
                self.log_refusal(refusal, to);
            }
        }
    }

    fn log_refusal(&self, refusal: EgressRefusal, to: SocketAddr) {
        let Some(caller) = refusal.instance() else {
            return tracing::warn!(%to, "a connection from nobody who may go out was reset");
        };
        self.notify_tenant(&caller.caller, &to.to_string(), &refusal.to_string());
    }

    /// Tells a function what became of its connections, once a while.
    pub(crate) fn notify_tenant(&self, caller: &ClientInstance, to: &str, what: &str) {
        if let Some(more) = self
            .notices
            .borrow_mut()
            .take_due(&caller.function, to, Instant::now())
        {
            let more = if more > 0 {
                format!(" ({more} more since the last such line)")
            } else {
                String::new()
            };
            tracing::warn!(function = %caller.function, instance = %caller.instance, "{what}{more}");
            (self.log)(&caller.function, caller.instance, format!("{what}{more}"));
        }
    }
}

/// Lets `meet` have all that come, for as long as the listener is there.
async fn accept_all(listener: TcpListener, meet: impl Fn(TcpStream, SocketAddr)) {
    let mut failed = false;
    loop {
        match listener.accept().await {
            Ok((client, from)) => {
                failed = false;
                meet(client, from);
                // It has often spoken already: that goes on before anybody looks who else has come.
                tokio::task::yield_now().await;
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!(%error, "the way out cannot take a connection; it goes on when it can");
                }
                sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}
