//! Events from other nodes, sent to instances through shared memory. An event has no response: the
//! gateway answers 202 once it is sent.

use std::sync::Arc;
use std::time::Instant;

use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use nearpath_domain::endpoint::polled::AsyncEndpoint;
use nearpath_domain::{CallDestination, CallRequest, clock};
use nearpath_types::PlatformError;
use nearpath_wire::hop::headers::X_TOPIC;

use super::attempt_outcome::AttemptOutcome;
use super::buffered_request::BufferedRequest;
use super::delivery_errors::broken_body_error;
use super::instance_body::InstanceBody;
use super::shm_head::{call_fields, trace_ids};
use crate::call::GatewayCall;
use crate::function::FunctionEndpoint;
use crate::request::RequestUpload;

/// Sends the request as an event. After [`AttemptOutcome::Unsent`], `call` has it again for another path.
///
/// # Errors
/// When the body did not arrive, or is above the limit of events.
pub(super) async fn try_send_event(
    call: &mut GatewayCall,
    endpoint: &Arc<FunctionEndpoint>,
    shm_endpoint: &AsyncEndpoint,
    buffered: BufferedRequest,
) -> Result<AttemptOutcome, PlatformError> {
    let body = buffered.remaining.with_first_chunk(buffered.first_chunk);
    let Ok(body) = body.collect().await else {
        return Err(broken_body_error(call));
    };
    let (mut head, body) = (buffered.head, body.to_bytes());
    let topic = call.topic.as_ref().map(|topic| topic.as_bytes());
    // An event has its topic as `:name` alone, and its length in the envelope.
    head.headers.remove(X_TOPIC);
    let length = head.headers.remove(CONTENT_LENGTH);
    let (trace, span) = trace_ids(&head);
    let request = CallRequest {
        fields: &event_fields(&head, topic.unwrap_or_default()),
        body: body.clone(),
        deadline: clock::deadline_after(
            call.deadlines
                .deadline()
                .saturating_duration_since(Instant::now()),
        ),
        trace,
        span,
    };
    let id = endpoint.instance().expect("memory is shared within a node");
    match shm_endpoint.send_event(CallDestination::Instance(id), &request) {
        Ok(()) => {
            let mut response = Response::new(InstanceBody::Whole(Default::default()));
            *response.status_mut() = StatusCode::ACCEPTED;
            Ok(AttemptOutcome::Answered(response, None))
        }
        Err(unsent) => {
            head.headers
                .extend(length.map(|value| (CONTENT_LENGTH, value)));
            call.request = Some(Request::from_parts(head, RequestUpload::from_bytes(body).0));
            Ok(AttemptOutcome::Unsent(unsent.to_string()))
        }
    }
}

fn event_fields<'a>(head: &'a Parts, topic: &'a [u8]) -> Vec<(&'a str, &'a [u8])> {
    let mut fields = vec![(":name", topic)];
    fields.extend(call_fields(head));
    fields
}
