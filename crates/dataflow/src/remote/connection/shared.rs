//! What the line's thread shares with those who use it.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nearpath_p2p::control::{self, Meeting};
use nearpath_p2p::ticket::Job;
use nearpath_types::SpiffeId;
use tokio::sync::{Notify, Semaphore};

use super::SayError;
use super::event_fd::Bell;
use crate::remote::call_queue::Calls;
use crate::remote::control_message::Part;
use crate::remote::inbox::Inbox;
use crate::remote::outbox::{Outbox, Turn};
use crate::remote::worker_name;

/// Of the descriptors that a process may have, one search for a direct way at once for so many: it has up to a dozen sockets.
const OF_DESCRIPTORS: u64 = 32;

/// So many calls are answered at once: those of short edges are through with one after the other then, and not all at the end.
const ANSWERS: usize = 8;

pub(crate) struct Shared {
    pub(crate) job: Job,
    pub(super) bell: Bell,
    /// Leave to look for a direct way.
    pub(crate) searches: Arc<Semaphore>,
    /// Leave to answer a call.
    pub(crate) answers: Arc<Semaphore>,
    line: Mutex<Option<control::Line>>,
    state: Mutex<State>,
    /// The presence changed.
    changed: Condvar,
    /// Somebody calls, or the line is over.
    pub(super) rang: Notify,
    /// There is something to say, or the line is there again.
    pub(super) speak: Notify,
    pub(super) closing: Notify,
}

struct State {
    presence: Presence,
    inbox: Inbox,
    outbox: Outbox<Option<SpiffeId>>,
    calls: Calls<Meeting>,
}

/// Whether there is a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Presence {
    /// Why not.
    Away(String),
    /// `loopback`: the rendezvous is on this machine, so peers may be.
    Here { loopback: bool },
    /// Why it will not come again.
    Over(String),
}

pub(super) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the line to the rendezvous is closed")
}

fn over(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, why)
}

/// So many edges may look for a direct way at once.
fn searches() -> usize {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let searches = descriptors.map_or(usize::MAX, |most| usize::try_from(most / OF_DESCRIPTORS).unwrap_or(usize::MAX));
    searches.clamp(16, 512)
}

impl Shared {
    pub(super) fn new(job: Job, line: control::Line) -> io::Result<Self> {
        let presence = Presence::Away("it has not been reached yet".to_owned());
        let (inbox, outbox, calls) = (Inbox::default(), Outbox::default(), Calls::default());
        Ok(Self {
            job,
            bell: Bell::new()?,
            searches: Arc::new(Semaphore::new(searches())),
            answers: Arc::new(Semaphore::new(ANSWERS)),
            line: Mutex::new(Some(line)),
            state: Mutex::new(State { presence, inbox, outbox, calls }),
            changed: Condvar::new(),
            rang: Notify::new(),
            speak: Notify::new(),
            closing: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // What users do.

    /// The rendezvous' own.
    pub(crate) fn line(&self) -> io::Result<control::Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(closed)
    }

    pub(super) fn wait(&self, patience: Duration) -> io::Result<bool> {
        let away = |state: &mut State| matches!(state.presence, Presence::Away(_));
        let state = self.changed.wait_timeout_while(self.lock(), patience, away);
        let (state, _) = state.unwrap_or_else(PoisonError::into_inner);
        match &state.presence {
            Presence::Here { .. } => Ok(true),
            Presence::Away(_) => Ok(false),
            Presence::Over(why) => Err(over(why)),
        }
    }

    pub(super) fn say(&self, to: Option<&str>, text: &str) -> Result<(), SayError> {
        let to = to.map(|name| worker_name::identity(&self.job, name)).transpose()?;
        self.lock().outbox.put(to, text)?;
        self.speak.notify_one();
        Ok(())
    }

    pub(super) fn read(&self) -> io::Result<Vec<(String, String)>> {
        let mut state = self.lock();
        let heard = state.inbox.read();
        match &state.presence {
            Presence::Over(why) if heard.is_empty() => Err(over(why)),
            Presence::Over(_) => Ok(heard), // it goes on ringing
            _ => {
                self.bell.stop();
                Ok(heard)
            }
        }
    }

    pub(super) fn close(&self) {
        self.closing.notify_one();
    }

    /// Whether peers may be on this machine, and reachable nowhere else.
    pub(crate) fn is_on_loopback(&self) -> bool {
        matches!(self.lock().presence, Presence::Here { loopback: true })
    }

    // Calls.

    pub(crate) fn begin(&self, attempt: u32, producers: Vec<String>) {
        self.lock().calls.begin(attempt, producers);
    }

    /// The next call of that producer.
    pub(crate) async fn called(&self, from: &str, attempt: u32) -> io::Result<Meeting> {
        self.until(|state| state.calls.take(from, attempt)).await
    }

    /// Until that producer calls (once more).
    pub(crate) async fn rings(&self, from: &str, attempt: u32) -> io::Result<()> {
        self.until(|state| state.calls.rings(from, attempt).then_some(())).await
    }

    async fn until<T>(&self, ask: impl Fn(&mut State) -> Option<T>) -> io::Result<T> {
        loop {
            let changed = self.rang.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.lock();
                match (ask(&mut state), &state.presence) {
                    (Some(found), _) => return Ok(found),
                    (None, Presence::Over(why)) => {
                        return Err(io::Error::new(io::ErrorKind::NotConnected, why.clone()));
                    }
                    (None, _) => (),
                }
            }
            changed.await;
        }
    }

    // What the line's thread does.

    pub(super) fn set(&self, presence: Presence) {
        let is_over = matches!(presence, Presence::Over(_));
        self.lock().presence = presence;
        self.changed.notify_all();
        self.speak.notify_one();
        if is_over {
            self.rang.notify_waiters();
            self.bell.ring();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.lock().presence, Presence::Over(_))
    }

    pub(super) fn rang(&self, from: String, attempt: u32, meeting: Meeting) {
        let refused = self.lock().calls.ring(from, attempt, meeting);
        drop(refused); // which hangs up
        self.rang.notify_waiters();
    }

    pub(super) fn heard(&self, from: &str, part: Part) {
        let mut state = self.lock();
        state.inbox.take(from, part);
        if !state.inbox.is_empty() {
            self.bell.ring();
        }
    }

    /// What is to be said now. While there is no line there is nothing: what is said later is newer.
    pub(super) fn next(&self, now: Instant) -> Turn<Option<SpiffeId>> {
        let mut state = self.lock();
        match state.presence {
            Presence::Here { .. } => state.outbox.next(now),
            _ => Turn::Nothing,
        }
    }

    pub(super) fn has_said_all(&self) -> bool {
        let state = self.lock();
        state.outbox.is_empty() || !matches!(state.presence, Presence::Here { .. })
    }

    /// Once all connections are made that were begun, the line ends.
    pub(super) fn hang_up(&self) {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
