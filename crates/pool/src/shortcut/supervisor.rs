//! The rim: facts from the kernel, one call at a time, and the answer.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use nearpath_kernel::foreign::{self, Foreign};
use nearpath_kernel::seccomp::handover::Handed;
use nearpath_kernel::seccomp::listener::{Call, Listener, Waiting};
use nearpath_kernel::sockets::{self, Change, Options, State};
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, ipproto, sockopt};

use super::decide::{self, Doubt, Family, Nature};
use super::given::Given;
use super::neighbours::{Search, judge};
use super::{Stock, Warm, watch};
use crate::destination::{Caller, Destination};

/// The longest address that is asked about.
const ADDRESS: usize = 28;
/// Calls answered before the thread's other work gets its turn.
const AT_ONCE: usize = 16;

/// Answers the connects of one instance until all that ran in it have ended. On a thread with a local set of tasks.
///
/// Whoever drops this before has the instance's connects fail with `ENOSYS`.
///
/// # Errors
/// When the listener cannot be read.
pub async fn supervise(handed: Handed, caller: Rc<Caller>, stock: Rc<dyn Stock>, given: Rc<Given>) -> io::Result<()> {
    let Handed { listener, fresh_v4, fresh_v6 } = handed;
    Desk { fresh_v4, fresh_v6, caller, stock, given, looks_around: true, threads: Threads::default() }
        .serve(listener)
        .await
}

/// As [`supervise`], without a look at the caller's other descriptors.
#[doc(hidden)] // a test's control: with this, programs that register, or duplicate, before they connect go wrong
pub async fn supervise_blindly(
    handed: Handed,
    caller: Rc<Caller>,
    stock: Rc<dyn Stock>,
    given: Rc<Given>,
) -> io::Result<()> {
    let Handed { listener, fresh_v4, fresh_v6 } = handed;
    Desk { fresh_v4, fresh_v6, caller, stock, given, looks_around: false, threads: Threads::default() }
        .serve(listener)
        .await
}

/// What one instance's calls are judged by.
struct Desk {
    fresh_v4: Options,
    fresh_v6: Option<Options>,
    caller: Rc<Caller>,
    stock: Rc<dyn Stock>,
    given: Rc<Given>,
    looks_around: bool,
    threads: Threads,
}

impl Desk {
    async fn serve(self, listener: Listener) -> io::Result<()> {
        let listener = watch(listener)?;
        loop {
            let mut ready = listener.readable().await?;
            match self.answer_some(listener.get_ref())? {
                Waiting::Call(_) => tokio::task::yield_now().await,
                Waiting::Nothing => ready.clear_ready(),
                Waiting::Over => return Ok(()),
            }
        }
    }

    /// Answers what waits, and says what is left.
    fn answer_some(&self, listener: &Listener) -> io::Result<Waiting> {
        let mut waiting = listener.next()?;
        for _ in 1..AT_ONCE {
            let Waiting::Call(call) = waiting else { return Ok(waiting) };
            self.answer(listener, &call);
            waiting = listener.next()?;
        }
        if let Waiting::Call(call) = waiting {
            self.answer(listener, &call);
        }
        Ok(waiting)
    }

    fn answer(&self, listener: &Listener, call: &Call) {
        let Some((to, family)) = self.wanted(call) else { return listener.pass(call) };
        let ledger = self.stock.ledger(&to);
        match self.give(listener, call, &to, family) {
            Ok(()) => ledger.gave(),
            Err(doubt) => {
                listener.pass(call);
                ledger.passed(doubt.reason());
            }
        }
    }

    fn wanted(&self, call: &Call) -> Option<(Rc<Destination>, Family)> {
        let mut address = [0; ADDRESS];
        let address = address.get_mut(..call.length)?;
        foreign::read(call.thread, call.address, address).ok()?;
        decide::wanted(address, &self.caller.destinations)
    }

    /// All that is learnt of the caller lies between two moments in which it waits for the answer, so it is of this caller and no other.
    fn give(&self, listener: &Listener, call: &Call, to: &Rc<Destination>, family: Family) -> Result<(), Doubt> {
        if !self.stock.has(to, family) {
            return Err(Doubt::Empty);
        }
        let look = self.look(call, family)?;
        if !listener.waits(call) {
            return Err(Doubt::Hidden);
        }
        let warm = self.stock.take(to, family).ok_or(Doubt::Empty)?;
        hand(listener, call, &warm, &look).map_err(|_| Doubt::Hidden)?;
        self.given.note(warm);
        Ok(())
    }

    fn look(&self, call: &Call, family: Family) -> Result<Look, Doubt> {
        let hidden = |_| Doubt::Hidden;
        let (thread, own) = self.threads.descriptor(call).map_err(hidden)?;
        let (nature, blocking) = nature(&own).map_err(|_| Doubt::Kind)?; // what has no such facts is no TCP socket
        nature.replaceable(family)?;
        if self.looks_around {
            alone(&thread, call.descriptor, !blocking)?;
        }
        let changes = self.fresh(family)?.changes(&own).map_err(Doubt::Option)?;
        Ok(Look { changes, blocking, close_at_exec: thread.closes_at_exec(call.descriptor).map_err(hidden)? })
    }

    fn fresh(&self, family: Family) -> Result<&Options, Doubt> {
        match family {
            Family::V4 => Ok(&self.fresh_v4),
            Family::V6 => self.fresh_v6.as_ref().ok_or(Doubt::Kind),
        }
    }
}

fn hand(listener: &Listener, call: &Call, warm: &Warm, look: &Look) -> io::Result<()> {
    warm.dress(&look.changes, look.blocking)?;
    listener.replace(call, warm.as_fd(), look.close_at_exec)
}

/// Threads that called before: a function that lives on calls by the same ones, and taking hold costs more than all else.
#[derive(Default)]
struct Threads(RefCell<Vec<Rc<Foreign>>>);

/// Most that are remembered.
const THREADS: usize = 32;

impl Threads {
    /// The caller's thread, and its socket. One that is remembered by a number that was given again has ended, and says so.
    fn descriptor(&self, call: &Call) -> io::Result<(Rc<Foreign>, OwnedFd)> {
        let known = self.0.borrow().iter().find(|known| known.number() == call.thread).cloned();
        if let Some(known) = known {
            match known.descriptor(call.descriptor) {
                Err(error) if error.raw_os_error() == Some(ENDED) => {}
                own => return Ok((known, own?)),
            }
        }
        let thread = Rc::new(Foreign::hold(call.thread)?);
        let own = thread.descriptor(call.descriptor)?;
        self.remember(&thread);
        Ok((thread, own))
    }

    fn remember(&self, thread: &Rc<Foreign>) {
        let mut known = self.0.borrow_mut();
        known.retain(|other| other.number() != thread.number());
        if known.len() == THREADS {
            known.remove(0);
        }
        known.push(Rc::clone(thread));
    }
}

const ENDED: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// What a socket that is to take the caller's place must be like.
struct Look {
    changes: Vec<Change>,
    blocking: bool,
    close_at_exec: bool,
}

/// A program that lets connect() block registers its socket with no epoll before.
fn alone(thread: &Foreign, descriptor: i32, may_be_watched: bool) -> Result<(), Doubt> {
    let hidden = |_| Doubt::Hidden;
    let relation = |other| thread.relation(descriptor, other, may_be_watched).map_err(hidden);
    let mut search = Search::new(descriptor, thread.open_descriptors().map_err(hidden)?)?;
    while let Some(other) = search.ask() {
        search.met(relation(other)?)?;
    }
    if search.is_unfinished() {
        let open = thread.descriptors().map_err(hidden)?;
        search.unmet(open).try_for_each(|other| judge(relation(other)?).map(drop))?;
    }
    Ok(())
}

fn nature(socket: impl AsFd) -> io::Result<(Nature, bool)> {
    let family = match sockopt::socket_domain(&socket)? {
        AddressFamily::INET => Some(Family::V4),
        AddressFamily::INET6 => Some(Family::V6),
        _ => None,
    };
    let tcp = sockopt::socket_protocol(&socket)? == Some(ipproto::TCP);
    let local = std::net::SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    let flags = rustix::fs::fcntl_getfl(&socket)?;
    let nature = Nature {
        family: family.filter(|_| tcp),
        closed: sockets::state(&socket)? == State::Closed,
        bound: local.port() != 0 || !local.ip().is_unspecified(),
        odd_flags: !(flags - OFlags::NONBLOCK - OFlags::RDWR).is_empty(),
    };
    Ok((nature, !flags.contains(OFlags::NONBLOCK)))
}
