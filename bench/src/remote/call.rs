//! A request to a function of an application, and the check of its response.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderName};
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::RemoteTransport;
use crate::tally::RequestFailure;

/// Header with the route of a function's calls; functions forward it.
// A header that functions and watchdogs pass on anyway, so the applications need no change.
const ROUTE_HEADER: HeaderName = HeaderName::from_static("x-call-id");
/// Suffix of the transport's number for calls through the gateway.
const GATEWAY_SUFFIX: &str = "-gateway";

/// Call to a remote function.
#[derive(Debug, Clone)]
pub(crate) struct RemoteCall {
    path: String,
    /// `None`: a GET.
    body: Option<Bytes>,
    /// A part of every correct response.
    holds: &'static [u8],
    via_gateway: bool,
}

/// Route of the calls that a function makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallRoute {
    pub(super) transport: RemoteTransport,
    /// Set if the gateway calls the callee.
    pub(super) via_gateway: bool,
}

impl RemoteCall {
    /// Creates a GET with a part of its correct response.
    pub(crate) fn for_get(path: &str, holds: &'static str) -> Self {
        Self {
            path: path.to_owned(),
            body: None,
            holds: holds.as_bytes(),
            via_gateway: false,
        }
    }

    /// Creates a POST of this body.
    pub(crate) fn for_post(path: &str, body: impl Into<Bytes>, holds: &'static str) -> Self {
        Self {
            path: path.to_owned(),
            body: Some(body.into()),
            holds: holds.as_bytes(),
            via_gateway: false,
        }
    }

    /// Returns the call with the route of its nested calls through the gateway.
    pub(crate) fn through_gateway(self) -> Self {
        Self {
            via_gateway: true,
            ..self
        }
    }

    /// Builds the request; its nested calls use `transport`.
    pub(crate) fn build_request(&self, transport: RemoteTransport) -> Request<Bytes> {
        let mut request = Request::new(self.body.clone().unwrap_or_default());
        *request.method_mut() = if self.body.is_some() {
            Method::POST
        } else {
            Method::GET
        };
        *request.uri_mut() = self.path.parse().unwrap_or_default();
        let headers = request.headers_mut();
        // HTTP/1.1 requires a host; no one here routes by it.
        headers.insert(HOST, HeaderValue::from_static("worker"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(
            ROUTE_HEADER,
            CallRoute {
                transport,
                via_gateway: self.via_gateway,
            }
            .header_value(),
        );
        request
    }

    /// Checks that the response is the expected one.
    pub(crate) fn check_response(&self, response: &Response<Bytes>) -> Result<(), RequestFailure> {
        match response.status() {
            StatusCode::OK if memchr::memmem::find(response.body(), self.holds).is_some() => Ok(()),
            StatusCode::OK => Err(RequestFailure::Body),
            other => Err(RequestFailure::Status(
                other.as_u16(),
                error_excerpt(response.body()),
            )),
        }
    }
}

impl CallRoute {
    /// Parses the route that [`RemoteCall::build_request`] wrote.
    pub(super) fn from_request<B>(request: &Request<B>) -> Option<Self> {
        let text = request.headers().get(ROUTE_HEADER)?.to_str().ok()?;
        let place = text.strip_suffix(GATEWAY_SUFFIX).unwrap_or(text);
        // By number: names of transports have blanks and commas, which a header could hold, but not
        // a log line.
        let transport = *RemoteTransport::ALL.get(place.parse::<usize>().ok()?)?;
        Some(Self {
            transport,
            via_gateway: place.len() < text.len(),
        })
    }

    fn header_value(self) -> HeaderValue {
        let text = format!(
            "{}{}",
            self.transport as usize,
            if self.via_gateway { GATEWAY_SUFFIX } else { "" }
        );
        HeaderValue::try_from(text).expect("digits and letters")
    }
}

/// Returns a one-line excerpt of an error body.
fn error_excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(body)
        .trim()
        .chars()
        // Characters and not bytes: a cut within one would not be UTF-8.
        .take(200)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, body: &'static str) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from_static(body.as_bytes()));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response
    }

    #[test]
    fn the_route_is_parsed_as_written() {
        for transport in RemoteTransport::ALL {
            let call = RemoteCall::for_get("/", "");
            assert_eq!(
                CallRoute::from_request(&call.build_request(transport)),
                Some(CallRoute {
                    transport,
                    via_gateway: false
                })
            );
            assert_eq!(
                CallRoute::from_request(&call.through_gateway().build_request(transport)),
                Some(CallRoute {
                    transport,
                    via_gateway: true
                })
            );
        }
        let mut other = RemoteCall::for_get("/", "").build_request(RemoteTransport::Tcp);
        for wrong in ["99", "-1", "x", "-gateway", "1-"] {
            other
                .headers_mut()
                .insert(ROUTE_HEADER, HeaderValue::from_static(wrong));
            assert_eq!(CallRoute::from_request(&other), None, "{wrong}");
        }
    }

    #[test]
    fn only_the_expected_response_is_accepted() {
        let call = RemoteCall::for_post("/", "{}", "\"done\"");
        assert_eq!(call.check_response(&response(200, "{\"done\": 1}")), Ok(()));
        assert_eq!(
            call.check_response(&response(200, "{}")),
            Err(RequestFailure::Body)
        );
        let refused = RequestFailure::Status(502, "{\"error\": \"done\"}".to_owned());
        assert_eq!(
            call.check_response(&response(502, "{\"error\": \"done\"}\n")),
            Err(refused)
        );
    }
}
