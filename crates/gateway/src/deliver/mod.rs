//! Delivers a request to an instance and returns the response.
//!
//! [`RequestDelivery`] picks an instance and sends. While provably nothing was sent, it tries
//! another instance or asks for readmission. After the first byte, a request is never repeated.
//! [`into_response`] streams the response to the caller and holds the request's slot until the
//! function is done: responses of functions with limited places are read ahead of slow callers.

mod attempt;
mod attempt_outcome;
mod buffered_request;
mod content;
mod delivery_errors;
mod endpoint_slot;
mod headers;
mod instance_body;
mod long_body;
mod node_choice;
mod open_response;
mod outgoing_request;
mod own_port;
mod own_port_errors;
mod path_choice;
mod quic;
mod response_body;
mod response_buffer;
mod retry;
mod retry_copy;
pub(crate) mod shm;
mod shm_body;
mod shm_event;
mod shm_head;
mod time_limits;
mod tunnel;
mod upload_holder;

use std::time::Instant;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::Body as _;
use hyper::upgrade::OnUpgrade;
use nearpath_types::PlatformError;
use nearpath_wire::Body;
use nearpath_wire::hop::grpc::names_fault;

use delivery_errors::unfinal_response_error;

pub(crate) use buffered_request::{BodyBeginning, is_read_ahead_due, read_ahead_of_admission};
pub(crate) use content::ResponseContent;
pub(crate) use delivery_errors::{lost_response_error, timeout_error};
pub(crate) use endpoint_slot::{EndpointSlot, pick_slot, pick_slot_elsewhere};
pub(crate) use headers::path_report;
pub(crate) use long_body::admit_or_read_body;
pub(crate) use open_response::RequestGuard;
pub use outgoing_request::function_uri;
pub(crate) use own_port::{DEFAULT_CONTENT_TYPE, is_for_watchdog, node_headers, own_port_headers};
pub(crate) use own_port_errors::own_port_error;
pub(crate) use quic::open_ahead_of_calls;
pub(crate) use retry_copy::may_run_elsewhere;
pub(crate) use upload_holder::hold_place_while_uploading;

use crate::call::GatewayCall;
use crate::function::AdmissionPermit;
use crate::request;
use crate::transport::Http1Body;
use attempt::try_instance;
use attempt_outcome::AttemptOutcome;
use instance_body::InstanceBody;
use response_body::ResponseBody;
use response_buffer::BufferedResponse;
use retry::RetryState;

/// Head of a response, and the resources that its request holds.
pub(crate) struct InstanceAnswer {
    response: Response<InstanceBody>,
    guard: RequestGuard,
    /// Caller's side of an upgrade.
    caller: Option<OnUpgrade>,
}

impl InstanceAnswer {
    /// Wraps a response from shared memory.
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

    /// Wraps a response of the function's own server.
    pub(crate) fn from_loopback(response: Response<Box<Http1Body>>, slot: EndpointSlot) -> Self {
        Self {
            response: response.map(InstanceBody::Loopback),
            guard: RequestGuard {
                slot,
                connection: None,
            },
            caller: None,
        }
    }
}

/// Admission of a request.
pub(crate) enum Admission {
    /// Through the gate, to one of the endpoints whose places it counts.
    Here(AdmissionPermit),
    /// To another node, because the request would wait at this one.
    /// Boxed, because it is rare and larger.
    Elsewhere(Box<EndpointSlot>),
}

/// Cause for which no instance answered a request.
pub(crate) enum SendFailure {
    /// The request may have run, or its time is over.
    Failed(PlatformError),
    /// No instance is left to try. The request must be admitted again, with its permit if that is
    /// still valid.
    Readmit(Option<AdmissionPermit>),
}

impl From<PlatformError> for SendFailure {
    fn from(error: PlatformError) -> Self {
        Self::Failed(error)
    }
}

/// Delivery of one request to the instances.
pub(crate) struct RequestDelivery {
    retries: RetryState,
    caller: Option<OnUpgrade>,
}

impl RequestDelivery {
    /// Prepares the request for sending.
    ///
    /// # Errors
    /// `body_too_large` if the announced length exceeds the limit.
    pub(crate) fn prepare(call: &mut GatewayCall) -> Result<Self, PlatformError> {
        // hyper keeps the caller's upgrade in the extensions of the request. It must not go to
        // the instance.
        let upgrade = call.request.as_mut().filter(|_| call.options.wants_upgrade);
        let caller = upgrade.map(hyper::upgrade::on);
        outgoing_request::prepare_request(call)?;
        Ok(Self {
            retries: RetryState::default(),
            caller,
        })
    }

    /// Prepares a request that one instance has refused. Returns the permit, unless the instance
    /// was withdrawn.
    ///
    /// # Errors
    /// As [`RequestDelivery::prepare`].
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

    /// Sends the request to endpoints in turn until one answers. Call again after
    /// [`SendFailure::Readmit`].
    ///
    /// # Errors
    /// Returns the cause; see the reasons 12 to 16 of `contract/reasons.toml`.
    pub(crate) async fn send_until_answered(
        &mut self,
        call: &mut GatewayCall,
        mut admission: Admission,
    ) -> Result<InstanceAnswer, SendFailure> {
        loop {
            if self.retries.is_waiting() {
                // On the heap: few requests wait, and every request's future would be as large
                // otherwise.
                Box::pin(self.retries.wait_before_retry(call)).await?;
            }
            let slot = match admission {
                Admission::Elsewhere(slot) => *slot,
                Admission::Here(permit) => match self.retries.pick_slot(call, permit) {
                    Ok(slot) => slot,
                    Err(permit) => return Err(SendFailure::Readmit(Some(permit))),
                },
            };
            call.record.endpoint = Some(slot.endpoint.id.clone());
            let why = match try_instance(call, &slot.endpoint).await? {
                AttemptOutcome::Answered(response, connection) => {
                    let caller = self.caller.take();
                    let status = response.status();
                    // The connection ends here: what follows an unrequested 101 would be taken for
                    // the response to the next request.
                    if status.is_informational() && !is_upgrade(status, caller.as_ref()) {
                        let error = unfinal_response_error(call, &slot.endpoint, status);
                        return Err(error.into());
                    }
                    return Ok(InstanceAnswer {
                        response,
                        guard: RequestGuard { slot, connection },
                        caller,
                    });
                }
                AttemptOutcome::Unsent(why) | AttemptOutcome::Refused(why) => why,
            };
            admission = match self.retries.note_failure(call, slot, why) {
                Some(permit) => Admission::Here(permit),
                None => return Err(SendFailure::Readmit(None)),
            };
        }
    }
}

/// Returns whether a response ends HTTP on the connection of a caller that asked for it (RFC 9110
/// section 7.8).
fn is_upgrade(status: StatusCode, caller: Option<&OnUpgrade>) -> bool {
    status == StatusCode::SWITCHING_PROTOCOLS && caller.is_some()
}

/// Converts an instance's answer into the caller's response.
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
    if call.options.is_grpc && names_fault(response.headers()) {
        call.record.mark_grpc_fault(); // no body and no trailers follow
    }
    if upgraded {
        return upgrade_connection(call, response, guard, caller);
    }
    // Only the response decides whether it is a stream; `Accept` was a preference.
    let content_type = response
        .headers()
        .get(CONTENT_TYPE)
        .map(HeaderValue::as_bytes);
    let is_event_stream = content_type.is_some_and(request::names_stream);
    if call.options.is_grpc || is_event_stream {
        call.deadlines.lift_total_timeout();
    }
    // hyper never polls these bodies, so the slot would not be released at their end (RFC 9110
    // section 6.4.1).
    let bodiless =
        call.options.is_head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    // An event stream occupies its place as long as it lasts, so reading ahead would free nothing.
    let is_buffered = call.route.policy.max_inflight.is_some() && !bodiless && !is_event_stream;
    let (worker, caller) = (call.worker.clone(), call.source);
    response.map(|body| {
        let body = ResponseBody::new(body, guard, call, now, bodiless);
        match is_buffered && !body.is_end_stream() {
            true => ResponseContent::Buffered(BufferedResponse::start(&worker, caller, body)),
            false => ResponseContent::Function(body),
        }
    })
}

fn upgrade_connection(
    call: Box<GatewayCall>,
    mut response: Response<InstanceBody>,
    guard: RequestGuard,
    caller: Option<OnUpgrade>,
) -> Response<ResponseContent> {
    let instance = hyper::upgrade::on(&mut response);
    // Only a request for an upgrade has a caller's side.
    if let Some(caller) = caller {
        let worker = call.worker.clone();
        worker.spawn(tunnel::run_tunnel(caller, instance, guard, call));
    }
    response.map(|_| ResponseContent::Platform(Body::empty()))
}
