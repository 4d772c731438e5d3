//! Requests in a closed loop ([`closed`]: the next one after each response), in an open one
//! ([`open`]: at a constant rate, independent of earlier ones), or from a [`trace`].
//! [`epoll_client`] is the closed loop of the comparisons.

pub(crate) mod closed;
pub(crate) mod connection;
pub(crate) mod counted;
pub(crate) mod epoll_client;
pub(crate) mod mqtt;
pub(crate) mod open;
pub(crate) mod pacer;
pub(crate) mod schedule;
pub(crate) mod trace;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use tokio::time::Instant;

/// A request that can be sent any number of times.
#[derive(Debug, Clone)]
pub(crate) struct RequestTemplate {
    pub(crate) addr: SocketAddr,
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) path: Uri,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Bytes,
}

impl RequestTemplate {
    /// Creates a GET of `path` at `addr`.
    pub(crate) fn for_get(addr: SocketAddr, path: &str) -> Result<Self, http::Error> {
        let host = HeaderValue::try_from(addr.to_string())?;
        let headers = vec![(http::header::HOST, host)];
        Ok(Self {
            addr,
            method: Method::GET,
            path: path.try_into()?,
            headers,
            body: Bytes::new(),
        })
    }

    /// Returns the request with `Connection: close`.
    pub(crate) fn with_close(mut self) -> Self {
        self.headers
            .push((http::header::CONNECTION, HeaderValue::from_static("close")));
        self
    }

    pub(crate) fn build_request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.path.clone();
        request.headers_mut().extend(self.headers.iter().cloned());
        request
    }

    /// Returns the request as bytes of HTTP/1.1.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.path).into_bytes();
        for (name, value) in &self.headers {
            bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        // A GET without a body has no content-length, as browsers and curl send it.
        if !self.body.is_empty() {
            bytes.extend(format!("content-length: {}\r\n", self.body.len()).as_bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(&self.body);
        bytes
    }
}

/// The time in which requests are counted. Requests that end before it are warm-up; later ones are
/// not counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MeasureWindow {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

impl MeasureWindow {
    /// Creates a window that begins after `warm_up` from now.
    pub(crate) fn starting_after(warm_up: Duration, length: Duration) -> Self {
        let from = Instant::now() + warm_up;
        Self {
            from,
            until: from + length,
        }
    }

    // Half open: adjacent windows never count a request twice.
    pub(crate) fn contains_moment(&self, moment: Instant) -> bool {
        self.from <= moment && moment < self.until
    }

    pub(crate) fn length(&self) -> Duration {
        self.until - self.from
    }
}
