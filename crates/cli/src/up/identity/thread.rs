//! The issuer's thread. What instances wait for comes first, then renewals, one at a time.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use nearpath_node::Identity;
use nearpath_types::{FunctionId, InstanceId};
use nearpath_wire::early::Entry;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::office::{Config, Moment, Office};

/// Added to the thread's niceness: beside a thread that serves requests it gets about a tenth of a processor.
const NICE: i32 = 10;
/// It looks at the time at least this often.
const LOOK: Duration = Duration::from_secs(60);

/// What the thread is asked for.
pub(super) enum Job {
    /// An instance starts.
    Issue(Asked),
    /// The instance of this name has ended.
    Gone(String),
    /// Who may call whom.
    Edges(BTreeMap<FunctionId, Vec<FunctionId>>),
    /// Another instance is making a session with this one.
    Worker { callee: String, answer: Sender<Option<Config>> },
    /// What came of it.
    Enter { callee: String, entries: Vec<Entry>, done: Sender<()> },
}

/// Who asks, and where the answer goes.
pub(super) struct Asked {
    pub(super) function: FunctionId,
    pub(super) instance: InstanceId,
    pub(super) answer: oneshot::Sender<Result<Identity, String>>,
    /// Free for the next when this is done with.
    pub(super) place: OwnedSemaphorePermit,
}

/// Starts it. It ends when nobody can ask any more.
pub(super) fn start(mut office: Office) -> io::Result<Sender<Job>> {
    let (jobs, asked) = channel();
    std::thread::Builder::new().name("issuer".to_owned()).spawn(move || {
        let _ = rustix::process::nice(NICE); // with the usual priority it works, too
        while turn(&mut office, &asked) {}
    })?;
    Ok(jobs)
}

/// One piece of work, or a wait for it. False: it is over.
pub(super) fn turn(office: &mut Office, asked: &Receiver<Job>) -> bool {
    let begin = Instant::now();
    let wait = office.next(begin).map_or(LOOK, |at| at.saturating_duration_since(begin).min(LOOK));
    match asked.recv_timeout(wait) {
        Ok(job) => work(office, job, asked),
        Err(RecvTimeoutError::Timeout) => office.renew(now()),
        Err(RecvTimeoutError::Disconnected) => return false,
    }
    true
}

/// Those who have ended are told of together: who is taken back is a set that is made anew.
fn work(office: &mut Office, first: Job, asked: &Receiver<Job>) {
    let mut gone = Vec::new();
    for job in std::iter::once(first).chain(asked.try_iter()) {
        match job {
            Job::Gone(name) => gone.push(name),
            Job::Issue(asked) => gone.extend(issue(office, asked)),
            Job::Edges(callers) => office.permit(callers, now()),
            Job::Worker { callee, answer } => drop(answer.send(office.worker(&callee))), // it may have ended meanwhile
            Job::Enter { callee, entries, done } => {
                office.enter(&callee, entries, now());
                let _ = done.send(()); // as above
            }
        }
    }
    if !gone.is_empty() {
        office.gone(gone, now());
    }
}

/// Answers, unless nobody waits for that any more. Gives the name of an instance that ended meanwhile.
fn issue(office: &mut Office, Asked { function, instance, answer, place }: Asked) -> Option<String> {
    if answer.is_closed() {
        return None;
    }
    let unheard = answer.send(office.issue(function, instance, now())).err();
    drop(place);
    unheard?.ok().map(|identity| identity.name.to_string())
}

fn now() -> Moment {
    Moment { at: Instant::now(), wall: SystemTime::now() }
}
