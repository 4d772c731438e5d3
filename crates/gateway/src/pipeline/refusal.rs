//! Refusals of the platform: the error as a response, and in the request's completion record.

use http::{Request, Response};
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::Body;

use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::context::WorkerContext;
use crate::error_response::render_error;
use crate::record::CompletionRecord;
use crate::request::{RequestOptions, grpc};

/// The answer to a request for a function that was refused on its walk.
pub(crate) fn refuse_call(call: GatewayCall, error: &PlatformError) -> Response<Body> {
    record_refusal(&call.worker, &call.options, call.record, error)
}

/// The answer to a request that was refused, recorded.
pub(crate) fn record_refusal(
    worker: &WorkerContext,
    options: &RequestOptions,
    mut record: CompletionRecord,
    error: &PlatformError,
) -> Response<Body> {
    record.mark_refused(error.reason);
    let mut response = render_error(error, options.wants_json);
    if options.is_grpc {
        grpc::into_trailers_only(&mut response, error);
    }
    options.insert_identity(response.headers_mut(), &worker.served_by);
    response
}

/// The answer to a request that is for no function, recorded.
pub(crate) fn record_unrouted_refusal<B>(
    worker: &WorkerContext,
    request: &Request<B>,
    reason: Reason,
    why: &str,
) -> Response<Body> {
    let options = RequestOptions::from_request(request);
    let mut record =
        CompletionRecord::start_request(&worker.recorder, request, None, request.uri().path());
    record.identify(options.call_id.as_bytes(), None);
    record_refusal(
        worker,
        &options,
        record,
        &PlatformError::new(COMPONENT, reason, why.to_owned()),
    )
}
