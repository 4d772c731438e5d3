//! The way out: listeners at the addresses of declared destinations, and what becomes of who comes.
//!
//! Everything here is on one thread, `pool`: the node sends [`Order`]s, connections are tasks. Who calls is known by the address that a connection comes
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
use nearpath_types::pool::PoolStatus;
use nearpath_types::{Eip, FunctionId, InstanceId};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::handle::{Admission, Done, Tell};
use crate::intercept::Given;
use crate::policy::{Guests, Refusal};
use forward::reset_at_close;
use nearpath_connpool::destination::Destination;
use nearpath_connpool::pool::Keeper;
use nearpath_dbproxy::Caller;
use nearpath_dbproxy::failed_writes::Unwritten;
use notices::Notices;

/// How long what an ended instance wrote may take to get here. It is all on this machine: only a connection that holds as much as it may takes long.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long nobody is let in when there is no descriptor left.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// What the node wants.
pub(crate) enum Order {
    /// An instance starts. Answered when it may go out.
    Admit(Box<Admission>, Vec<Destination>, Done),
    /// Its connects are asked about; the listener comes from here.
    Supervise(Eip, OwnedFd),
    /// The node has sockets inside it; they come from here.
    Attend(Eip, Vec<InnerSocket>, OwnedFd),
    /// It has ended. Answered when nothing more is taken of what it wrote: its address may be another's then.
    Leave(InstanceId, Eip, Done),
    /// Somebody declared a destination at this port.
    Listen(u16, std::net::TcpListener),
    /// Nobody does any more.
    Close(u16),
    /// Somebody wants to know when all is delivered that was taken.
    Settle(Done),
    /// Nothing is to be kept open for nobody any more.
    Rest,
    /// Somebody wants to know how things stand.
    Report(SyncSender<Vec<PoolStatus>>),
}

/// Calls of functions that are remembered until the thread has looked at them; more are passed over.
const HINTS: usize = 256;

/// Ways to the thread.
pub(crate) struct Wires {
    pub(crate) orders: mpsc::UnboundedSender<Order>,
    /// Functions that were called just now.
    pub(crate) hints: mpsc::Sender<FunctionId>,
}

/// What the thread has.
pub(crate) struct Exit {
    pub(crate) guests: RefCell<Guests>,
    listeners: RefCell<HashMap<u16, Listening>>,
    notices: RefCell<Notices>,
    tell: Tell,
    pub(crate) keeper: Rc<Keeper>,
    pub(crate) doorway: Arc<EgressListener>,
    unwritten: Rc<Unwritten>,
    /// Functions that were called and have no instance yet.
    called: RefCell<HashMap<FunctionId, Instant>>,
    /// What was given away; `None` until something is, or where the kernel does not tell.
    given: RefCell<Option<Rc<Given>>>,
}

/// One port of the switch; dropped, nobody listens there any more.
struct Listening {
    listener: std::net::TcpListener,
    accepting: AbortHandle,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Starts the thread; it ends with its orders. Whether its connections may be given away is known then, or why not: not without a fence that keeps them
/// where they were connected to.
pub(crate) fn start(tell: Tell, doorway: Arc<EgressListener>) -> io::Result<(Wires, io::Result<()>)> {
    let ((give, take), (began, begun)) = (mpsc::unbounded_channel(), std::sync::mpsc::sync_channel(1));
    let (hint, hints) = mpsc::channel(HINTS);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || {
        let (fence, fenced) = SocketCgroupGuard::enter_current_thread()
            .map_or_else(|why| (None, Err(why)), |fence| (Some(fence), Ok(())));
        let _ = began.send(fenced); // the node may have given up
        let (gives, opens) =
            (fence.is_some(), fence.as_ref().is_some_and(|fence| fence.check_window_programs().is_ok()));
        LocalSet::new().block_on(&runtime, async { Exit::new(tell, doorway, [gives, opens]).obey(take, hints).await });
    };
    thread::Builder::new().name("pool".into()).spawn(run)?;
    let fenced = begun.recv().map_err(|_| io::Error::other("the pool's thread did not start"))?;
    Ok((Wires { orders: give, hints: hint }, fenced))
}

impl Exit {
    fn new(tell: Tell, doorway: Arc<EgressListener>, [gives, opens_windows]: [bool; 2]) -> Rc<Self> {
        let (guests, listeners, notices) = (RefCell::default(), RefCell::default(), RefCell::default());
        let keeper = Keeper::start();
        if !gives {
            keeper.keep_all();
        }
        if opens_windows {
            keeper.open_windows();
        }
        Rc::new_cyclic(|exit: &Weak<Self>| {
            let exit = Weak::clone(exit);
            let say = move |caller: &Caller, to: &str, what: &str| {
                if let Some(exit) = exit.upgrade() {
                    exit.notice(caller, to, what);
                }
            };
            let unwritten = Rc::new(Unwritten::told_by(Box::new(say)));
            let (called, given) = (RefCell::default(), RefCell::default());
            Self { guests, listeners, notices, tell, keeper, doorway, unwritten, called, given }
        })
    }

    async fn obey(self: Rc<Self>, mut orders: mpsc::UnboundedReceiver<Order>, mut hints: mpsc::Receiver<FunctionId>) {
        loop {
            let order = tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => order,
                    None => return,
                },
                Some(function) = hints.recv() => {
                    self.foresee(&function);
                    continue;
                }
            };
            match order {
                Order::Admit(who, to, done) => {
                    let backends = self.keeper.for_function(&who.function);
                    let caller = self.guests.borrow_mut().admit(*who, to, backends);
                    let whole = caller.destinations.iter().filter(|to| !to.is_below());
                    whole.for_each(|to| self.keeper.expect(to));
                    self.foresee_late(&caller.caller.function);
                    let _ = done.send(()); // the node may have given up
                }
                Order::Supervise(eip, listener) => self.supervise(eip, listener),
                Order::Attend(eip, hatches, socket) => self.attend(eip, hatches, socket),
                Order::Leave(instance, eip, done) => {
                    let exit = Rc::clone(&self);
                    spawn_local(async move {
                        exit.leave(instance, eip).await;
                        let _ = done.send(()); // who asked may have given up
                    });
                }
                Order::Rest => self.keeper.rest(),
                Order::Report(to) => drop(to.send(self.keeper.report(Instant::now()))), // who asked may have gone
                Order::Settle(done) => {
                    let unwritten = Rc::clone(&self.unwritten);
                    spawn_local(async move {
                        unwritten.settled().await;
                        let _ = done.send(()); // who asked may have given up
                    });
                }
                Order::Listen(port, listener) => self.listen(port, listener),
                Order::Close(port) => {
                    self.listeners.borrow_mut().remove(&port);
                }
            }
        }
    }

    /// An instance has ended. What it wrote to destinations with `writes=async` may still lie in its own sockets, which the kernel keeps until all of it
    /// is sent: that is waited for.
    async fn leave(self: &Rc<Self>, instance: InstanceId, eip: Eip) {
        self.let_in();
        let left = self.guests.borrow_mut().leave(instance, eip);
        let Some(left) = left else { return };
        left.had.iter().for_each(|to| self.keeper.expect_no_more(to));
        let _ = timeout(LAST_WORDS, left.tail.closed()).await; // what has not come by then does not
        left.stood.iter().for_each(|address| self.doorway.forbid_instance(eip, *address));
    }

    fn listen(self: &Rc<Self>, port: u16, listener: std::net::TcpListener) {
        let both = listener.try_clone().and_then(|same| Ok((TcpListener::from_std(listener)?, same)));
        match both {
            Ok((listener, same)) => {
                let exit = Rc::clone(self);
                let meet = move |client, from| exit.meet(client, from);
                let accepting = spawn_local(accept(listener, meet)).abort_handle();
                self.listeners.borrow_mut().insert(port, Listening { listener: same, accepting });
            }
            Err(error) => tracing::error!(port, %error, "no way out at this port"),
        }
    }

    /// Lets in all who have connected by now, whether the thread has heard of it or not.
    fn let_in(self: &Rc<Self>) {
        for Listening { listener, .. } in self.listeners.borrow().values() {
            while let Ok((client, from)) = listener.accept() {
                let client = client.set_nonblocking(true).and_then(|()| TcpStream::from_std(client));
                match client {
                    Ok(client) => self.meet(client, from),
                    Err(error) => tracing::warn!(%error, "the way out cannot take a connection"),
                }
            }
        }
    }

    /// Who comes is known by the address that a connection comes from.
    fn meet(self: &Rc<Self>, client: TcpStream, from: SocketAddr) {
        let (SocketAddr::V4(from), Ok(to)) = (from, client.local_addr()) else { return reset_at_close(&client) };
        self.receive(client, Eip(*from.ip()), to);
    }

    /// Carries who may go there, resets all others.
    fn receive(self: &Rc<Self>, client: TcpStream, from: Eip, to: SocketAddr) {
        let learnt = self.guests.borrow_mut().learn(from.0, to, Instant::now());
        learnt.iter().for_each(|to| self.keeper.expect(to));
        let judged = self.guests.borrow().judge(from.0, to);
        match judged {
            Ok(pass) => drop(spawn_local(Rc::clone(self).visit(client, pass))),
            Err(refusal) => {
                reset_at_close(&client);
                self.note(refusal, to);
            }
        }
    }

    fn note(&self, refusal: Refusal, to: SocketAddr) {
        let Some(caller) = refusal.caller() else {
            return tracing::warn!(%to, "a connection from nobody who may go out was reset");
        };
        self.notice(&caller.caller, &to.to_string(), &refusal.to_string());
    }

    /// Tells a function what became of its connections, once a while.
    pub(crate) fn notice(&self, caller: &Caller, to: &str, what: &str) {
        if let Some(more) = self.notices.borrow_mut().is_due(&caller.function, to, Instant::now()) {
            let more = if more > 0 { format!(" ({more} more since the last such line)") } else { String::new() };
            tracing::warn!(function = %caller.function, instance = %caller.instance, "{what}{more}");
            (self.tell)(&caller.function, caller.instance, format!("{what}{more}"));
        }
    }
}

/// Lets `meet` have all that come, for as long as the listener is there.
async fn accept(listener: TcpListener, meet: impl Fn(TcpStream, SocketAddr)) {
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
                sleep(PAUSE).await;
            }
        }
    }
}
