//! Requests and answers of a service, independent of the transport.

use bytes::Bytes;
use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use crate::api::{MessageEncoding, ShopMessage};

/// Headers that tie the calls of one request together; a service passes them on.
pub(crate) const FORWARDED_HEADERS: [&str; 3] = ["x-call-id", "traceparent", "tracestate"];

/// Headers of [`FORWARDED_HEADERS`] that a request had.
pub(crate) type ForwardedHeaders = Vec<(&'static str, String)>;

/// A request.
#[derive(Debug)]
pub(crate) struct ServiceRequest {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) cookie: String,
    /// The caller is a browser: pages are HTML, else JSON.
    pub(crate) html: bool,
    pub(crate) passed: ForwardedHeaders,
    pub(crate) encoding: MessageEncoding,
    pub(crate) body: Bytes,
}

impl ServiceRequest {
    /// A call of one service to another.
    pub(crate) fn for_call(path: &str, encoding: MessageEncoding, body: Bytes) -> Self {
        let (method, target) = (Method::POST, path.to_owned());
        Self {
            method,
            target,
            cookie: String::new(),
            html: false,
            passed: ForwardedHeaders::new(),
            encoding,
            body,
        }
    }

    pub(crate) fn path(&self) -> &str {
        self.target
            .split_once('?')
            .map_or(&self.target, |(path, _)| path)
    }

    /// A parameter of the query, decoded; empty when it is not there.
    pub(crate) fn query_value(&self, name: &str) -> String {
        let pairs = self
            .target
            .split_once('?')
            .map_or("", |(_, query)| query)
            .split('&');
        let found = pairs
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name);
        found.map_or_else(String::new, |(_, value)| percent_decode(value))
    }

    /// A cookie's value; empty when it is not there.
    pub(crate) fn cookie_value(&self, name: &str) -> &str {
        let pairs = self
            .cookie
            .split(';')
            .filter_map(|pair| pair.trim().split_once('='));
        pairs
            .into_iter()
            .find(|(key, _)| *key == name)
            .map_or("", |(_, value)| value)
    }

    /// The body of a call.
    pub(crate) fn decode_body<T: ShopMessage>(&self) -> Result<T, ServiceError> {
        self.encoding
            .decode_message(&self.body)
            .map_err(|error| ServiceError::bad_request(format!("the body is {error}")))
    }

    /// Answers a call.
    pub(crate) fn reply<T: ShopMessage>(&self, answer: &T) -> ServiceResponse {
        ServiceResponse::new(
            self.encoding.content_type(),
            self.encoding.encode_message(answer),
        )
    }

    /// The answer to what no service has.
    pub(crate) fn not_found(&self) -> ServiceError {
        ServiceError::new(404, format!("no {} {} here", self.method, self.path()))
    }
}

/// Percent-encoded text; what is not UTF-8 becomes a replacement character.
pub(crate) fn percent_decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// An answer.
#[derive(Debug)]
pub(crate) struct ServiceResponse {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    /// Values of `Set-Cookie`.
    pub(crate) cookies: Vec<String>,
    pub(crate) body: Bytes,
}

impl ServiceResponse {
    pub(crate) fn new(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status: 200,
            content_type,
            cookies: Vec::new(),
            body: body.into(),
        }
    }
}

/// Ends a request with a status other than 200.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceError {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl ServiceError {
    pub(crate) fn new(status: u16, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    /// The caller's fault.
    pub(crate) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST.as_u16(), text)
    }
}

impl From<ServiceError> for ServiceResponse {
    fn from(problem: ServiceError) -> Self {
        let body = serde_json::json!({ "error": problem.text }).to_string();
        Self {
            status: problem.status,
            ..Self::new("application/json", body)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_cookies() {
        let target = "/cart?product_id=A%20B&quantity=2&empty=".to_owned();
        let cookie = "shop_session-id=abc; shop_currency=EUR".to_owned();
        let request = ServiceRequest {
            target,
            cookie,
            ..ServiceRequest::for_call("", MessageEncoding::Json, Bytes::new())
        };
        assert_eq!(
            (request.path(), request.query_value("product_id").as_str()),
            ("/cart", "A B")
        );
        assert_eq!(
            (
                request.query_value("quantity").as_str(),
                request.query_value("empty").as_str()
            ),
            ("2", "")
        );
        assert_eq!(request.query_value("nothing"), "");
        assert_eq!(
            (
                request.cookie_value("shop_session-id"),
                request.cookie_value("shop_currency")
            ),
            ("abc", "EUR")
        );
        assert_eq!(
            request.cookie_value("session-id"),
            "",
            "half a name is another one"
        );
    }
}
