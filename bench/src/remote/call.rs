//! A request to a function of an application, and what tells a right answer from a wrong one.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderName};
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::Way;
use crate::tally::Failure;

/// How the calls that a function makes for this one are to go: functions pass it on.
const ROUTE: HeaderName = HeaderName::from_static("x-call-id");
/// What follows the way's number when they are to go through the gateway.
const DETOUR: &str = "-gateway";

/// See the module's text.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    path: String,
    /// None: a GET.
    body: Option<Bytes>,
    /// A part of every right answer.
    holds: &'static [u8],
    detour: bool,
}

/// How calls that a function makes leave its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) way: Way,
    /// To the gateway, which calls the callee, and not to the callee.
    pub(super) detour: bool,
}

impl Call {
    /// A GET whose right answers hold so much.
    pub(crate) fn get(path: &str, holds: &'static str) -> Self {
        Self {
            path: path.to_owned(),
            body: None,
            holds: holds.as_bytes(),
            detour: false,
        }
    }

    /// A POST of that.
    pub(crate) fn post(path: &str, body: impl Into<Bytes>, holds: &'static str) -> Self {
        Self {
            path: path.to_owned(),
            body: Some(body.into()),
            holds: holds.as_bytes(),
            detour: false,
        }
    }

    /// The same, but what it causes shall go through the gateway.
    pub(crate) fn through_gateway(self) -> Self {
        Self {
            detour: true,
            ..self
        }
    }

    /// As it is sent; what it causes shall go `way`.
    pub(crate) fn request(&self, way: Way) -> Request<Bytes> {
        let mut request = Request::new(self.body.clone().unwrap_or_default());
        *request.method_mut() = if self.body.is_some() {
            Method::POST
        } else {
            Method::GET
        };
        *request.uri_mut() = self.path.parse().unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("worker"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(
            ROUTE,
            Route {
                way,
                detour: self.detour,
            }
            .value(),
        );
        request
    }

    /// Whether this is what was wanted.
    pub(crate) fn check(&self, answer: &Response<Bytes>) -> Result<(), Failure> {
        match answer.status() {
            StatusCode::OK if memchr::memmem::find(answer.body(), self.holds).is_some() => Ok(()),
            StatusCode::OK => Err(Failure::Body),
            other => Err(Failure::Status(other.as_u16(), excerpt(answer.body()))),
        }
    }
}

impl Route {
    /// The route that [`Call::request`] wrote.
    pub(super) fn of<B>(request: &Request<B>) -> Option<Self> {
        let text = request.headers().get(ROUTE)?.to_str().ok()?;
        let place = text.strip_suffix(DETOUR).unwrap_or(text);
        let way = *Way::ALL.get(place.parse::<usize>().ok()?)?;
        Some(Self {
            way,
            detour: place.len() < text.len(),
        })
    }

    fn value(self) -> HeaderValue {
        let text = format!(
            "{}{}",
            self.way as usize,
            if self.detour { DETOUR } else { "" }
        );
        HeaderValue::try_from(text).expect("digits and letters")
    }
}

/// Why a function refused, as far as one line has room for it.
fn excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(body)
        .trim()
        .chars()
        .take(200)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &'static str) -> Response<Bytes> {
        let mut answer = Response::new(Bytes::from_static(body.as_bytes()));
        *answer.status_mut() = StatusCode::from_u16(status).unwrap();
        answer
    }

    #[test]
    fn the_route_is_read_as_written() {
        for way in Way::ALL {
            let call = Call::get("/", "");
            assert_eq!(
                Route::of(&call.request(way)),
                Some(Route { way, detour: false })
            );
            assert_eq!(
                Route::of(&call.through_gateway().request(way)),
                Some(Route { way, detour: true })
            );
        }
        let mut other = Call::get("/", "").request(Way::Tcp);
        for wrong in ["99", "-1", "x", "-gateway", "1-"] {
            other
                .headers_mut()
                .insert(ROUTE, HeaderValue::from_static(wrong));
            assert_eq!(Route::of(&other), None, "{wrong}");
        }
    }

    #[test]
    fn only_the_right_answer_is_right() {
        let call = Call::post("/", "{}", "\"done\"");
        assert_eq!(call.check(&answer(200, "{\"done\": 1}")), Ok(()));
        assert_eq!(call.check(&answer(200, "{}")), Err(Failure::Body));
        let refused = Failure::Status(502, "{\"error\": \"done\"}".to_owned());
        assert_eq!(
            call.check(&answer(502, "{\"error\": \"done\"}\n")),
            Err(refused)
        );
    }
}
