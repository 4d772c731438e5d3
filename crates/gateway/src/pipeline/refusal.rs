//! Refusals: the error as a response and in the completion record.

use http::{Request, Response};
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::Body;

use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::context::WorkerContext;
use crate::error_response::render_error;
use crate::record::CompletionRecord;
use crate::request::{RequestOptions, grpc};

/// Returns the response to a refused call of a function.
pub(crate) fn refuse_call(call: GatewayCall, error: &PlatformError) -> Response<Body> {
    record_refusal(&call.worker, &call.options, call.record, error)
}

/// Records a refusal and returns its response.
pub(crate) fn record_refusal(
    worker: &WorkerContext,
    options: &RequestOptions,
    mut record: CompletionRecord,
    error: &PlatformError,
) -> Response<Body> {
    record.mark_refused(error.reason);
    let mut response = render_error(error, options.wants_json);
    if options.is_grpc {
        // gRPC clients map any HTTP status but 200 to a generic code, and would lose the reason.
        grpc::into_trailers_only(&mut response, error);
    }
    options.insert_identity(response.headers_mut(), &worker.served_by);
    response
}

/// Records the refusal of a request for no function and returns its response.
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
