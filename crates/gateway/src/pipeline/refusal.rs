//! Refusals of the platform: the error as a response, and in the request's completion record.

use http::{Request, Response};
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::Body;

use crate::COMPONENT;
use crate::call::Call;
use crate::context::WorkerContext;
use crate::error_response::render;
use crate::record::Completion;
use crate::request::{Asked, grpc};

/// The answer to a request for a function that was refused on its walk.
pub(crate) fn of_call(call: Call, error: &PlatformError) -> Response<Body> {
    refused(&call.lane, &call.asked, call.record, error)
}

/// The answer to a request that was refused, recorded.
pub(crate) fn refused(
    lane: &WorkerContext,
    asked: &Asked,
    mut record: Completion,
    error: &PlatformError,
) -> Response<Body> {
    record.refused(error.reason);
    let mut response = render(error, asked.json);
    if asked.grpc {
        grpc::trailers_only(&mut response, error);
    }
    asked.identify(response.headers_mut(), &lane.served_by);
    response
}

/// The answer to a request that is for no function, recorded.
pub(crate) fn outside<B>(lane: &WorkerContext, request: &Request<B>, reason: Reason, why: &str) -> Response<Body> {
    let asked = Asked::of(request);
    let mut record = Completion::start(&lane.recorder, request, None, request.uri().path());
    record.identify(asked.call_id.as_bytes(), None);
    refused(lane, &asked, record, &PlatformError::new(COMPONENT, reason, why.to_owned()))
}
