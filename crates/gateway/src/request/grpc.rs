//! gRPC in the gateway: which requests are gRPC, and its form of the platform's errors.

use http::{Request, Response, Version};
use nearpath_types::PlatformError;
use nearpath_wire::Body;
use nearpath_wire::hop::grpc;

/// Returns whether a request is gRPC.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_2 && grpc::has_grpc_content(request.headers())
}

/// Converts a platform response for gRPC, which has the error as trailers and no body.
pub(crate) fn into_trailers_only(response: &mut Response<Body>, error: &PlatformError) {
    *response.body_mut() = Body::empty();
    grpc::set_trailers_only(response, error);
}
