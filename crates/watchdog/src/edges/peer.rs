//! One instance of a callee, and the connection to it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use nearpath_types::{Locality, frames};
use nearpath_wire::quic::{DialError, Dialer, Line};
use tokio::sync::Mutex;
use tokio::task::spawn_local;

use super::choice::Silence;

/// How long an instance may take to answer at all: it is near, and whoever waits has another way.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the module's text.
#[derive(Debug)]
pub(super) struct Peer {
    /// The name of its incarnation.
    pub(super) name: Rc<str>,
    pub(super) addr: SocketAddr,
    pub(super) locality: Locality,
    line: RefCell<Option<Line>>,
    /// One connection is opened at a time.
    dialling: Mutex<()>,
    silence: Silence,
}

impl Peer {
    pub(super) fn of(told: &frames::Peer) -> Self {
        let frames::Peer { name, addr, locality, leaving: _ } = told;
        let (line, dialling, silence) = Default::default();
        Self { name: name.as_str().into(), addr: *addr, locality: *locality, line, dialling, silence }
    }

    /// Calls that are under way to it; nothing while it is left alone.
    pub(super) fn load(&self, now: Instant) -> Option<u32> {
        let open = || self.line.borrow().as_ref().map_or(0, Line::open);
        self.silence.is_over(now).then(open)
    }

    /// Calls that go out from now on get another connection; those under way keep theirs.
    pub(super) fn part(&self) {
        self.line.borrow_mut().take();
    }

    /// It has ended: nobody waits for its answers.
    pub(super) fn end(&self) {
        if let Some(line) = self.line.borrow_mut().take() {
            line.close();
        }
    }

    pub(super) fn has_line(&self) -> bool {
        self.ready().is_some()
    }

    fn ready(&self) -> Option<Line> {
        let line = self.line.borrow();
        line.as_ref().filter(|line| !line.is_closed() && !line.has_expired(SystemTime::now())).cloned()
    }

    /// The connection to it, opened if need be; at once where there is a session.
    ///
    /// # Errors
    /// See [`DialError`]; it is then left alone for a while.
    pub(super) async fn line(self: &Rc<Self>, dialer: &Rc<RefCell<Dialer>>) -> Result<Line, DialError> {
        if let Some(line) = self.ready() {
            return Ok(line);
        }
        // Whoever waits may have less time than that takes. It goes on without: others are told what came of it.
        let dialling = spawn_local(Rc::clone(self).dial(Rc::clone(dialer)));
        dialling.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
    }

    async fn dial(self: Rc<Self>, dialer: Rc<RefCell<Dialer>>) -> Result<Line, DialError> {
        let _turn = self.dialling.lock().await;
        if let Some(line) = self.ready() {
            return Ok(line);
        }
        let dialer = dialer.borrow().clone();
        let dialled = dialer.dial(self.addr, &self.name, PATIENCE).await;
        let line = dialled.inspect_err(|_| self.silence.failed(Instant::now()))?;
        self.line.replace(Some(line.clone()));
        match line.is_early() {
            true => drop(spawn_local(Rc::clone(&self).watch(line.clone()))),
            false => self.silence.broken(),
        }
        Ok(line)
    }

    /// What was sent in a first flight into silence may have arrived, so nobody can send it again elsewhere; but no more is sent there.
    async fn watch(self: Rc<Self>, line: Line) {
        match line.settled().await {
            Ok(_) => self.silence.broken(),
            Err(_) => {
                self.silence.failed(Instant::now());
                self.part();
            }
        }
    }
}
