//! Whether a request may go past the gateway, and how: a pure look at its head.

use std::time::Duration;

use http::header::{HOST, HeaderMap, HeaderName, UPGRADE};
use http::{Request, Version};
use http_body::Body;
use nearpath_domain::post::polled::Post;
use nearpath_path::{self as path, Facts, Path};
use nearpath_types::{FunctionId, duration};

use crate::mode;

/// Largest request body that is collected for memory; larger ones, and those of unknown length, are the gateway's: what is
/// not held cannot go another way when its callee is full.
pub(super) const LARGEST: usize = 1 << 20;

pub(super) const X_TIMEOUT: HeaderName = HeaderName::from_static("x-timeout");
const FUNCTION: &str = "/function/";

/// A call of a function.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) function: FunctionId,
    /// Where the function's own path begins in the request's path and query.
    pub(super) rest: usize,
    /// The caller's own limit.
    pub(super) timeout: Option<Duration>,
}

impl Wish {
    /// Whether it may go through memory; if not, there is no ring, or memory cannot carry it.
    pub(super) fn suits_memory<B: Body>(&self, request: &Request<B>, post: &Post) -> bool {
        let facts = Facts {
            edge: path::Edge {
                same_node: true,
                callee_in_domain: true,
                same_domain: true,
                caller_is_party: true,
                callee_is_party: post.knows(&self.function),
            },
            carrier: path::Carrier::PLAIN,
            call: needs(request),
        };
        is_held(request) && path::choose(&facts).path == Path::Shm
    }

    /// Whether it may go straight to an instance. gRPC is left to the gateway, which speaks of its own refusals in gRPC's words.
    pub(super) fn suits_quic<B>(&self, request: &Request<B>) -> bool {
        let path::Call { upgrade, grpc } = needs(request);
        !upgrade && !grpc
    }

    /// `None`: the gateway decides, because something about the head is odd.
    pub(super) fn read<B>(request: &Request<B>) -> Option<Self> {
        let headers = request.headers();
        let hosts = headers.get_all(HOST).iter().count();
        if hosts > 1 || hosts == 0 && request.version() != Version::HTTP_2 {
            return None;
        }
        let path = request.uri().path();
        let after = path.strip_prefix(FUNCTION)?;
        let end = after.find('/').unwrap_or(after.len());
        let function = after[..end].parse().ok()?;
        Some(Self { function, rest: FUNCTION.len() + end, timeout: own_limit(headers).ok()? })
    }

    /// The function's own path: `/function/echo/a?b` → `/a?b`, `/function/echo?b` → `/?b`.
    pub(super) fn path(&self, whole: &str) -> String {
        let tail = whole.get(self.rest..).unwrap_or_default();
        if tail.starts_with('/') { tail.to_owned() } else { format!("/{tail}") }
    }
}

fn needs<B>(request: &Request<B>) -> path::Call {
    let headers = request.headers();
    path::Call { upgrade: headers.contains_key(UPGRADE), grpc: mode::is_grpc(headers) }
}

/// Whether its body is small enough to be collected, so that it can go another way when the first was none.
pub(super) fn is_held<B: Body>(request: &Request<B>) -> bool {
    request.body().size_hint().exact().is_some_and(|bytes| bytes <= LARGEST as u64)
}

/// The gateway says what is wrong with a limit that cannot be read.
fn own_limit(headers: &HeaderMap) -> Result<Option<Duration>, ()> {
    let Some(value) = headers.get(X_TIMEOUT) else { return Ok(None) };
    let limit = value.to_str().ok().and_then(|text| duration::parse(text).ok());
    limit.filter(|limit| !limit.is_zero()).map(Some).ok_or(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&str, &str)]) -> Request<()> {
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
            let request = request(uri, &[]);
            let wish = Wish::read(&request).unwrap();
            assert_eq!(wish.function, function.parse().unwrap(), "{uri}");
            let whole = request.uri().path_and_query().unwrap().as_str();
            assert_eq!(wish.path(whole), path, "{uri}");
        }
    }

    #[test]
    fn what_is_odd_is_the_gateways() {
        for uri in ["/", "/healthz", "/function/", "/function//x", "/function/a%20b", "/system/functions"] {
            assert_eq!(Wish::read(&request(uri, &[])), None, "{uri}");
        }
        let of = |headers| Wish::read(&request("/function/echo", headers));
        assert_eq!(of(&[("host", "two")]), None);
        assert_eq!(of(&[("x-timeout", "soon")]), None);
        assert_eq!(of(&[("x-timeout", "0s")]), None);
        assert_eq!(of(&[("x-timeout", "2s")]).unwrap().timeout, Some(Duration::from_secs(2)));
    }

    #[test]
    fn what_memory_cannot_carry_is_told() {
        let of = |headers: &[(&str, &str)]| needs(&request("/function/echo", headers));
        let plain = path::Call { upgrade: false, grpc: false };
        assert_eq!(of(&[]), plain);
        assert_eq!(of(&[("upgrade", "websocket")]), path::Call { upgrade: true, ..plain });
        assert_eq!(of(&[("content-type", "application/grpc+proto")]), path::Call { grpc: true, ..plain });
    }

    #[test]
    fn what_is_not_held_cannot_go_two_ways() {
        let of = |bytes: usize| {
            let body = http_body_util::Full::new(bytes::Bytes::from(vec![0; bytes]));
            is_held(&request("/function/echo", &[]).map(|()| body))
        };
        assert_eq!((of(0), of(LARGEST), of(LARGEST + 1)), (true, true, false));
        let unknown = http_body_util::StreamBody::new(futures_util::stream::pending::<
            Result<http_body::Frame<bytes::Bytes>, ()>,
        >());
        assert!(!is_held(&request("/function/echo", &[]).map(|()| unknown)));
    }
}
