//! Who looks at an instance's calls: a thread of its own, so that a tenant who has his threads looked at for long, or has them handed a socket while the
//! kernel does not let them run, holds up nobody but himself.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use nearpath_kernel::remote_thread::{self, RemoteThread};
use nearpath_kernel::seccomp::handover::ListenerHandover;
use nearpath_kernel::seccomp::listener::{ConnectCall, ListenerEvent, SeccompListener};
use nearpath_kernel::sockets::{self, OptionChange, SocketOptions, TcpState};
use rustix::fs::OFlags;
use rustix::net::{ipproto, sockopt};
use tokio::sync::mpsc::UnboundedSender;

use super::decision::{self, Doubt, Family, Nature};
use super::fd_aliases::{Search, judge};
use nearpath_connpool::ready_slot::Tray;
use nearpath_connpool::state::SocketId;

/// The longest address that is asked about.
const ADDRESS: usize = 28;

/// What a clerk says to the pool: destinations by their number among its instance's.
pub(super) enum Asked {
    /// A warm socket is wanted, or word that there is none.
    Warm(usize, Family),
    /// One was taken from its tray, and whether it was handed over then.
    Taken(usize, SocketId, bool),
    /// A call was left to the way out.
    Note(usize, Doubt),
}

/// See the module.
pub(super) struct Clerk {
    listener: SeccompListener,
    fresh_v4: SocketOptions,
    fresh_v6: Option<SocketOptions>,
    /// Where warm sockets are for, by the destinations' numbers.
    places: Vec<Option<SocketAddr>>,
    /// Where one of those lies ready.
    trays: Vec<Option<Tray>>,
    ask: UnboundedSender<Asked>,
    answers: Receiver<Option<OwnedFd>>,
    looks_around: bool,
    threads: Threads,
    untold: Untold,
}

impl Clerk {
    pub(super) fn new(
        handed: ListenerHandover,
        places: Vec<Option<SocketAddr>>,
        trays: Vec<Option<Tray>>,
        (ask, answers): (UnboundedSender<Asked>, Receiver<Option<OwnedFd>>),
        looks_around: bool,
    ) -> Self {
        let ListenerHandover { listener, fresh_v4, fresh_v6 } = handed;
        Self {
            listener,
            fresh_v4,
            fresh_v6,
            places,
            trays,
            ask,
            answers,
            looks_around,
            threads: Threads::default(),
            untold: Untold::default(),
        }
    }

    /// Until all that could call have ended.
    pub(super) fn work(self) {
        loop {
            match self.next() {
                Ok(ListenerEvent::Call(call)) => self.answer(&call),
                Ok(ListenerEvent::Empty) => self.tell(),
                Ok(ListenerEvent::HungUp) => return self.tell(),
                Err(error) => {
                    self.tell();
                    return tracing::error!(%error, "an instance's connects fail from now on");
                }
            }
        }
    }

    fn next(&self) -> io::Result<ListenerEvent> {
        match self.untold.due().map(|due| due.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => Ok(ListenerEvent::Empty),
            Some(left) => self.listener.wait_timeout(left),
            None => Ok(self.listener.wait_call()?.map_or(ListenerEvent::HungUp, ListenerEvent::Call)),
        }
    }

    /// A pool that has ended has nothing warm.
    fn answer(&self, call: &ConnectCall) {
        let Some((number, family)) = self.wanted(call) else { return self.listener.continue_call(call) };
        if let Err(doubt) = self.give(call, number, family) {
            if doubt != Doubt::Empty {
                let _ = self.ask.send(Asked::Note(number, doubt)); // as above
            }
            self.listener.continue_call(call);
        }
    }

    /// Says what was taken.
    fn tell(&self) {
        for (number, socket, handed) in self.untold.take() {
            let _ = self.ask.send(Asked::Taken(number, socket, handed)); // as above
        }
    }

    fn wanted(&self, call: &ConnectCall) -> Option<(usize, Family)> {
        let mut address = [0; ADDRESS];
        let address = address.get_mut(..call.address_len)?;
        remote_thread::read_memory(call.tid, call.address_ptr, address).ok()?;
        decision::wanted(address, &self.places)
    }

    /// All that is learnt of the caller lies between two moments in which it waits for the answer, so it is of this caller and no other: who is dead
    /// cannot be handed anything.
    fn give(&self, call: &ConnectCall, number: usize, family: Family) -> Result<(), Doubt> {
        let look = self.look(call, family)?;
        if let Some((socket, warm)) = self.ready(number, family) {
            let handed = self.hand(call, &warm, &look);
            drop(warm);
            self.took(number, socket, handed.is_ok());
            return handed.map_err(|_| Doubt::Hidden);
        }
        self.tell();
        let asked = self.ask.send(Asked::Warm(number, family)).ok();
        let warm = asked.and_then(|()| self.answers.recv().ok()).flatten().ok_or(Doubt::Empty)?;
        self.hand(call, &warm, &look).map_err(|_| Doubt::Hidden)
    }

    /// What lies ready: nobody has to be woken for it.
    fn ready(&self, number: usize, family: Family) -> Option<(SocketId, OwnedFd)> {
        let native = self.places[number].is_some_and(|place| decision::native(place) == family);
        self.trays[number].as_ref().filter(|_| native)?.take()
    }

    /// The first one may wait to be told; of several, the last that lay ready may not.
    fn took(&self, number: usize, socket: SocketId, handed: bool) {
        let several = self.untold.add(number, socket, handed);
        if several && self.trays[number].as_ref().is_none_or(|tray| tray.is_empty()) {
            self.tell();
        }
    }

    fn hand(&self, call: &ConnectCall, warm: &OwnedFd, look: &Look) -> io::Result<()> {
        rustix::io::ioctl_fionbio(warm, !look.blocking)?;
        look.changes.iter().try_for_each(|change| change.apply_to(warm))?;
        self.listener.replace_socket(call, warm.as_fd(), look.close_at_exec)
    }

    fn look(&self, call: &ConnectCall, family: Family) -> Result<Look, Doubt> {
        let hidden = |_| Doubt::Hidden;
        let (thread, own) = self.threads.descriptor(call).map_err(hidden)?;
        let (nature, blocking) = nature(&own).map_err(|_| Doubt::Kind)?; // what has no such facts is no TCP socket
        nature.replaceable(family)?;
        if self.looks_around {
            alone(&thread, call.socket_fd, !blocking)?;
        }
        let changes = self.fresh(family)?.changes_on(&own, self.listener.saw_rare_option()).map_err(Doubt::Option)?;
        Ok(Look { changes, blocking, close_at_exec: thread.is_cloexec(call.socket_fd).map_err(hidden)? })
    }

    fn fresh(&self, family: Family) -> Result<&SocketOptions, Doubt> {
        match family {
            Family::V4 => Ok(&self.fresh_v4),
            Family::V6 => self.fresh_v6.as_ref().ok_or(Doubt::Kind),
        }
    }
}

/// Threads that called before: a function that lives on calls by the same ones, and taking hold costs more than all else.
#[derive(Default)]
struct Threads(RefCell<Vec<Arc<RemoteThread>>>);

/// Most that are remembered.
const THREADS: usize = 32;

impl Threads {
    /// The caller's thread, and its socket. One that is remembered by a number that was given again has ended, and says so.
    fn descriptor(&self, call: &ConnectCall) -> io::Result<(Arc<RemoteThread>, OwnedFd)> {
        let known = self.0.borrow().iter().find(|known| known.tid() == call.tid).cloned();
        if let Some(known) = known {
            match known.duplicate_fd(call.socket_fd) {
                Err(error) if error.raw_os_error() == Some(ENDED) => {}
                own => return Ok((known, own?)),
            }
        }
        let thread = Arc::new(RemoteThread::open(call.tid)?);
        let own = thread.duplicate_fd(call.socket_fd)?;
        self.remember(&thread);
        Ok((thread, own))
    }

    fn remember(&self, thread: &Arc<RemoteThread>) {
        let mut known = self.0.borrow_mut();
        known.retain(|other| other.tid() != thread.tid());
        if known.len() == THREADS {
            known.remove(0);
        }
        known.push(Arc::clone(thread));
    }
}

/// What was taken, and the pool's thread does not know yet. Its work (another connection is opened) would else run between a request and its answer.
#[derive(Default)]
struct Untold {
    taken: RefCell<Vec<(usize, SocketId, bool)>>,
    due: Cell<Option<Instant>>,
}

/// How long it does not know: within this most answers have come. So much later a connection ends, too, that is closed at once; and so much longer than
/// else clients find nothing that come for the last one.
const UNTOLD: Duration = Duration::from_micros(500);

impl Untold {
    /// Whether it is one of several.
    fn add(&self, number: usize, socket: SocketId, handed: bool) -> bool {
        let mut taken = self.taken.borrow_mut();
        taken.push((number, socket, handed));
        self.due.update(|due| due.or_else(|| Some(Instant::now() + UNTOLD)));
        taken.len() > 1
    }

    /// When it is to be told.
    fn due(&self) -> Option<Instant> {
        self.due.get()
    }

    fn take(&self) -> Vec<(usize, SocketId, bool)> {
        self.due.set(None);
        self.taken.take()
    }
}

const ENDED: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// What a socket that is to take the caller's place must be like.
struct Look {
    changes: Vec<OptionChange>,
    blocking: bool,
    close_at_exec: bool,
}

/// A program that lets connect() block registers its socket with no epoll before.
fn alone(thread: &RemoteThread, descriptor: i32, may_be_watched: bool) -> Result<(), Doubt> {
    let hidden = |_| Doubt::Hidden;
    let relation = |other| thread.fd_relation(descriptor, other, may_be_watched).map_err(hidden);
    let mut search = Search::new(descriptor, thread.open_fd_count().map_err(hidden)?)?;
    while let Some(other) = search.ask() {
        search.met(relation(other)?)?;
    }
    if search.is_unfinished() {
        let open = thread.list_fds().map_err(hidden)?;
        search.unmet(open).try_for_each(|other| judge(relation(other)?).map(drop))?;
    }
    Ok(())
}

/// Sockets of other families may have addresses of these (`AF_SMC`), but not this protocol.
fn nature(socket: impl AsFd) -> io::Result<(Nature, bool)> {
    let tcp = sockopt::socket_protocol(&socket)? == Some(ipproto::TCP);
    let local = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    let family = if local.is_ipv4() { Family::V4 } else { Family::V6 };
    let flags = rustix::fs::fcntl_getfl(&socket)?;
    let nature = Nature {
        family: tcp.then_some(family),
        closed: sockets::tcp_state(&socket)? == TcpState::Closed,
        bound: local.port() != 0 || !local.ip().is_unspecified(),
        odd_flags: !(flags - OFlags::NONBLOCK - OFlags::RDWR).is_empty(),
    };
    Ok((nature, !flags.contains(OFlags::NONBLOCK)))
}
