//! Refusals: the error as a response and in the completion record.

use http::{Request, Response};
use http_body::Body as _;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::Body;

use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::context::WorkerContext;
use crate::error_response::render_error;
use crate::record::CompletionRecord;
use crate::request::{PeerInfo, RequestOptions, grpc};

/// Reason of a response that the platform made; an extension of the response. A header could come from the
/// function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlatformRefusal(pub(crate) Reason);

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
    response
        .extensions_mut()
        .insert(PlatformRefusal(error.reason));
    record.bytes_out = response.body().size_hint().exact().unwrap_or_default();
    options.insert_identity(response.headers_mut(), &worker.served_by);
    response
}

/// Records the refusal of a request for no function and returns its response.
pub(crate) fn record_unrouted_refusal<B>(
    worker: &WorkerContext,
    peer: &PeerInfo,
    request: &Request<B>,
    reason: Reason,
    why: &str,
) -> Response<Body> {
    let options = RequestOptions::from_request(request);
    let name = request.uri().path();
    let mut record = CompletionRecord::start_request(&worker.recorder, peer, request, None, name);
    record.identify(options.call_id.as_bytes(), None);
    record_refusal(
        worker,
        &options,
        record,
        &PlatformError::new(COMPONENT, reason, why.to_owned()),
    )
}
