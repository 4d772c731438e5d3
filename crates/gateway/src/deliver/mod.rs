//! Brings a request to an instance and the answer back.
//!
//! [`Delivery`] picks an instance and sends; while provably nothing was sent it tries another one, or asks to be admitted again. After
//! the first byte a request is never repeated. [`reply`] hands the answer to the caller as it comes, and holds the request's
//! place until its end.

mod attempt;
mod attempt_outcome;
mod buffered_request;
mod content;
mod delivery_errors;
mod endpoint_slot;
mod headers;
mod instance_body;
mod open_response;
mod outgoing_request;
mod path_choice;
mod quic;
mod response_body;
mod retry;
mod retry_copy;
pub(crate) mod shm;
mod shm_body;
mod time_limits;
mod tunnel;

use std::time::Instant;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use nearpath_types::PlatformError;
use nearpath_wire::Body;

pub(crate) use content::Content;
pub(crate) use delivery_errors::{lost_reply, too_late};
pub(crate) use endpoint_slot::{Place, pick};
pub(crate) use open_response::Held;
pub use outgoing_request::functions_uri;
pub(crate) use quic::open_ahead;

use crate::call::Call;
use crate::function::Permit;
use crate::request;
use attempt::attempt;
use attempt_outcome::Attempt;
use instance_body::Source;
use response_body::Passing;
use retry::Retries;

/// The head of an answer, and what its request holds.
pub(crate) struct Answer {
    response: Response<Source>,
    held: Held,
    /// The caller's side of an upgrade.
    caller: Option<OnUpgrade>,
}

impl Answer {
    /// An answer that came through memory.
    pub(crate) fn from_memory(reply: nearpath_domain::CallReply, place: Place) -> Self {
        Self { response: shm::response(reply), held: Held { place, line: None }, caller: None }
    }
}

/// The reason for which a request has no answer from a round over the instances.
pub(crate) enum Undelivered {
    /// It may have run, or its time is over.
    Failed(PlatformError),
    /// No instance is left to try: it has to be admitted again, with its permit if that is still valid.
    Readmit(Option<Permit>),
}

impl From<PlatformError> for Undelivered {
    fn from(error: PlatformError) -> Self {
        Self::Failed(error)
    }
}

/// One request on its way to the instances.
pub(crate) struct Delivery {
    retries: Retries,
    caller: Option<OnUpgrade>,
}

impl Delivery {
    /// Prepares the request for sending.
    ///
    /// # Errors
    /// `body_too_large` when the request says so itself.
    pub(crate) fn begin(call: &mut Call) -> Result<Self, PlatformError> {
        let upgrade = call.request.as_mut().filter(|_| call.asked.upgrade);
        let caller = upgrade.map(hyper::upgrade::on);
        outgoing_request::prepare(call)?;
        Ok(Self { retries: Retries::default(), caller })
    }

    /// The same for a request that one instance has refused already. Returns the permit, unless the refusal voided it.
    ///
    /// # Errors
    /// As [`Delivery::begin`].
    pub(crate) fn after_refusal(
        call: &mut Call,
        refused: Place,
        why: String,
    ) -> Result<(Self, Option<Permit>), PlatformError> {
        outgoing_request::prepare(call)?;
        let mut retries = Retries::default();
        let permit = retries.note_failure(call, refused, why);
        Ok((Self { retries, caller: None }, permit))
    }

    /// Sends the request to one instance after the other until one answers; to be called again after an [`Undelivered::Readmit`].
    ///
    /// # Errors
    /// Why there is no answer; see the reasons 12 to 16 of `contract/reasons.toml`.
    pub(crate) async fn send(&mut self, call: &mut Call, mut permit: Permit) -> Result<Answer, Undelivered> {
        loop {
            if self.retries.is_waiting() {
                // On the heap: few requests wait, and every request's future would be as large otherwise.
                Box::pin(self.retries.wait(call)).await?;
            }
            let place = match self.retries.pick(call, permit) {
                Ok(place) => place,
                Err(permit) => return Err(Undelivered::Readmit(Some(permit))),
            };
            call.record.instance = Some(place.endpoint.id);
            let why = match attempt(call, &place.endpoint).await? {
                Attempt::Answered(response, line) => {
                    let caller = self.caller.take();
                    return Ok(Answer { response, held: Held { place, line }, caller });
                }
                Attempt::Unsent(why) | Attempt::Refused(why) => why,
            };
            permit = match self.retries.note_failure(call, place, why) {
                Some(permit) => permit,
                None => return Err(Undelivered::Readmit(None)),
            };
        }
    }
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
    if call.asked.grpc || kind.is_some_and(request::is_stream) {
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
