//! The path `quic`: a request goes to an instance on a stream of a connection that many calls share, maybe in its first flight.
//!
//! A small body is collected first, so that the call can be made again where it provably has not run; a larger one follows as it comes.
//! What does not get through over UDP takes another path.

mod early_data;

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::quic::{self as wire, CallError, Line, Terms};

use super::attempt_outcome::Attempt;
use super::buffered_request::Taken;
use super::delivery_errors::{broken, not_called, too_late};
use super::instance_body::Source;
use super::retry_copy::{goes_elsewhere, words};
use super::shm::traced;
use super::time_limits::within;
use crate::COMPONENT;
use crate::call::Call;
use crate::context::WorkerContext;
use crate::function::{Endpoint, millis};
use crate::request::Upload;
use crate::transport::{Found, NoLine};

/// How long a handshake may take before the call goes another way: far more than a round trip.
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(1);

/// How long an open line may bring nothing at all after something was sent on it. A worker that has no processor may need some of that.
const LONGEST_SILENCE: Duration = Duration::from_secs(2);

/// What came of one try on one line.
enum Tried {
    Answered(Response<Box<wire::Answer>>),
    /// It was not made, and why.
    Unseen(String),
    /// Nothing came back over UDP, not even of the handshake; whether it can be made again.
    Silence(bool),
    /// It may have run.
    Broken(CallError),
}

/// Sends the call's request and waits for the head of its answer. `None`: nothing gets through over UDP, which is noted; the request is back
/// in the call, for another path.
///
/// # Errors
/// As [`super::attempt::attempt`].
pub(super) async fn attempt(call: &mut Call, endpoint: &Arc<Endpoint>) -> Result<Option<Attempt>, PlatformError> {
    let limit = call.lane.connect_timeout.min(LONGEST_HANDSHAKE);
    let mut taken = Taken::out_of(call, endpoint).await?;
    call.lane.lines.called(&call.function, call.lane.now());
    loop {
        let Found { line, fresh } = match call.lane.lines.line(endpoint, call.lane.now(), limit).await {
            Ok(found) => found,
            Err(NoLine::Blocked) => {
                call.lane.totals.quic.silence();
                return Ok(put_back(call, taken, None));
            }
            Err(NoLine::Failed(why)) => return Ok(put_back(call, taken, Some(why))),
        };
        let sending = send(call, endpoint, &line, &mut taken);
        match within(&call.clock, call.admitted, call.flow.as_ref(), sending).await {
            Ok(Tried::Answered(response)) => return answered(call, endpoint, response, taken).await.map(Some),
            Ok(Tried::Unseen(why)) => {
                call.lane.lines.retire(endpoint, &line);
                if fresh {
                    return Ok(put_back(call, taken, Some(why)));
                } // else it had ended meanwhile: a new one
            }
            Ok(Tried::Silence(again)) => {
                silent(call, endpoint, &line);
                return if again { Ok(put_back(call, taken, None)) } else { Err(lost(call, endpoint, UNKNOWN)) };
            }
            Ok(Tried::Broken(CallError::Head(fault))) => return Err(too_large(&fault)),
            Ok(Tried::Broken(CallError::Unseen(why))) => return Err(not_called(call, endpoint, &why)),
            Ok(Tried::Broken(error)) => {
                if line.is_silent() {
                    silent(call, endpoint, &line);
                }
                return Err(lost(call, endpoint, &format!("{error}; it may have run")));
            }
            Err(reason) => return Err(too_late(call, endpoint, reason)),
        }
    }
}

/// Opens lines ahead of calls, after a snapshot has brought new instances.
pub(crate) fn open_ahead(lane: &Rc<WorkerContext>) {
    for endpoint in lane.lines.ahead(lane.now()) {
        let lane = lane.clone();
        tokio::task::spawn_local(async move {
            let limit = lane.connect_timeout.min(LONGEST_HANDSHAKE);
            if let Ok(Found { fresh: true, .. }) = lane.lines.line(&endpoint, lane.now(), limit).await {
                lane.totals.quic.opened_ahead();
            }
        });
    }
}

/// What a caller is told whose call went early and brought nothing back.
const UNKNOWN: &str = "no answer over UDP; it may have run";

/// The request is the call's again. `why` it was not sent; nothing: another path may do.
fn put_back(call: &mut Call, taken: Taken, why: Option<String>) -> Option<Attempt> {
    taken.put_back(call);
    why.map(Attempt::Unsent)
}

async fn send(call: &Call, endpoint: &Endpoint, line: &Line, taken: &mut Taken) -> Tried {
    let left = call.clock.deadline().saturating_duration_since(Instant::now());
    let terms = Terms { patience: Some(left), trace: traced(&taken.head) };
    if !taken.is_whole {
        return send_parts(line, taken, terms).await;
    }
    let (setting, method) = (call.route.policy.zero_rtt, &taken.head.method);
    let early = early_data::early(setting, method, call.lane.totals.quic.is_proven());
    let calling = pin!(line.call_whole_of(&taken.head, taken.first.clone(), early, terms));
    match answer_or_silence(line, calling).await {
        Ok(Err(CallError::Silent(_))) => Tried::Silence(early_data::repeatable(early, method)),
        Ok(Err(CallError::Unseen(_))) if line.is_silent() => Tried::Silence(true),
        Ok(Err(CallError::Broken(_))) if line.is_silent() && method.is_idempotent() => Tried::Silence(true),
        Ok(answer) => Tried::of(answer),
        Err(_) if method.is_idempotent() => Tried::Silence(true),
        Err(calling) => {
            endpoint.reach.failed(millis(Instant::now())); // others take another path; of this one nobody knows whether it ran
            Tried::of(calling.await)
        }
    }
}

type Called = Result<Response<wire::Answer>, CallError>;

impl Tried {
    fn of(called: Called) -> Self {
        match called {
            Ok(response) => Self::Answered(response.map(Box::new)),
            Err(CallError::Unseen(why)) => Self::Unseen(why),
            Err(error) => Self::Broken(error),
        }
    }
}

/// What was answered; or the call, which goes on, when for a while not even that what was sent has arrived.
async fn answer_or_silence<F: Future<Output = Called> + Unpin>(line: &Line, mut calling: F) -> Result<Called, F> {
    let before = line.received();
    tokio::select! {
        biased;
        answer = &mut calling => return Ok(answer),
        () = tokio::time::sleep(LONGEST_SILENCE) => {}
    }
    if line.received() == before { Err(calling) } else { Ok(calling.await) }
}

/// A body that is still coming waits for the handshake: it could not be sent again.
async fn send_parts(line: &Line, taken: &mut Taken, terms: Terms) -> Tried {
    match line.settled().await {
        Err(_) if line.is_silent() => return Tried::Silence(true),
        Err(error) => return Tried::Unseen(error.to_string()),
        Ok(_) => {}
    }
    let (first, rest) = (std::mem::take(&mut taken.first), std::mem::replace(&mut taken.rest, Upload::Empty));
    match line.call_of(&taken.head, rest.with_first(first), terms).await {
        Ok(response) => Tried::Answered(response.map(Box::new)),
        Err((CallError::Unseen(why), Some(body))) => {
            taken.rest = body;
            Tried::Unseen(why)
        }
        Err((error, _)) => Tried::Broken(error),
    }
}

/// What the instance said: an answer; or that it has not run the call, which is then the call's again if it is there as a whole.
async fn answered(
    call: &mut Call,
    endpoint: &Endpoint,
    response: Response<Box<wire::Answer>>,
    taken: Taken,
) -> Result<Attempt, PlatformError> {
    if call.flow.as_ref().is_some_and(|flow| flow.fault().is_some()) {
        return Err(broken(call, endpoint, None)); // what was answered is not the answer to the whole request
    }
    endpoint.reach.answered();
    call.lane.totals.quic.answered(response.body().was_early());
    let refused = response.body().answered().refusal().filter(|reason| reason.did_not_run() && goes_elsewhere(*reason));
    match refused.filter(|_| taken.is_whole) {
        None => Ok(Attempt::Answered(response.map(Source::Quic), None)),
        Some(reason) => {
            let why = words(reason, response.into_body()).await;
            taken.put_back(call);
            Ok(Attempt::Refused(why))
        }
    }
}

/// Others on the same line get the same answer at once.
fn silent(call: &Call, endpoint: &Endpoint, line: &Line) {
    call.lane.totals.quic.silence();
    endpoint.reach.failed(millis(Instant::now()));
    line.close();
}

fn lost(call: &Call, endpoint: &Endpoint, why: &str) -> PlatformError {
    if call.flow.as_ref().is_some_and(|flow| flow.fault().is_some()) {
        return broken(call, endpoint, None);
    }
    let message = format!("instance {} of {} broke off before it had answered: {why}", endpoint.id, call.function.name);
    PlatformError::new(COMPONENT, Reason::InstanceDied, message)
}

fn too_large(fault: &dyn std::fmt::Display) -> PlatformError {
    PlatformError::new(COMPONENT, Reason::HeadersTooLarge, format!("the request's header fields: {fault}"))
}
