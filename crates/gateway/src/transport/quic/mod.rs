//! QUIC connections of one thread: one UDP socket, and for each instance as few lines as its calls need.
//!
//! A line serves many calls; another is opened when one is full. It is dropped when it is closed, when nobody used it for a while, or when a
//! certificate has ended, and then ends with its last call. TCP tells when a process is gone, UDP does not: that is learned from the
//! snapshot, and cuts what is open.

mod warmup;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use nearpath_wire::quic::config::STREAMS;
use nearpath_wire::quic::{Caller, Dialer, Line};
use tokio::sync::{Semaphore, watch};

use crate::function::{Endpoint, Function, millis};
use warmup::Use;

/// Why there is no line. Nothing was sent.
pub(crate) enum NoLine {
    /// Nothing gets through over UDP: another path may.
    Blocked,
    /// Another reason, which another path does not mend.
    Failed(String),
}

struct Kept {
    line: Line,
    /// When it was last asked for.
    since: Cell<u32>,
    /// Of a caller that has been renewed: no new calls.
    old: bool,
}

impl Kept {
    fn is_free(&self) -> bool {
        !self.old && !self.line.is_closed() && self.line.open() < STREAMS
    }
}

struct Way {
    endpoint: Arc<Endpoint>,
    lines: Vec<Kept>,
    dialing: Rc<Semaphore>,
}

impl Way {
    fn new(endpoint: &Arc<Endpoint>) -> Self {
        Self { endpoint: endpoint.clone(), lines: Vec::new(), dialing: Rc::new(Semaphore::new(1)) }
    }

    fn free(&self, now: u32) -> Option<Line> {
        let kept = self.lines.iter().find(|kept| kept.is_free())?;
        kept.since.set(now);
        Some(kept.line.clone())
    }

    /// Whether anything is left.
    fn sweep(&mut self, oldest: u32, now: SystemTime) -> bool {
        if self.endpoint.is_gone() {
            self.lines.drain(..).for_each(|kept| cut(kept.line));
        }
        let withdrawn = self.endpoint.load().is_none();
        if self.lines.iter().any(|kept| kept.line.is_silent()) {
            self.endpoint.reach.failed(millis(Instant::now())); // answers broke off: others take another path
        }
        self.lines.retain_mut(|kept| {
            kept.old |= withdrawn || kept.line.has_expired(now);
            let wanted = kept.line.open() > 0 || (!kept.old && kept.since.get() >= oldest);
            if !wanted {
                kept.line.close();
            }
            wanted && !kept.line.is_closed()
        });
        !self.lines.is_empty() || self.dialing.available_permits() == 0
    }
}

/// Ends the calls of a line whose instance is gone; what it had sent before is read.
fn cut(line: Line) {
    /// For what lies in the socket and in the line's own buffers.
    const LAST_WORDS: Duration = Duration::from_millis(20);
    tokio::task::spawn_local(async move {
        tokio::time::sleep(LAST_WORDS).await;
        line.close();
    });
}

/// See the module's text.
pub(crate) struct Lines {
    ways: RefCell<HashMap<u64, Way>>,
    /// Who calls; it changes when it is renewed, and when an instance is taken back. `None`: nobody, over HTTP alone.
    caller: Option<watch::Receiver<Caller>>,
    /// As it was when it was last asked for.
    dialer: RefCell<Option<(Caller, Dialer)>>,
    /// Functions that are called on lines, by their place in memory, which `Weak` keeps.
    used: RefCell<HashMap<*const Function, (Weak<Function>, Use)>>,
}

impl Lines {
    /// None open.
    pub(crate) fn new(caller: Option<watch::Receiver<Caller>>) -> Self {
        Self { ways: RefCell::default(), caller, dialer: RefCell::default(), used: RefCell::default() }
    }

    /// Whether there is somebody to call as.
    pub(crate) fn has_caller(&self) -> bool {
        self.caller.is_some()
    }

    /// Who calls now.
    pub(crate) fn caller(&self) -> Option<Caller> {
        Some(self.caller.as_ref()?.borrow().clone())
    }

    /// A line to the instance that has room; the one that is there, or a new one. `fresh` says which.
    pub(crate) async fn line(&self, endpoint: &Arc<Endpoint>, now: u32, limit: Duration) -> Result<Found, NoLine> {
        if let Some(line) = self.with(endpoint, |way| way.free(now)) {
            return Ok(Found { line, fresh: false });
        }
        let dialing = self.with(endpoint, |way| way.dialing.clone());
        let _turn = dialing.acquire().await.expect("this semaphore is never closed");
        if let Some(line) = self.with(endpoint, |way| way.free(now)) {
            return Ok(Found { line, fresh: false });
        }
        if endpoint.reach.is_blocked_now() {
            return Err(NoLine::Blocked); // somebody else has just found out
        }
        let line = self.dial(endpoint, limit).await?;
        let kept = Kept { line: line.clone(), since: Cell::new(now), old: false };
        self.with(endpoint, |way| way.lines.push(kept));
        Ok(Found { line, fresh: true })
    }

    /// The instance takes no more calls on this line.
    pub(crate) fn retire(&self, endpoint: &Arc<Endpoint>, line: &Line) {
        let id = line.connection().stable_id();
        let same = |kept: &&mut Kept| kept.line.connection().stable_id() == id;
        self.with(endpoint, |way| way.lines.iter_mut().filter(same).for_each(|kept| kept.old = true));
    }

    /// A call goes out.
    pub(crate) fn called(&self, function: &Arc<Function>, now: u32) {
        let mut used = self.used.borrow_mut();
        let entry = used.entry(Arc::as_ptr(function));
        let began = || (Arc::downgrade(function), Use::begin(now));
        entry.and_modify(|(_, used)| used.called(now)).or_insert_with(began);
    }

    /// Instances that a line is to be opened to ahead of the next call. Forgets functions that are not called any more.
    pub(crate) fn ahead(&self, now: u32) -> Vec<Arc<Endpoint>> {
        let (mut used, ways) = (self.used.borrow_mut(), self.ways.borrow());
        let mut chosen = Vec::new();
        used.retain(|_, (function, used)| {
            let calls = used.calls(now);
            let Some(function) = function.upgrade().filter(|_| calls > 0) else { return false };
            let route = function.route();
            let has_line = |one: &&Arc<Endpoint>| ways.get(&one.serial).is_some_and(|way| !way.lines.is_empty());
            let (lined, bare): (Vec<_>, Vec<_>) = route.ready.iter().partition(has_line);
            let open = bare.into_iter().filter(|one| one.name().is_some() && !one.reach.is_blocked_now());
            let wanted = warmup::wanted(calls, lined.len(), open.clone().count());
            chosen.extend(open.take(wanted).cloned());
            true
        });
        chosen
    }

    async fn dial(&self, endpoint: &Endpoint, limit: Duration) -> Result<Line, NoLine> {
        let name = endpoint.name().ok_or_else(|| NoLine::Failed("the instance has no name".to_owned()))?;
        let dialer = self.dialer(endpoint.addr).map_err(|error| NoLine::Failed(format!("no socket: {error}")))?;
        dialer.dial(endpoint.addr, name, limit).await.map_err(|error| match error.is_silence() {
            true => {
                endpoint.reach.failed(millis(Instant::now()));
                NoLine::Blocked
            }
            false => NoLine::Failed(error.to_string()),
        })
    }

    /// The thread's socket, as who calls now. It is made in the network namespace that the thread is in.
    fn dialer(&self, to: SocketAddr) -> io::Result<Dialer> {
        let caller = self.caller.as_ref().ok_or_else(|| io::Error::other("nobody to call as"))?.borrow().clone();
        let mut kept = self.dialer.borrow_mut();
        let dialer = match &*kept {
            Some((_, dialer)) => caller.take_over(dialer),
            None => caller.dialer(socket(to)?)?,
        };
        *kept = Some((caller, dialer.clone()));
        Ok(dialer)
    }

    /// Waits until who calls was renewed, and tells `others`; lines of the old one take no new calls from then on.
    pub(crate) async fn follow(&self, others: impl Fn(&Caller)) {
        let Some(mut callers) = self.caller.clone() else { return };
        while callers.changed().await.is_ok() {
            let now = callers.borrow_and_update().clone();
            others(&now);
            let renewed = self.dialer.borrow().as_ref().is_some_and(|(before, _)| !before.is_same(&now));
            if renewed {
                self.ways.borrow_mut().values_mut().flat_map(|way| &mut way.lines).for_each(|kept| kept.old = true);
            }
        }
    }

    /// Drops what is closed, unused since before `oldest`, or leads to an instance that is withdrawn; cuts what leads to one that is gone.
    pub(crate) fn sweep(&self, oldest: u32) {
        let mut ways = self.ways.borrow_mut();
        if !ways.is_empty() {
            let now = SystemTime::now();
            ways.retain(|_, way| way.sweep(oldest, now));
        }
    }

    fn with<T>(&self, endpoint: &Arc<Endpoint>, f: impl FnOnce(&mut Way) -> T) -> T {
        f(self.ways.borrow_mut().entry(endpoint.serial).or_insert_with(|| Way::new(endpoint)))
    }
}

/// A line, and whether it was opened for the one who asked.
pub(crate) struct Found {
    pub(crate) line: Line,
    pub(crate) fresh: bool,
}

fn socket(to: SocketAddr) -> io::Result<UdpSocket> {
    match to {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    }
}
