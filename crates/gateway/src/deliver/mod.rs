//! Brings a request to an instance and the answer back.
//!
//! [`send`] picks an instance and sends; while provably nothing was sent it tries another one, or waits for one. After the
//! first byte a request is never repeated. [`reply`] hands the answer to the caller as it comes, and holds the request's
//! place until its end.

mod attempt;
mod content;
mod exchange;
mod headers;
mod memory;
mod open;
mod outgoing;
mod passing;
mod pick;
pub(crate) mod plain;
mod pool;
mod quic;
mod source;
mod spare;
mod taken;
mod tunnel;
mod way;

use std::time::{Duration, Instant};

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use nearpath_types::{PlatformError, Reason, policy};
use nearpath_wire::Body;

pub(crate) use content::Content;
pub(crate) use memory::{Domains, join_all};
pub(crate) use open::Answers;
pub use outgoing::functions_uri;
pub(crate) use pool::Pools;
pub(crate) use quic::{Lines, open_ahead};

use crate::COMPONENT;
use crate::admit::{self, Permit};
use crate::call::{self, Call};
use attempt::{Attempt, attempt};
use open::Held;
use passing::Passing;
use pick::Place;
use source::Source;

/// The head of an answer, and what its request holds.
pub(crate) struct Answer {
    response: Response<Source>,
    held: Held,
    caller: Option<OnUpgrade>,
}

/// Sends the request to an instance and waits for the head of its answer.
///
/// # Errors
/// Why there is none; see the reasons 12 to 16 of `contract/reasons.toml`.
pub(crate) async fn send(call: &mut Call, permit: Permit) -> Result<Answer, PlatformError> {
    let upgrade = call.request.as_mut().filter(|_| call.asked.upgrade);
    let caller = upgrade.map(hyper::upgrade::on);
    outgoing::prepare(call)?;
    let answer = send_after(call, permit, Failures::default()).await?;
    Ok(Answer { caller, ..answer })
}

/// Goes on with a request that one instance would not run, as [`send`] does after the first.
async fn send_elsewhere(call: &mut Call, refused: Place, why: String) -> Result<Answer, PlatformError> {
    outgoing::prepare(call)?;
    let mut failures = Failures::default();
    let permit = failures.next(call, refused, why).await?;
    send_after(call, permit, failures).await
}

async fn send_after(call: &mut Call, mut permit: Permit, mut failures: Failures) -> Result<Answer, PlatformError> {
    loop {
        let place = find_place(call, permit, &failures).await?;
        call.record.instance = Some(place.endpoint.id);
        match attempt(call, &place.endpoint).await? {
            Attempt::Answered(response, line) => {
                return Ok(Answer { response, held: Held { place, line }, caller: None });
            }
            Attempt::Unsent(error) | Attempt::Refused(error) => {
                permit = Box::pin(failures.next(call, place, error)).await?
            }
        }
    }
}

/// A place at an instance that has not failed. Goes back to the gate when a snapshot took the last one away; looks again
/// after a moment when those that are left have no room.
async fn find_place(call: &mut Call, mut permit: Permit, failures: &Failures) -> Result<Place, PlatformError> {
    const MOMENT: Duration = Duration::from_millis(5);
    loop {
        permit = match pick::pick(&call.route, permit, &failures.tried, call.lane.random()) {
            Ok(place) => return Ok(place),
            Err(permit) => Box::pin(admit::enter_again(call, Some(permit))).await?,
        };
        if Instant::now() >= call.clock.deadline() {
            return Err(unreachable(call, "the others have no room"));
        }
        if !failures.tried.is_empty() {
            tokio::time::sleep(MOMENT).await; // the gate counts on the one that failed: it would let us in again at once
        }
        tokio::task::yield_now().await;
    }
}

/// Instances that could not be reached with this request.
#[derive(Default)]
struct Failures {
    tried: Vec<u64>,
    rounds: u32,
    first: Option<Instant>,
}

impl Failures {
    /// After `place` could not be reached: a permit to try another one. When all have been tried it waits for a snapshot
    /// that brings a new one, or a moment, for as long as a sleeping function may take to start.
    async fn next(&mut self, call: &mut Call, place: Place, error: String) -> Result<Permit, PlatformError> {
        let first = *self.first.get_or_insert_with(Instant::now);
        self.tried.push(place.endpoint.serial);
        let limit = (first + call.route.policy.cold_timeout).min(call.clock.deadline());
        let mut changes = call.lane.table.changes();
        let permit = match place.leave() {
            Some(permit) => permit,
            None => admit::enter_again(call, None).await?,
        };
        call.route = call.function.route();
        if pick::all_tried(&call.function, &self.tried) || self.tried.len() >= call.lane.attempts {
            let pause = Duration::from_millis(20 << self.rounds.min(5));
            if Instant::now() + pause >= limit {
                return Err(unreachable(call, &error));
            }
            let _ = tokio::time::timeout(pause, changes.changed()).await; // either way it is time to look again
            self.rounds += 1;
            self.tried.clear();
            call.route = call.function.route();
            call.admitted = Instant::now();
        }
        Ok(permit)
    }
}

fn unreachable(call: &Call, error: &str) -> PlatformError {
    let message = format!("no instance of {} could be reached: {error}", call.function.name);
    PlatformError::new(COMPONENT, Reason::ConnectFailed, message).governed_by(policy::COLD_TIMEOUT)
}

/// The answer as the caller gets it.
pub(crate) fn reply(mut call: Box<Call>, answer: Answer) -> Response<Content> {
    let Answer { mut response, held, caller } = answer;
    let status = response.status();
    let upgraded = status == StatusCode::SWITCHING_PROTOCOLS;
    let now = Instant::now();
    headers::to_caller(response.headers_mut(), &call, upgraded, now);
    call.record.answered(status.as_u16());
    if upgraded {
        return upgrade(call, response, held, caller);
    }
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    if call.asked.grpc || kind.is_some_and(call::is_stream) {
        call.clock.endless();
    }
    let bodiless = call.asked.head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    response.map(|body| Content::Function(Passing::new(body, held, call, now, bodiless)))
}

fn upgrade(
    call: Box<Call>,
    mut response: Response<Source>,
    held: Held,
    caller: Option<OnUpgrade>,
) -> Response<Content> {
    let instance = hyper::upgrade::on(&mut response);
    if let Some(caller) = caller {
        let lane = call.lane.clone();
        lane.spawn(tunnel::run(caller, instance, held, call));
    }
    response.map(|_| Content::Own(Body::empty()))
}
