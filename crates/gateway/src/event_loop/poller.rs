//! An epoll instance with its sockets. Threads may share the handle; events are for one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use slab::Slab;

use super::registration::{Readiness, Registration};

/// Events of one look at the epoll instance.
pub(super) const MAX_EVENTS: usize = 256;
const NO_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Token of a socket's events. No later socket has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    index: u32,
    generation: u32,
}

impl Token {
    /// Index among the sockets that are registered now.
    pub(super) fn index(self) -> usize {
        self.index as usize
    }

    pub(super) fn from_data(data: EventData) -> Self {
        let [index, generation] = [data.u64() as u32, (data.u64() >> 32) as u32];
        Self { index, generation }
    }

    fn to_data(self) -> EventData {
        EventData::new_u64(u64::from(self.index) | u64::from(self.generation) << 32)
    }
}

/// Epoll instance of one thread.
#[derive(Debug, Clone)]
pub(crate) struct Poller(Arc<PollerState>);

#[derive(Debug)]
struct PollerState {
    epoll: Arc<OwnedFd>,
    sockets: Mutex<Sockets>,
}

/// Registered sockets.
#[derive(Debug, Default)]
struct Sockets {
    /// With the generation of their token.
    registrations: Slab<(u32, Arc<Registration>)>,
    next_generation: u32,
}

impl Poller {
    /// # Errors
    /// If the process has no file descriptor left.
    pub(super) fn new() -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(Self(Arc::new(PollerState {
            epoll,
            sockets: Mutex::default(),
        })))
    }

    /// Returns the epoll instance, to be watched by another one.
    pub(super) fn descriptor(&self) -> Arc<OwnedFd> {
        self.0.epoll.clone()
    }

    /// Watches a socket; returns its token. What it is ready for already makes an event, too.
    ///
    /// # Errors
    /// If the kernel has no memory, or the user may watch no more (`max_user_watches`).
    pub(super) fn add(
        &self,
        socket: impl AsFd,
        registration: Arc<Registration>,
    ) -> io::Result<Token> {
        // Edges: a socket that a task leaves unread makes no further events.
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let token = self.lock_sockets().insert(registration);
        let added = epoll::add(&*self.0.epoll, socket, token.to_data(), flags);
        if added.is_err() {
            self.forget(token);
        }
        Ok(added.map(|()| token)?)
    }

    /// Ends the watch of a socket.
    pub(super) fn remove(&self, socket: impl AsFd, token: Token) {
        // Also before a close: a copy of the descriptor in a child would go on making events.
        let _ = epoll::delete(&*self.0.epoll, socket); // it is registered
        self.forget(token);
    }

    fn forget(&self, token: Token) {
        let forgotten = self.lock_sockets().registrations.try_remove(token.index());
        drop(forgotten); // without the lock: it may hold wakers of tasks
    }

    /// Notes an event and wakes the tasks that wait for it.
    pub(super) fn note_and_wake(&self, token: Token, readiness: Readiness) {
        let registration = self.lock_sockets().get(token);
        if let Some(registration) = registration {
            registration.note_and_wake(readiness);
        }
    }

    /// Takes the events that wait, up to [`MAX_EVENTS`].
    ///
    /// # Errors
    /// If the epoll instance fails.
    pub(super) fn take_events(&self, events: &mut Vec<Event>) -> io::Result<()> {
        events.clear();
        loop {
            match epoll::wait(&*self.0.epoll, spare_capacity(events), Some(&NO_WAIT)) {
                Err(Errno::INTR) => {}
                taken => return Ok(taken.map(drop)?),
            }
        }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn lock_sockets(&self) -> MutexGuard<'_, Sockets> {
        self.0
            .sockets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sockets {
    fn insert(&mut self, registration: Arc<Registration>) -> Token {
        let generation = self.next_generation;
        self.next_generation = generation.wrapping_add(1);
        let index = self.registrations.insert((generation, registration));
        Token {
            index: index.try_into().expect("a process has fewer descriptors"),
            generation,
        }
    }

    /// Returns the socket with this token, unless it is closed.
    fn get(&self, token: Token) -> Option<Arc<Registration>> {
        let (generation, registration) = self.registrations.get(token.index())?;
        (*generation == token.generation).then(|| registration.clone())
    }
}
