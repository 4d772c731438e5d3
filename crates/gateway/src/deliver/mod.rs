//! Brings a request to an instance and the answer back.
//!
//! [`RequestDelivery`] picks an instance and sends; while provably nothing was sent it tries another one, or asks to be admitted again. After
//! the first byte a request is never repeated. [`into_response`] hands the answer to the caller as it comes, and holds the request's
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

pub(crate) use content::ResponseContent;
pub(crate) use delivery_errors::{lost_reply_error, timeout_error};
pub(crate) use endpoint_slot::{EndpointSlot, pick_slot};
pub(crate) use open_response::RequestGuard;
pub use outgoing_request::function_uri;
pub(crate) use quic::open_ahead_of_calls;

use crate::call::GatewayCall;
use crate::function::AdmissionPermit;
use crate::request;
use attempt::try_instance;
use attempt_outcome::AttemptOutcome;
use instance_body::InstanceBody;
use response_body::ResponseBody;
use retry::RetryState;

/// The head of an answer, and what its request holds.
pub(crate) struct InstanceAnswer {
    response: Response<InstanceBody>,
    guard: RequestGuard,
    /// The caller's side of an upgrade.
    caller: Option<OnUpgrade>,
}

impl InstanceAnswer {
    /// An answer that came through memory.
    pub(crate) fn from_shm(reply: nearpath_domain::CallReply, slot: EndpointSlot) -> Self {
        Self {
            response: shm::to_response(reply),
            guard: RequestGuard {
                slot,
                connection: None,
            },
            caller: None,
        }
    }
}

/// The reason for which a request has no answer from a round over the instances.
pub(crate) enum SendFailure {
    /// It may have run, or its time is over.
    Failed(PlatformError),
    /// No instance is left to try: it has to be admitted again, with its permit if that is still valid.
    Readmit(Option<AdmissionPermit>),
}

impl From<PlatformError> for SendFailure {
    fn from(error: PlatformError) -> Self {
        Self::Failed(error)
    }
}

/// One request on its way to the instances.
pub(crate) struct RequestDelivery {
    retries: RetryState,
    caller: Option<OnUpgrade>,
}

impl RequestDelivery {
    /// Prepares the request for sending.
    ///
    /// # Errors
    /// `body_too_large` when the request says so itself.
    pub(crate) fn prepare(call: &mut GatewayCall) -> Result<Self, PlatformError> {
        let upgrade = call.request.as_mut().filter(|_| call.options.wants_upgrade);
        let caller = upgrade.map(hyper::upgrade::on);
        outgoing_request::prepare_request(call)?;
        Ok(Self {
            retries: RetryState::default(),
            caller,
        })
    }

    /// The same for a request that one instance has refused already. Returns the permit, unless the refusal voided it.
    ///
    /// # Errors
    /// As [`RequestDelivery::begin`].
    pub(crate) fn prepare_after_refusal(
        call: &mut GatewayCall,
        refused_slot: EndpointSlot,
        why: String,
    ) -> Result<(Self, Option<AdmissionPermit>), PlatformError> {
        outgoing_request::prepare_request(call)?;
        let mut retries = RetryState::default();
        let permit = retries.note_failure(call, refused_slot, why);
        Ok((
            Self {
                retries,
                caller: None,
            },
            permit,
        ))
    }

    /// Sends the request to one instance after the other until one answers; to be called again after an [`SendFailure::Readmit`].
    ///
    /// # Errors
    /// Why there is no answer; see the reasons 12 to 16 of `contract/reasons.toml`.
    pub(crate) async fn send_until_answered(
        &mut self,
        call: &mut GatewayCall,
        mut permit: AdmissionPermit,
    ) -> Result<InstanceAnswer, SendFailure> {
        loop {
            if self.retries.is_waiting() {
                // On the heap: few requests wait, and every request's future would be as large otherwise.
                Box::pin(self.retries.wait_before_retry(call)).await?;
            }
            let slot = match self.retries.pick_slot(call, permit) {
                Ok(slot) => slot,
                Err(permit) => return Err(SendFailure::Readmit(Some(permit))),
            };
            call.record.instance = Some(slot.endpoint.id);
            let why = match try_instance(call, &slot.endpoint).await? {
                AttemptOutcome::Answered(response, line) => {
                    let caller = self.caller.take();
                    return Ok(InstanceAnswer {
                        response,
                        guard: RequestGuard {
                            slot,
                            connection: line,
                        },
                        caller,
                    });
                }
                AttemptOutcome::Unsent(why) | AttemptOutcome::Refused(why) => why,
            };
            permit = match self.retries.note_failure(call, slot, why) {
                Some(permit) => permit,
                None => return Err(SendFailure::Readmit(None)),
            };
        }
    }
}

/// The answer as the caller gets it.
pub(crate) fn into_response(
    mut call: Box<GatewayCall>,
    answer: InstanceAnswer,
) -> Response<ResponseContent> {
    let InstanceAnswer {
        mut response,
        guard,
        caller,
    } = answer;
    let status = response.status();
    let upgraded = status == StatusCode::SWITCHING_PROTOCOLS;
    let now = Instant::now();
    headers::rewrite_response_headers(response.headers_mut(), &call, upgraded, now);
    call.record.mark_answered(status.as_u16());
    if upgraded {
        return upgrade_connection(call, response, guard, caller);
    }
    let content_type = response
        .headers()
        .get(CONTENT_TYPE)
        .map(HeaderValue::as_bytes);
    if call.options.is_grpc || content_type.is_some_and(request::names_stream) {
        call.deadlines.lift_total_timeout();
    }
    let bodiless =
        call.options.is_head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    response
        .map(|body| ResponseContent::Function(ResponseBody::new(body, guard, call, now, bodiless)))
}

fn upgrade_connection(
    call: Box<GatewayCall>,
    mut response: Response<InstanceBody>,
    guard: RequestGuard,
    caller: Option<OnUpgrade>,
) -> Response<ResponseContent> {
    let instance = hyper::upgrade::on(&mut response);
    if let Some(caller) = caller {
        let worker = call.worker.clone();
        worker.spawn(tunnel::run_tunnel(caller, instance, guard, call));
    }
    response.map(|_| ResponseContent::Platform(Body::empty()))
}
