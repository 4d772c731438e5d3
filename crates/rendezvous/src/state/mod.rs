//! The rendezvous' desk: who is here, who waits for whom, which sessions there are. No socket, no clock, no task: lines have
//! numbers, time is an argument, and what is to be said comes out as a list.
//!
//! A worker is a name in a job, whether it has a line or not: a session outlives a line that breaks, and what is told
//! meanwhile is kept, up to a bound. Nobody hears of another job. Everything that somebody can make grow has a limit, and
//! goes when nobody needs it: an empty desk is empty.

mod calls;
mod connections;
mod sessions;
mod types;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nearpath_types::SpiffeId;

use nearpath_p2p::message::{Bye, Report, Said, SessionText, Told};
use nearpath_p2p::ticket::{Job, Key};

use types::{Meeting, Name, Office, Timer, Waiting, Worker};

/// A line's number; never used twice.
pub type LineNo = u64;

/// When something happens, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// For deadlines.
    pub at: Instant,
    /// Seconds since 1970, for what others read.
    pub unix: u64,
}

impl Moment {
    /// How long until then (seconds since 1970).
    fn left(&self, until: u64) -> Duration {
        Duration::from_secs(until.saturating_sub(self.unix)).min(FAR)
    }
}

/// Nothing here lasts a hundred years; an [`Instant`] has an end, too.
const FAR: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// What somebody may make the desk hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Lines in all.
    pub lines: usize,
    /// Lines of one job.
    pub lines_of_a_job: usize,
    /// Sessions of one worker that have neither been hung up nor ended.
    pub sessions: usize,
    /// Calls of one worker that wait for their peer.
    pub waiting: usize,
    /// Calls that wait for one peer: jobs whose workers all call one that never comes.
    pub awaiting: usize,
    /// Words of a session that are kept for a side that has no line.
    pub kept: usize,
    /// The longest wait for a peer.
    pub wait: Duration,
    /// A session's life, if no ticket ends sooner.
    pub life: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lines: 50_000,
            lines_of_a_job: 20_000,
            sessions: 1024,
            waiting: 1024,
            awaiting: 20_000,
            kept: 16,
            wait: Duration::from_secs(300),
            life: Duration::from_secs(600),
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Tell a line this.
    Tell(LineNo, Told),
    /// Pass a [`nearpath_p2p::message::Parcel`] on to a line, or drop it.
    Carry(LineNo, Bytes),
    /// Tell a line that it ends, and end it. It leaves no more.
    Close(LineNo, Bye),
}

/// Where ids and secrets come from.
pub trait Chance {
    /// Fills it with what nobody can guess.
    fn fill(&mut self, bytes: &mut [u8]);
}

/// What the desk has counted since it was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Lines that came.
    pub arrived: u64,
    /// Of these, those of a worker that had one already.
    pub displaced: u64,
    /// Calls.
    pub called: u64,
    /// Sessions.
    pub granted: u64,
    /// Calls refused: the peer did not come.
    pub absent: u64,
    /// Calls refused for another reason.
    pub refused: u64,
    /// Words passed on.
    pub words: u64,
    /// Parcels for somebody who has a line.
    pub parcels: u64,
    /// Reports passed on.
    pub reports: u64,
    /// Reports for nobody who is here.
    pub undelivered: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Desk<C> {
    key: Key,
    limits: Limits,
    chance: C,
    workers: HashMap<Arc<Name>, Worker>,
    offices: HashMap<Job, Office>,
    lines: HashMap<LineNo, Arc<Name>>,
    waiting: HashMap<u64, Waiting>,
    sessions: HashMap<[u8; 16], Meeting>,
    timers: BTreeSet<(Instant, Timer)>,
    /// The last waiting call's number.
    last: u64,
    counts: Counts,
    actions: Vec<Action>,
}

impl<C: Chance> Desk<C> {
    /// An empty one.
    pub fn new(key: Key, limits: Limits, chance: C) -> Self {
        Self {
            key,
            limits,
            chance,
            workers: HashMap::new(),
            offices: HashMap::new(),
            lines: HashMap::new(),
            waiting: HashMap::new(),
            sessions: HashMap::new(),
            timers: BTreeSet::new(),
            last: 0,
            counts: Counts::default(),
            actions: Vec::new(),
        }
    }

    /// A worker says something. A line that is not here says nothing.
    pub fn say(&mut self, line: LineNo, said: Said, now: Moment) -> Vec<Action> {
        if let Some(name) = self.lines.get(&line).cloned() {
            match said {
                Said::Call { call, peer, about, within, hello } => {
                    let peer = Arc::new(Name { job: name.job.clone(), id: peer });
                    let waiting = Waiting { call, caller: name.clone(), peer, about, hello, within, until: None };
                    self.call(line, &name, waiting, now);
                }
                Said::Tell { session, word } => self.tell(line, &name, session, word),
                Said::HangUp { session } => self.hang_up(&name, session),
                Said::Report { to, report } => self.report(line, &name, to, report),
            }
        }
        self.take()
    }

    /// A worker sends a [`nearpath_p2p::message::Parcel`] of this session.
    pub fn carry(&mut self, line: LineNo, session: SessionText, frame: Bytes) -> Vec<Action> {
        if let Some(name) = self.lines.get(&line).cloned() {
            self.pass_parcel(line, &name, session, frame);
        }
        self.take()
    }

    /// What time alone brings about.
    pub fn tick(&mut self, now: Moment) -> Vec<Action> {
        while let Some((_, timer)) = self.timers.first().filter(|(at, _)| *at <= now.at).copied() {
            self.timers.pop_first();
            match timer {
                Timer::Line(line) => self.expire_line(line),
                Timer::Wait(number) => self.give_up_waiting(number),
                Timer::Session(id) => self.expire_session(id),
            }
        }
        self.take()
    }

    /// When [`Self::tick`] has something to do.
    pub fn next(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How many lines, sessions and waiting calls there are.
    pub fn size(&self) -> (usize, usize, usize) {
        (self.lines.len(), self.sessions.len(), self.waiting.len())
    }

    /// Passes a report on within the job. Reports are not kept: who reports to somebody who is away is told so.
    fn report(&mut self, line: LineNo, name: &Name, to: Option<SpiffeId>, report: Report) {
        let there = match &to {
            Some(id) => self.line_of(&Name { job: name.job.clone(), id: id.clone() }),
            None => self.offices.get(&name.job).and_then(|office| office.leader),
        };
        let count = if there.is_some() { &mut self.counts.reports } else { &mut self.counts.undelivered };
        *count += 1;
        self.actions.push(match there {
            Some(there) => Action::Tell(there, Told::Report { from: name.id.clone(), report }),
            None => Action::Tell(line, Told::Undelivered { to }),
        });
    }

    fn line_of(&self, name: &Name) -> Option<LineNo> {
        Some(self.workers.get(name)?.line?.line)
    }

    /// Says it to a worker, if it has a line.
    fn tell_worker(&mut self, name: &Name, told: Told) {
        let line = self.line_of(name);
        self.actions.extend(line.map(|line| Action::Tell(line, told)));
    }

    fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
