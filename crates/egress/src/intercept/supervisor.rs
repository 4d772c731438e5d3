//! Supervisor of an instance's connects. Every instance has its own thread, so a slow tenant delays
//! only itself. Reading a tenant's memory, or installing a descriptor in a process that does not
//! run, may take long.

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

/// Maximum length of an address: `struct sockaddr_in6`.
const MAX_ADDRESS_BYTES: usize = 28;

/// Request to the pool's thread. Destinations are numbered within the instance.
pub(super) enum SupervisorRequest {
    /// Requests a warm socket, or the answer that there is none.
    WantWarm(usize, SocketFamily),
    /// Reports a socket taken from its ready slot, and whether the handover succeeded.
    Taken(usize, SocketId, bool),
    /// Reports a call that was passed through.
    PassedThrough(usize, PassThroughReason),
}

/// Supervisor of one instance.
pub(super) struct ConnectSupervisor {
    listener: SeccompListener,
    fresh_v4: SocketOptions,
    fresh_v6: Option<SocketOptions>,
    /// Addresses with warm sockets, by destination number.
    addresses: Vec<Option<SocketAddr>>,
    /// Ready slots, by destination number.
    ready_slots: Vec<Option<ReadySlot>>,
    requests: UnboundedSender<SupervisorRequest>,
    answers: Receiver<Option<OwnedFd>>,
    searches_aliases: bool,
    threads: ThreadCache,
    pending_reports: PendingReports,
}

impl ConnectSupervisor {
    pub(super) fn new(
        handover: ListenerHandover,
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
        } = handover;
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

    /// Runs until all processes that could call have ended.
    pub(super) fn run(self) {
        loop {
            match self.next_event() {
                Ok(ListenerEvent::Call(call)) => self.answer_call(&call),
                Ok(ListenerEvent::Empty) => self.send_reports(),
                Ok(ListenerEvent::HungUp) => return self.send_reports(),
                Err(error) => {
                    self.send_reports();
                    return tracing::error!(%error, "seccomp listener lost, connect() in this instance will fail");
                }
            }
        }
    }

    fn next_event(&self) -> io::Result<ListenerEvent> {
        // Reports that are due go first; otherwise they bound the wait.
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

    /// Answers one call. If the pool has ended, no socket is warm.
    fn answer_call(&self, call: &ConnectCall) {
        let Some((number, family)) = self.find_destination(call) else {
            return self.listener.continue_call(call);
        };
        if let Err(reason) = self.replace_socket(call, number, family) {
            // The pool's thread counts the calls without a warm socket itself.
            if reason != PassThroughReason::Empty {
                // A pool that has ended counts nothing.
                let _ = self
                    .requests
                    .send(SupervisorRequest::PassedThrough(number, reason));
            }
            self.listener.continue_call(call);
        }
    }

    /// Reports the sockets that were taken.
    fn send_reports(&self) {
        for (number, socket, installed) in self.pending_reports.take_all() {
            // A pool that has ended has closed its own descriptors.
            let _ = self
                .requests
                .send(SupervisorRequest::Taken(number, socket, installed));
        }
    }

    fn find_destination(&self, call: &ConnectCall) -> Option<(usize, SocketFamily)> {
        let mut address = [0; MAX_ADDRESS_BYTES];
        // Longer addresses are of other families.
        let address = address.get_mut(..call.address_len)?;
        remote_thread::read_memory(call.tid, call.address_ptr, address).ok()?;
        decision::find_destination(address, &self.addresses)
    }

    /// Replaces the caller's socket. The caller waits for the answer during the whole inspection.
    /// So all facts are of this caller: a dead one cannot receive a descriptor.
    fn replace_socket(
        &self,
        call: &ConnectCall,
        number: usize,
        family: SocketFamily,
    ) -> Result<(), PassThroughReason> {
        // Inspected before a warm socket is requested, so that a doubtful call wastes none.
        let plan = self.inspect_socket(call, family)?;
        if let Some((socket, warm)) = self.take_ready(number, family) {
            let installed = self.install_socket(call, &warm, &plan);
            // Closed now: the report may be delayed, and an open duplicate would delay the end of
            // the connection.
            drop(warm);
            self.record_taken(number, socket, installed.is_ok());
            return installed.map_err(|_| PassThroughReason::Unreadable);
        }
        // The pool's thread is woken anyway, so pending reports go along.
        self.send_reports();
        let sent = self
            .requests
            .send(SupervisorRequest::WantWarm(number, family))
            .ok();
        // Waiting here delays only this instance.
        let warm = sent
            .and_then(|()| self.answers.recv().ok())
            .flatten()
            .ok_or(PassThroughReason::Empty)?;
        self.install_socket(call, &warm, &plan)
            .map_err(|_| PassThroughReason::Unreadable)
    }

    /// Takes a ready socket, which wakes no other thread.
    fn take_ready(&self, number: usize, family: SocketFamily) -> Option<(SocketId, OwnedFd)> {
        // Slots hold sockets of the destination's own family only.
        let is_native = self.addresses[number]
            .is_some_and(|address| decision::native_family(address) == family);
        self.ready_slots[number]
            .as_ref()
            .filter(|_| is_native)?
            .take()
    }

    /// Records a taken socket. A single report may wait; with several, an empty slot needs its
    /// refill.
    fn record_taken(&self, number: usize, socket: SocketId, installed: bool) {
        let several = self.pending_reports.add_report(number, socket, installed);
        if several
            && self.ready_slots[number]
                .as_ref()
                .is_none_or(|slot| slot.is_empty())
        {
            self.send_reports();
        }
    }

    fn install_socket(
        &self,
        call: &ConnectCall,
        warm: &OwnedFd,
        plan: &ReplacementPlan,
    ) -> io::Result<()> {
        // The mode follows the caller's socket, which the program set before the call.
        rustix::io::ioctl_fionbio(warm, !plan.blocking)?;
        plan.changes
            .iter()
            .try_for_each(|change| change.apply_to(warm))?;
        self.listener
            .replace_socket(call, warm.as_fd(), plan.close_on_exec)
    }

    fn inspect_socket(
        &self,
        call: &ConnectCall,
        family: SocketFamily,
    ) -> Result<ReplacementPlan, PassThroughReason> {
        let unreadable = |_| PassThroughReason::Unreadable;
        let (thread, duplicate) = self.threads.duplicate_socket(call).map_err(unreadable)?;
        // Only TCP sockets have all these facts.
        let (facts, blocking) =
            socket_facts(&duplicate).map_err(|_| PassThroughReason::WrongKind)?;
        facts.check_replaceable(family)?;
        if self.searches_aliases {
            check_no_aliases(&thread, call.socket_fd, !blocking)?;
        }
        // Rare options are compared only after the filter has reported the first of them (ADR 30).
        let changes = self
            .fresh_options(family)?
            .changes_on(&duplicate, self.listener.saw_rare_option())
            .map_err(PassThroughReason::FixedOption)?;
        Ok(ReplacementPlan {
            changes,
            blocking,
            close_on_exec: thread.is_cloexec(call.socket_fd).map_err(unreadable)?,
        })
    }

    fn fresh_options(&self, family: SocketFamily) -> Result<&SocketOptions, PassThroughReason> {
        match family {
            SocketFamily::V4 => Ok(&self.fresh_v4),
            SocketFamily::V6 => self.fresh_v6.as_ref().ok_or(PassThroughReason::WrongKind),
        }
    }
}

/// Threads that called before. Functions connect from the same threads repeatedly, and opening a
/// thread costs more than the rest.
#[derive(Default)]
struct ThreadCache(RefCell<Vec<Arc<RemoteThread>>>);

/// Maximum number of cached threads.
const MAX_CACHED_THREADS: usize = 32;

impl ThreadCache {
    /// Returns the caller's thread and a duplicate of its socket. A cached thread whose id was
    /// reused has ended and fails with `ESRCH`.
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
                duplicate => return Ok((known, duplicate?)),
            }
        }
        let thread = Arc::new(RemoteThread::open(call.tid)?);
        let duplicate = thread.duplicate_fd(call.socket_fd)?;
        self.remember_thread(&thread);
        Ok((thread, duplicate))
    }

    fn remember_thread(&self, thread: &Arc<RemoteThread>) {
        let mut known = self.0.borrow_mut();
        known.retain(|other| other.tid() != thread.tid());
        if known.len() == MAX_CACHED_THREADS {
            // The list is short, so the shift is cheap.
            known.remove(0);
        }
        known.push(Arc::clone(thread));
    }
}

/// Taken sockets that the pool's thread does not know of. Its work, opening another connection,
/// would otherwise run between a request and its answer.
#[derive(Default)]
struct PendingReports {
    taken: RefCell<Vec<(usize, SocketId, bool)>>,
    due_at: Cell<Option<Instant>>,
}

/// Delay of a report; most answers arrive within it. A connection closed at once ends that much
/// later, and the slot is refilled that much later.
const REPORT_DELAY: Duration = Duration::from_micros(500);

impl PendingReports {
    /// Adds a report. Returns true if several are pending.
    fn add_report(&self, number: usize, socket: SocketId, installed: bool) -> bool {
        let mut taken = self.taken.borrow_mut();
        taken.push((number, socket, installed));
        // The first report sets the time; later ones go along.
        self.due_at
            .update(|due| due.or_else(|| Some(Instant::now() + REPORT_DELAY)));
        taken.len() > 1
    }

    /// Returns when the reports are due.
    fn due_at(&self) -> Option<Instant> {
        self.due_at.get()
    }

    fn take_all(&self) -> Vec<(usize, SocketId, bool)> {
        self.due_at.set(None);
        self.taken.take()
    }
}

const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// Settings that the replacement needs.
struct ReplacementPlan {
    changes: Vec<OptionChange>,
    blocking: bool,
    close_on_exec: bool,
}

/// Checks that no other descriptor refers to the socket. A program that lets connect() block has
/// not registered its socket with an epoll before.
fn check_no_aliases(
    thread: &RemoteThread,
    descriptor: i32,
    checks_epolls: bool,
) -> Result<(), PassThroughReason> {
    let unreadable = |_| PassThroughReason::Unreadable;
    let relation = |other| {
        thread
            .fd_relation(descriptor, other, checks_epolls)
            .map_err(unreadable)
    };
    let mut search = AliasSearch::new(descriptor, thread.open_fd_count().map_err(unreadable)?)?;
    while let Some(other) = search.next_fd() {
        search.record_relation(relation(other)?)?;
    }
    if search.is_unfinished() {
        // The remaining numbers are sparse, so listing them is cheaper than asking one by one.
        let open = thread.list_fds().map_err(unreadable)?;
        search
            .unvisited_fds(open)
            .try_for_each(|other| check_relation(relation(other)?).map(drop))?;
    }
    Ok(())
}

/// Returns the facts of a socket, and whether it blocks. Sockets of other families may have IP
/// addresses (`AF_SMC`) but not this protocol.
fn socket_facts(socket: impl AsFd) -> io::Result<(SocketFacts, bool)> {
    let tcp = sockopt::socket_protocol(&socket)? == Some(ipproto::TCP);
    let local = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    let family = if local.is_ipv4() {
        SocketFamily::V4
    } else {
        SocketFamily::V6
    };
    let flags = rustix::fs::fcntl_getfl(&socket)?;
    let facts = SocketFacts {
        family: tcp.then_some(family),
        closed: sockets::tcp_state(&socket)? == TcpState::Closed,
        bound: local.port() != 0 || !local.ip().is_unspecified(),
        odd_flags: !(flags - OFlags::NONBLOCK - OFlags::RDWR).is_empty(),
    };
    Ok((facts, !flags.contains(OFlags::NONBLOCK)))
}
