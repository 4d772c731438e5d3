//! The function that a request calls, and the paths that may carry the call past the gateway: pure,
//! from the request's head.

use std::time::Duration;

use http::header::{HOST, HeaderMap, TRAILER, UPGRADE};
use http::{Request, Version};
use http_body::Body;
use nearpath_domain::endpoint::polled::AsyncEndpoint;
use nearpath_path::{self as path, CallFacts, CallNeeds, EdgeFacts, PathPlan, TransportFacts};
use nearpath_types::{FunctionId, duration};

use crate::quic_peers::QuicCallee;
use nearpath_wire::hop::grpc::has_grpc_content;
pub(super) use nearpath_wire::hop::timeout::X_TIMEOUT;

/// Largest request body, in bytes, that is collected for shared memory. Larger ones, and those of
/// unknown length, go to the gateway: a body that is not held whole cannot take another path when
/// its callee is full.
pub(super) const MAX_BUFFERED_BODY_BYTES: usize = 1 << 20;

/// Bytes from which a body to another node goes over the nodes' TLS connection. The gateway has the
/// same limit.
const MIN_BULK_BYTES: u64 = 16 * 1024;

const FUNCTION_PREFIX: &str = "/function/";

/// A called function, as a request's head names it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CallTarget {
    pub(super) function: FunctionId,
    /// Offset of the function's own path in the request's path and query.
    pub(super) path_offset: usize,
    /// Time limit that the caller set.
    pub(super) timeout: Option<Duration>,
}

impl CallTarget {
    /// Selects the call's paths. This watchdog carries out `shm` and `quic`; every other path
    /// begins at the gateway.
    pub(super) fn plan<B: Body>(
        &self,
        request: &Request<B>,
        endpoint: Option<&AsyncEndpoint>,
        callee: Option<&QuicCallee>,
    ) -> PathPlan {
        let needs = call_needs(request);
        let is_attached = endpoint.is_some_and(|post| post.has_function(&self.function));
        // The gateway has gRPC's own form for its refusals.
        let introduced = callee.filter(|_| !needs.grpc);
        path::select_paths(&CallFacts {
            edge: EdgeFacts {
                // A channel leads to instances of this node alone; of the others the node has said
                // where they run.
                same_node: is_attached || callee.is_some_and(QuicCallee::is_on_same_node),
                callee_in_domain: is_attached,
                same_domain: is_attached,
                caller_attached: endpoint.is_some(),
                callee_attached: is_attached,
                callee_is_watchdog: false, // only the gateway reaches a function's own port
            },
            transport: introduced.map_or(TransportFacts::PLAIN, |_| TransportFacts::INTRODUCED),
            needs,
        })
    }

    /// Reads a request's head. `None`: the head is unusual, and the gateway decides.
    pub(super) fn read<B>(request: &Request<B>) -> Option<Self> {
        let headers = request.headers();
        if !headers.contains_key(HOST) && request.version() != Version::HTTP_2 {
            return None;
        }
        let path = request.uri().path();
        let after = path.strip_prefix(FUNCTION_PREFIX)?;
        let end = after.find('/').unwrap_or(after.len());
        let function = after[..end].parse().ok()?;
        Some(Self {
            function,
            path_offset: FUNCTION_PREFIX.len() + end,
            timeout: caller_timeout(headers).ok()?,
        })
    }

    /// Returns the function's own path: `/function/echo/a?b` → `/a?b`, `/function/echo?b` → `/?b`.
    pub(super) fn function_path(&self, whole: &str) -> String {
        let tail = whole.get(self.path_offset..).unwrap_or_default();
        if tail.starts_with('/') {
            tail.to_owned()
        } else {
            format!("/{tail}")
        }
    }
}

fn call_needs<B: Body>(request: &Request<B>) -> CallNeeds {
    let body = request.body().size_hint().exact();
    let headers = request.headers();
    CallNeeds {
        upgrade: headers.contains_key(UPGRADE),
        grpc: has_grpc_content(headers),
        bulk: body.is_none_or(|bytes| bytes >= MIN_BULK_BYTES),
        trailers: headers.contains_key(TRAILER),
        watchdog: false, // this caller knows no other port
    }
}

/// Returns whether the body is small enough to be buffered. Then the call can take another path
/// when the first one fails.
pub(super) fn can_buffer<B: Body>(request: &Request<B>) -> bool {
    request
        .body()
        .size_hint()
        .exact()
        .is_some_and(|bytes| bytes <= MAX_BUFFERED_BODY_BYTES as u64)
}

/// Reads the caller's time limit. For an invalid one the gateway has the error text.
fn caller_timeout(headers: &HeaderMap) -> Result<Option<Duration>, ()> {
    let Some(value) = headers.get(X_TIMEOUT) else {
        return Ok(None);
    };
    let limit = value
        .to_str()
        .ok()
        .and_then(|text| duration::parse_duration(text).ok());
    // 0 is no limit that a call could keep, so the gateway reports it.
    limit.filter(|limit| !limit.is_zero()).map(Some).ok_or(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_path::Path;

    fn build_request(uri: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri(uri).header("host", "gateway:8080");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn every_form_of_a_functions_path() {
        for (uri, function, path) in [
            ("/function/echo", "echo", "/"),
            ("/function/echo?a=b", "echo", "/?a=b"),
            ("/function/echo/", "echo", "/"),
            ("/function/echo.dev/a/b?c=d%20e", "echo.dev", "/a/b?c=d%20e"),
            ("http://gateway:8080/function/echo//a", "echo", "//a"),
        ] {
            let request = build_request(uri, &[]);
            let target = CallTarget::read(&request).unwrap();
            assert_eq!(target.function, function.parse().unwrap(), "{uri}");
            let whole = request.uri().path_and_query().unwrap().as_str();
            assert_eq!(target.function_path(whole), path, "{uri}");
        }
    }

    #[test]
    fn malformed_calls_are_left_to_the_gateway() {
        for uri in [
            "/",
            "/healthz",
            "/function/",
            "/function//x",
            "/function/a%20b",
            "/system/functions",
        ] {
            assert_eq!(CallTarget::read(&build_request(uri, &[])), None, "{uri}");
        }
        let of = |headers| CallTarget::read(&build_request("/function/echo", headers));
        assert_eq!(of(&[("x-timeout", "soon")]), None);
        assert_eq!(of(&[("x-timeout", "0s")]), None);
        assert_eq!(
            of(&[("x-timeout", "2s")]).unwrap().timeout,
            Some(Duration::from_secs(2))
        );
    }

    #[test]
    fn a_callee_that_the_node_has_not_introduced_is_called_through_the_gateway() {
        let request = build_request("/function/echo", &[]).map(|()| no_body());
        let plan = CallTarget::read(&request)
            .unwrap()
            .plan(&request, None, None);
        assert!(!plan.allows_path(Path::Shm) && !plan.allows_path(Path::Quic));
        assert_eq!(plan.first_choice().path, Path::Http);
    }

    fn no_body() -> http_body_util::Empty<bytes::Bytes> {
        http_body_util::Empty::new()
    }

    #[test]
    fn long_bodies_and_those_of_unknown_length_are_bulk() {
        let of = |bytes: u64| {
            let body = http_body_util::Full::new(bytes::Bytes::from(vec![0; bytes as usize]));
            call_needs(&build_request("/function/echo", &[]).map(|()| body)).bulk
        };
        assert_eq!((of(MIN_BULK_BYTES - 1), of(MIN_BULK_BYTES)), (false, true));
    }

    #[test]
    fn upgrades_and_grpc_are_among_the_needs() {
        let of = |headers: &[(&str, &str)]| {
            call_needs(&build_request("/function/echo", headers).map(|()| no_body()))
        };
        let plain = CallNeeds::PLAIN;
        assert_eq!(of(&[]), plain);
        assert_eq!(
            of(&[("upgrade", "websocket")]),
            CallNeeds {
                upgrade: true,
                ..plain
            }
        );
        assert_eq!(
            of(&[("content-type", "application/grpc+proto")]),
            CallNeeds {
                grpc: true,
                ..plain
            }
        );
        assert_eq!(
            of(&[("trailer", "checksum")]),
            CallNeeds {
                trailers: true,
                ..plain
            }
        );
    }

    #[test]
    fn only_small_bodies_of_known_length_are_buffered() {
        let of = |bytes: usize| {
            let body = http_body_util::Full::new(bytes::Bytes::from(vec![0; bytes]));
            can_buffer(&build_request("/function/echo", &[]).map(|()| body))
        };
        assert_eq!(
            (
                of(0),
                of(MAX_BUFFERED_BODY_BYTES),
                of(MAX_BUFFERED_BODY_BYTES + 1)
            ),
            (true, true, false)
        );
        let unknown = http_body_util::StreamBody::new(futures_util::stream::pending::<
            Result<http_body::Frame<bytes::Bytes>, ()>,
        >());
        assert!(!can_buffer(
            &build_request("/function/echo", &[]).map(|()| unknown)
        ));
    }
}
