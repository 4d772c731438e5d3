//! The issuer's thread. Requests come first, then renewals, one step at a time.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nearpath_types::{FunctionId, InstanceId};
use nearpath_wire::zero_rtt::SessionEntry;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::issuer::{Issuer, TimePoint, WorkerSetup};
use crate::types::InstanceIdentity;

/// Added niceness: next to a thread that serves requests, this one gets about a tenth of a processor.
const NICENESS: i32 = 10;
/// Longest sleep without a renewal due.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// A request to the thread.
pub(crate) enum IssuerJob {
    /// An instance starts.
    Issue(IssueRequest),
    /// The instance with this name has ended.
    Revoke(String),
    /// The permitted callers of each function have changed.
    SetCallers(BTreeMap<FunctionId, Vec<FunctionId>>),
    /// Another instance begins a session with `callee`.
    SetUpWorker {
        callee: String,
        reply: Sender<Option<WorkerSetup>>,
    },
    /// That session's entries.
    DeliverEntries {
        callee: String,
        entries: Vec<SessionEntry>,
        done: Sender<()>,
    },
}

/// The request of one starting instance.
pub(crate) struct IssueRequest {
    pub(crate) function: FunctionId,
    pub(crate) instance: InstanceId,
    pub(crate) reply: oneshot::Sender<Result<InstanceIdentity, String>>,
    /// Released once the request is served.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Starts the thread. It ends when the last sender of jobs is dropped.
pub(crate) fn start(mut issuer: Issuer) -> io::Result<Sender<IssuerJob>> {
    let (jobs, receiver) = channel();
    std::thread::Builder::new()
        .name("issuer".to_owned())
        .spawn(move || {
            // Failing is harmless: with ordinary priority it only competes more with requests.
            let _ = rustix::process::nice(NICENESS);
            while run_once(&mut issuer, &receiver) {}
        })?;
    Ok(jobs)
}

/// Serves what is queued or does one renewal step, waiting for either. Returns false once all senders are gone.
pub(crate) fn run_once(issuer: &mut Issuer, jobs: &Receiver<IssuerJob>) -> bool {
    let begin = Instant::now();
    let wait = issuer.next_due(begin).map_or(MAX_SLEEP, |at| {
        at.saturating_duration_since(begin).min(MAX_SLEEP)
    });
    match jobs.recv_timeout(wait) {
        Ok(job) => serve_queued(issuer, job, jobs),
        Err(RecvTimeoutError::Timeout) => issuer.renew_next(TimePoint::now()),
        Err(RecvTimeoutError::Disconnected) => return false,
    }
    true
}

fn serve_queued(issuer: &mut Issuer, first: IssuerJob, jobs: &Receiver<IssuerJob>) {
    // Revocations are applied together, because each batch rebuilds the whole set of revoked names.
    let mut revoked = Vec::new();
    for job in std::iter::once(first).chain(jobs.try_iter()) {
        match job {
            IssuerJob::Revoke(name) => revoked.push(name),
            IssuerJob::Issue(request) => revoked.extend(serve_issue(issuer, request)),
            IssuerJob::SetCallers(callers) => issuer.set_callers(callers, TimePoint::now()),
            IssuerJob::SetUpWorker { callee, reply } => {
                let setup = issuer.worker_setup(&callee, TimePoint::now());
                let _ = reply.send(setup); // the caller may have ended meanwhile
            }
            IssuerJob::DeliverEntries {
                callee,
                entries,
                done,
            } => {
                issuer.deliver_entries(&callee, entries, TimePoint::now());
                let _ = done.send(()); // as above
            }
        }
    }
    if !revoked.is_empty() {
        issuer.revoke(revoked, TimePoint::now());
    }
}

/// Issues an identity unless the instance has ended. Returns the name to revoke if it ended during the work.
fn serve_issue(issuer: &mut Issuer, request: IssueRequest) -> Option<String> {
    let IssueRequest {
        function,
        instance,
        reply,
        permit,
    } = request;
    if reply.is_closed() {
        return None;
    }
    let issued = issuer
        .issue(function, instance, TimePoint::now())
        .map_err(|error| error.to_string());
    let undelivered = reply.send(issued).err();
    drop(permit);
    undelivered?.ok().map(|identity| identity.name.to_string())
}
