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

use super::decision::{self, PassThroughReason, SocketFacts, SocketFamily};
use super::fd_aliases::{AliasSearch, check_relation};
use nearpath_connpool::ready_slot::ReadySlot;
use nearpath_connpool::state::SocketId;

/// The longest address that is asked about.
const MAX_ADDRESS_BYTES: usize = 28;

/// What a clerk says to the pool: destinations by their number among its instance's.
pub(super) enum SupervisorRequest {
    /// A warm socket is wanted, or word that there is none.
    WantWarm(usize, SocketFamily),
    /// One was taken from its tray, and whether it was handed over then.
    Taken(usize, SocketId, bool),
    /// A call was left to the way out.
    PassedThrough(usize, PassThroughReason),
}

/// See the module.
pub(super) struct ConnectSupervisor {
    listener: SeccompListener,
    fresh_v4: SocketOptions,
    fresh_v6: Option<SocketOptions>,
    /// Where warm sockets are for, by the destinations' numbers.
    addresses: Vec<Option<SocketAddr>>,
    /// Where one of those lies ready.
    ready_slots: Vec<Option<ReadySlot>>,
    requests: UnboundedSender<SupervisorRequest>,
    answers: Receiver<Option<OwnedFd>>,
    searches_aliases: bool,
    threads: ThreadCache,
    pending_reports: PendingReports,
}

impl ConnectSupervisor {
    pub(super) fn new(
        handed: ListenerHandover,
        addresses: Vec<Option<SocketAddr>>,
        ready_slots: Vec<Option<ReadySlot>>,
        (requests, answers): (
            UnboundedSender<SupervisorRequest>,
            Receiver<Option<OwnedFd>>,
        ),
        searches_aliases: bool,
    ) -> Self {
        let ListenerHandover {
            listener,
            fresh_v4,
            fresh_v6,
        } = handed;
        Self {
            listener,
            fresh_v4,
            fresh_v6,
            addresses,
            ready_slots,
            requests,
            answers,
            searches_aliases,
            threads: ThreadCache::default(),
            pending_reports: PendingReports::default(),
        }
    }

    /// Until all that could call have ended.
    pub(super) fn run(self) {
        loop {
            match self.next_event() {
                Ok(ListenerEvent::Call(call)) => self.answer_call(&call),
                Ok(ListenerEvent::Empty) => self.send_reports(),
                Ok(ListenerEvent::HungUp) => return self.send_reports(),
                Err(error) => {
                    self.send_reports();
                    return tracing::error!(%error, "an instance's connects fail from now on");
                }
            }
        }
    }

    fn next_event(&self) -> io::Result<ListenerEvent> {
        match self
            .pending_reports
            .due_at()
            .map(|due| due.saturating_duration_since(Instant::now()))
        {
            Some(Duration::ZERO) => Ok(ListenerEvent::Empty),
            Some(left) => self.listener.wait_timeout(left),
            None => Ok(self
                .listener
                .wait_call()?
                .map_or(ListenerEvent::HungUp, ListenerEvent::Call)),
        }
    }

    /// A pool that has ended has nothing warm.
    fn answer_call(&self, call: &ConnectCall) {
        let Some((number, family)) = self.find_destination(call) else {
            return self.listener.continue_call(call);
        };
        if let Err(doubt) = self.replace_socket(call, number, family) {
            if doubt != PassThroughReason::Empty {
                let _ = self
                    .requests
                    .send(SupervisorRequest::PassedThrough(number, doubt)); // as above
            }
            self.listener.continue_call(call);
        }
    }

    /// Says what was taken.
    fn send_reports(&self) {
        for (number, socket, handed) in self.pending_reports.take_all() {
            let _ = self
                .requests
                .send(SupervisorRequest::Taken(number, socket, handed)); // as above
        }
    }

    fn find_destination(&self, call: &ConnectCall) -> Option<(usize, SocketFamily)> {
        let mut address = [0; MAX_ADDRESS_BYTES];
        let address = address.get_mut(..call.address_len)?;
        remote_thread::read_memory(call.tid, call.address_ptr, address).ok()?;
        decision::find_destination(address, &self.addresses)
    }

    /// All that is learnt of the caller lies between two moments in which it waits for the answer, so it is of this caller and no other: who is dead
    /// cannot be handed anything.
    fn replace_socket(
        &self,
        call: &ConnectCall,
        number: usize,
        family: SocketFamily,
    ) -> Result<(), PassThroughReason> {
        let look = self.inspect_socket(call, family)?;
        if let Some((socket, warm)) = self.take_ready(number, family) {
            let handed = self.install_socket(call, &warm, &look);
            drop(warm);
            self.record_taken(number, socket, handed.is_ok());
            return handed.map_err(|_| PassThroughReason::Unreadable);
        }
        self.send_reports();
        let asked = self
            .requests
            .send(SupervisorRequest::WantWarm(number, family))
            .ok();
        let warm = asked
            .and_then(|()| self.answers.recv().ok())
            .flatten()
            .ok_or(PassThroughReason::Empty)?;
        self.install_socket(call, &warm, &look)
            .map_err(|_| PassThroughReason::Unreadable)
    }

    /// What lies ready: nobody has to be woken for it.
    fn take_ready(&self, number: usize, family: SocketFamily) -> Option<(SocketId, OwnedFd)> {
        let native =
            self.addresses[number].is_some_and(|place| decision::native_family(place) == family);
        self.ready_slots[number].as_ref().filter(|_| native)?.take()
    }

    /// The first one may wait to be told; of several, the last that lay ready may not.
    fn record_taken(&self, number: usize, socket: SocketId, handed: bool) {
        let several = self.pending_reports.add_report(number, socket, handed);
        if several
            && self.ready_slots[number]
                .as_ref()
                .is_none_or(|tray| tray.is_empty())
        {
            self.send_reports();
        }
    }

    fn install_socket(
        &self,
        call: &ConnectCall,
        warm: &OwnedFd,
        look: &ReplacementPlan,
    ) -> io::Result<()> {
        rustix::io::ioctl_fionbio(warm, !look.blocking)?;
        look.changes
            .iter()
            .try_for_each(|change| change.apply_to(warm))?;
        self.listener
            .replace_socket(call, warm.as_fd(), look.close_on_exec)
    }

    fn inspect_socket(
        &self,
        call: &ConnectCall,
        family: SocketFamily,
    ) -> Result<ReplacementPlan, PassThroughReason> {
        let hidden = |_| PassThroughReason::Unreadable;
        let (thread, own) = self.threads.duplicate_socket(call).map_err(hidden)?;
        let (nature, blocking) = socket_facts(&own).map_err(|_| PassThroughReason::WrongKind)?; // what has no such facts is no TCP socket
        nature.check_replaceable(family)?;
        if self.searches_aliases {
            check_no_aliases(&thread, call.socket_fd, !blocking)?;
        }
        let changes = self
            .fresh_options(family)?
            .changes_on(&own, self.listener.saw_rare_option())
            .map_err(PassThroughReason::FixedOption)?;
        Ok(ReplacementPlan {
            changes,
            blocking,
            close_on_exec: thread.is_cloexec(call.socket_fd).map_err(hidden)?,
        })
    }

    fn fresh_options(&self, family: SocketFamily) -> Result<&SocketOptions, PassThroughReason> {
        match family {
            SocketFamily::V4 => Ok(&self.fresh_v4),
            SocketFamily::V6 => self.fresh_v6.as_ref().ok_or(PassThroughReason::WrongKind),
        }
    }
}

/// Threads that called before: a function that lives on calls by the same ones, and taking hold costs more than all else.
#[derive(Default)]
struct ThreadCache(RefCell<Vec<Arc<RemoteThread>>>);

/// Most that are remembered.
const MAX_CACHED_THREADS: usize = 32;

impl ThreadCache {
    /// The caller's thread, and its socket. One that is remembered by a number that was given again has ended, and says so.
    fn duplicate_socket(&self, call: &ConnectCall) -> io::Result<(Arc<RemoteThread>, OwnedFd)> {
        let known = self
            .0
            .borrow()
            .iter()
            .find(|known| known.tid() == call.tid)
            .cloned();
        if let Some(known) = known {
            match known.duplicate_fd(call.socket_fd) {
                Err(error) if error.raw_os_error() == Some(ESRCH) => {}
                own => return Ok((known, own?)),
            }
        }
        let thread = Arc::new(RemoteThread::open(call.tid)?);
        let own = thread.duplicate_fd(call.socket_fd)?;
        self.remember_thread(&thread);
        Ok((thread, own))
    }

    fn remember_thread(&self, thread: &Arc<RemoteThread>) {
        let mut known = self.0.borrow_mut();
        known.retain(|other| other.tid() != thread.tid());
        if known.len() == MAX_CACHED_THREADS {
            known.remove(0);
        }
        known.push(Arc::clone(thread));
    }
}

/// What was taken, and the pool's thread does not know yet. Its work (another connection is opened) would else run between a request and its answer.
#[derive(Default)]
struct PendingReports {
    taken: RefCell<Vec<(usize, SocketId, bool)>>,
    due_at: Cell<Option<Instant>>,
}

/// How long it does not know: within this most answers have come. So much later a connection ends, too, that is closed at once; and so much longer than
/// else clients find nothing that come for the last one.
const REPORT_DELAY: Duration = Duration::from_micros(500);

impl PendingReports {
    /// Whether it is one of several.
    fn add_report(&self, number: usize, socket: SocketId, handed: bool) -> bool {
        let mut taken = self.taken.borrow_mut();
        taken.push((number, socket, handed));
        self.due_at
            .update(|due| due.or_else(|| Some(Instant::now() + REPORT_DELAY)));
        taken.len() > 1
    }

    /// When it is to be told.
    fn due_at(&self) -> Option<Instant> {
        self.due_at.get()
    }

    fn take_all(&self) -> Vec<(usize, SocketId, bool)> {
        self.due_at.set(None);
        self.taken.take()
    }
}

const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// What a socket that is to take the caller's place must be like.
struct ReplacementPlan {
    changes: Vec<OptionChange>,
    blocking: bool,
    close_on_exec: bool,
}

/// A program that lets connect() block registers its socket with no epoll before.
fn check_no_aliases(
    thread: &RemoteThread,
    descriptor: i32,
    may_be_watched: bool,
) -> Result<(), PassThroughReason> {
    let hidden = |_| PassThroughReason::Unreadable;
    let relation = |other| {
        thread
            .fd_relation(descriptor, other, may_be_watched)
            .map_err(hidden)
    };
    let mut search = AliasSearch::new(descriptor, thread.open_fd_count().map_err(hidden)?)?;
    while let Some(other) = search.next_fd() {
        search.record_relation(relation(other)?)?;
    }
    if search.is_unfinished() {
        let open = thread.list_fds().map_err(hidden)?;
        search
            .unvisited_fds(open)
            .try_for_each(|other| check_relation(relation(other)?).map(drop))?;
    }
    Ok(())
}

/// Sockets of other families may have addresses of these (`AF_SMC`), but not this protocol.
fn socket_facts(socket: impl AsFd) -> io::Result<(SocketFacts, bool)> {
    let tcp = sockopt::socket_protocol(&socket)? == Some(ipproto::TCP);
    let local = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    let family = if local.is_ipv4() {
        SocketFamily::V4
    } else {
        SocketFamily::V6
    };
    let flags = rustix::fs::fcntl_getfl(&socket)?;
    let nature = SocketFacts {
        family: tcp.then_some(family),
        closed: sockets::tcp_state(&socket)? == TcpState::Closed,
        bound: local.port() != 0 || !local.ip().is_unspecified(),
        odd_flags: !(flags - OFlags::NONBLOCK - OFlags::RDWR).is_empty(),
    };
    Ok((nature, !flags.contains(OFlags::NONBLOCK)))
}
