//! Mode `http`: the tenant's process is a server that runs all the time; requests are passed on to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, StatusCode, Uri, Version, request};
use nearpath_types::{PlatformError, Reason};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Answer, Call};
use crate::arrival::Arrival;
use crate::body::Body;
use crate::config::Config;
use crate::config::target::Protocol;
use crate::hop;
use crate::inbound::{Inbound, Upload, collect};
use crate::refusal::error;
use crate::tunnel::{self, Tunnel};
use crate::upstream::{Peer, Upstream};

const X_DURATION_SECONDS: HeaderName = HeaderName::from_static("x-duration-seconds");

/// Set once the tenant's server accepts connections; calls that come earlier wait for it.
#[derive(Debug, Default)]
pub(crate) struct Started {
    set: AtomicBool,
    notify: Notify,
}

impl Started {
    pub(crate) fn set(&self) {
        self.set.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    async fn wait(&self) {
        let notified = self.notify.notified();
        if !self.is_set() {
            notified.await;
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Http {
    upstream: Arc<Upstream>,
    base: String,
    protocol: Protocol,
    read_timeout: Option<Duration>,
    /// Largest body to hold; `None`: bodies pass as they arrive.
    hold: Option<usize>,
    pub(crate) started: Arc<Started>,
}

impl Http {
    /// `None` without an upstream, which the configuration demands for this mode.
    pub(crate) fn new(config: &Config, started: Arc<Started>) -> Option<Self> {
        let target = config.upstream.clone()?;
        Some(Self {
            base: target.base.clone(),
            upstream: Arc::new(Upstream::new(Peer::Tenant, target.addrs)),
            protocol: config.upstream_protocol,
            read_timeout: config.read_timeout,
            hold: config.buffer_request.then_some(config.max_body),
            started,
        })
    }

    pub(crate) async fn answer(&self, call: Call) -> Result<Answer, PlatformError> {
        self.started.wait().await;
        let Call { mut request, began, upload } = call;
        let caller = tunnel::wanted(&mut request);
        let asked_type = request.headers().get(CONTENT_TYPE).cloned();
        let request = self.onward(request, caller.is_some(), &upload).await?;
        let mut response = self.upstream.send(request).await?;
        upload.answered();
        let tunnel = caller
            .filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS)
            .map(|caller| Tunnel::between(caller, &mut response));
        *response.version_mut() = Version::HTTP_11; // else hyper would answer an HTTP/1.1 caller in the tenant's HTTP/1.0
        finish_head(response.headers_mut(), tunnel.is_some(), asked_type, began);
        Ok(match tunnel {
            Some(tunnel) => Answer::Upgraded(response.map(|_| Body::empty()), tunnel),
            None => Answer::Plain(response.map(Body::stream)),
        })
    }

    /// The request as the tenant's server gets it.
    async fn onward(
        &self,
        request: Request<Arrival>,
        upgrade: bool,
        upload: &Upload,
    ) -> Result<Request<Inbound>, PlatformError> {
        let (mut parts, body) = request.into_parts();
        let h2c = self.speaks_h2c(&parts);
        self.readdress(&mut parts, h2c)?;
        hop::strip(&mut parts.headers, upgrade && !h2c);
        let body = match self.hold {
            Some(max) if !h2c && !upgrade => Inbound::full(collect(body, max, self.read_timeout, upload).await?),
            _ if is_grpc(&parts.headers) => Inbound::conversing(body),
            _ => Inbound::arriving(body, self.read_timeout, upload),
        };
        Ok(Request::from_parts(parts, body))
    }

    fn speaks_h2c(&self, request: &request::Parts) -> bool {
        match self.protocol {
            Protocol::H2c => true,
            Protocol::Http1 => false,
            Protocol::Auto => request.version == Version::HTTP_2 && is_grpc(&request.headers),
        }
    }

    /// HTTP/1.1 has a path and a `Host`, HTTP/2 an absolute URI.
    fn readdress(&self, parts: &mut request::Parts, h2c: bool) -> Result<(), PlatformError> {
        let invalid = |what: &str| error(Reason::BadRequest, format!("the request's {what} is not valid"));
        let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let path = format!("{}{path}", self.base).parse::<PathAndQuery>().map_err(|_| invalid("path"))?;
        let host = match parts.uri.authority() {
            Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
            None => parts.headers.get(HOST).cloned(),
        };
        let host = host.unwrap_or(HeaderValue::from_static("localhost"));
        let mut uri = http::uri::Parts::default();
        uri.path_and_query = Some(path);
        if h2c {
            uri.scheme = Some(Scheme::HTTP);
            uri.authority = Some(Authority::try_from(host.as_bytes()).map_err(|_| invalid("Host"))?);
            parts.headers.remove(HOST);
            parts.version = Version::HTTP_2;
        } else {
            parts.headers.insert(HOST, host);
            parts.version = Version::HTTP_11;
        }
        parts.uri = Uri::from_parts(uri).map_err(|_| invalid("address"))?;
        Ok(())
    }
}

/// Whether a message is one of gRPC.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// The content type is the answer's own, else the request's, else `text/plain`.
fn finish_head(headers: &mut HeaderMap, upgraded: bool, asked_type: Option<HeaderValue>, began: Instant) {
    hop::strip(headers, upgraded);
    if !headers.contains_key(CONTENT_TYPE) && !upgraded {
        headers.insert(CONTENT_TYPE, asked_type.unwrap_or(HeaderValue::from_static("text/plain")));
    }
    let took = format!("{:.6}", began.elapsed().as_secs_f64());
    headers.insert(X_DURATION_SECONDS, HeaderValue::from_str(&took).expect("digits and a point"));
}
