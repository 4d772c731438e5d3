//! What a service is asked and what it answers, whatever brought it.

use bytes::Bytes;
use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use crate::goods::{Encoding, Goods};

/// Headers that tie the calls of one request together; a service passes them on.
pub(crate) const PASSED_ON: [&str; 3] = ["x-call-id", "traceparent", "tracestate"];

/// Headers of [`PASSED_ON`] that a request had.
pub(crate) type Passed = Vec<(&'static str, String)>;

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) cookie: String,
    /// The caller is a browser: pages are HTML, else JSON.
    pub(crate) html: bool,
    pub(crate) passed: Passed,
    pub(crate) encoding: Encoding,
    pub(crate) body: Bytes,
}

impl Request {
    /// A call of one service to another.
    pub(crate) fn call(path: &str, encoding: Encoding, body: Bytes) -> Self {
        let (method, target) = (Method::POST, path.to_owned());
        Self {
            method,
            target,
            cookie: String::new(),
            html: false,
            passed: Passed::new(),
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
    pub(crate) fn query(&self, name: &str) -> String {
        let pairs = self
            .target
            .split_once('?')
            .map_or("", |(_, query)| query)
            .split('&');
        let found = pairs
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name);
        found.map_or_else(String::new, |(_, value)| decoded(value))
    }

    /// A cookie's value; empty when it is not there.
    pub(crate) fn cookie(&self, name: &str) -> &str {
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
    pub(crate) fn read<T: Goods>(&self) -> Result<T, Problem> {
        self.encoding
            .read(&self.body)
            .map_err(|error| Problem::wrong(format!("the body is {error}")))
    }

    /// Answers a call.
    pub(crate) fn reply<T: Goods>(&self, answer: &T) -> Response {
        Response::new(self.encoding.content_type(), self.encoding.write(answer))
    }

    /// The answer to what no service has.
    pub(crate) fn unknown(&self) -> Problem {
        Problem::new(404, format!("no {} {} here", self.method, self.path()))
    }
}

/// Percent-encoded text; what is not UTF-8 becomes a replacement character.
pub(crate) fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    /// Values of `Set-Cookie`.
    pub(crate) cookies: Vec<String>,
    pub(crate) body: Bytes,
}

impl Response {
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
pub(crate) struct Problem {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl Problem {
    pub(crate) fn new(status: u16, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    /// The caller's fault.
    pub(crate) fn wrong(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST.as_u16(), text)
    }
}

impl From<Problem> for Response {
    fn from(problem: Problem) -> Self {
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
        let request = Request {
            target,
            cookie,
            ..Request::call("", Encoding::Json, Bytes::new())
        };
        assert_eq!(
            (request.path(), request.query("product_id").as_str()),
            ("/cart", "A B")
        );
        assert_eq!(
            (
                request.query("quantity").as_str(),
                request.query("empty").as_str()
            ),
            ("2", "")
        );
        assert_eq!(request.query("nothing"), "");
        assert_eq!(
            (
                request.cookie("shop_session-id"),
                request.cookie("shop_currency")
            ),
            ("abc", "EUR")
        );
        assert_eq!(
            request.cookie("session-id"),
            "",
            "half a name is another one"
        );
    }
}
