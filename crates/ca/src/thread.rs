//! Thread of the issuer: serves queued requests first, then does one renewal step at a time.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nearpath_types::direct::ForeignAuthority;
use nearpath_types::{FunctionId, InstanceId};
use nearpath_wire::zero_rtt::SessionEntry;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::issuer::{Issuer, TimePoint, WorkerSetup};
use crate::types::InstanceIdentity;

/// Niceness of the thread: beside a busy thread of the gateway on the same processor, it gets about
/// a tenth of the time.
// sched(7): each step of niceness changes a thread's weight by a factor of 1.25.
const NICENESS: i32 = 10;
/// Longest wait for a request while no renewal is due: after it the thread checks whether the
/// wall clock jumped.
const MAX_SLEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Request to the issuer's thread. Instances have the names of their incarnations.
pub(crate) enum IssuerCommand {
    /// An instance starts.
    Issue(IssueRequest),
    /// The instance with this name has ended.
    Revoke(String),
    /// The permitted callers of these functions have changed.
    UpdateCallers(BTreeMap<FunctionId, Vec<FunctionId>>),
    /// The instance with this name trusts these authorities of other nodes.
    UpdateForeign(String, Vec<ForeignAuthority>),
    /// Another instance begins a handshake with `callee`, which needs its configuration.
    SetUpWorker {
        callee: String,
        reply: Sender<Option<WorkerSetup>>,
    },
    /// The handshake is complete: its session entries go to `callee`.
    DeliverEntries {
        callee: String,
        entries: Vec<SessionEntry>,
        done: Sender<()>,
    },
}

/// Request for the identity of a starting instance.
pub(crate) struct IssueRequest {
    pub(crate) function: FunctionId,
    pub(crate) instance: InstanceId,
    pub(crate) reply: oneshot::Sender<Result<InstanceIdentity, String>>,
    /// Released once the request is served.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Starts the thread. It ends when the last sender of jobs is dropped.
pub(crate) fn start(mut issuer: Issuer) -> io::Result<Sender<IssuerCommand>> {
    let (jobs, receiver) = channel();
    std::thread::Builder::new()
        .name("issuer".to_owned())
        .spawn(move || {
            // An error is harmless: with ordinary priority the thread takes more time from calls.
            let _ = rustix::process::nice(NICENESS);
            while run_once(&mut issuer, &receiver) {}
        })?;
    Ok(jobs)
}

/// Waits for requests or the next renewal, then serves the requests that are queued or does one
/// renewal step. Returns false when all senders are dropped.
pub(crate) fn run_once(issuer: &mut Issuer, jobs: &Receiver<IssuerCommand>) -> bool {
    let begin = Instant::now();
    let wait = issuer.next_due(begin).map_or(MAX_SLEEP_INTERVAL, |at| {
        at.saturating_duration_since(begin).min(MAX_SLEEP_INTERVAL)
    });
    let received = jobs.recv_timeout(wait);
    issuer.follow_clock(TimePoint::now());
    match received {
        Ok(job) => serve_queued(issuer, job, jobs),
        // Only without queued jobs: a starting instance never waits for a renewal.
        Err(RecvTimeoutError::Timeout) => issuer.renew_next(TimePoint::now()),
        Err(RecvTimeoutError::Disconnected) => return false,
    }
    true
}

fn serve_queued(issuer: &mut Issuer, first: IssuerCommand, jobs: &Receiver<IssuerCommand>) {
    // Revocations are applied together: each call of `revoke` rebuilds the set of revoked names.
    let mut revoked = Vec::new();
    for job in std::iter::once(first).chain(jobs.try_iter()) {
        match job {
            IssuerCommand::Revoke(name) => revoked.push(name),
            // In order of arrival, each with its reply: an instance never waits for a later one.
            IssuerCommand::Issue(request) => revoked.extend(serve_issue(issuer, request)),
            IssuerCommand::UpdateCallers(changed) => {
                issuer.update_callers(changed, TimePoint::now())
            }
            IssuerCommand::UpdateForeign(name, foreign) => {
                issuer.update_foreign(&name, foreign, TimePoint::now());
            }
            IssuerCommand::SetUpWorker { callee, reply } => {
                let setup = issuer.worker_setup(&callee, TimePoint::now());
                let _ = reply.send(setup); // the requester may have ended meanwhile
            }
            IssuerCommand::DeliverEntries {
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

/// Issues an identity unless the instance has ended. Returns the name to revoke if it ended during
/// the work.
fn serve_issue(issuer: &mut Issuer, request: IssueRequest) -> Option<String> {
    let IssueRequest {
        function,
        instance,
        reply,
        permit,
    } = request;
    // The instance ended while its request was queued: it needs no certificate.
    if reply.is_closed() {
        return None;
    }
    let issued = issuer
        .issue(function, instance, TimePoint::now())
        .map_err(|error| error.to_string());
    let undelivered = reply.send(issued).err();
    // Only now, because permits bound the requests that are queued or being served.
    drop(permit);
    undelivered?.ok().map(|identity| identity.name.to_string())
}
