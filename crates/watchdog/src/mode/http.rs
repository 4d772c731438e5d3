//! Mode `http`: the tenant's process is a server that runs all the time; requests are forwarded to
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, StatusCode, Uri, Version, request};
use nearpath_types::{PlatformError, Reason};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::tenant_body::TenantBody;
use super::{ModeCall, ModeResponse};
use crate::config::WatchdogConfig;
use crate::config::upstream_target::UpstreamProtocol;
use crate::errors::watchdog_error;
use crate::incoming_body::IncomingBody;
use crate::process_reports::ProcessReports;
use crate::request_body::{RequestBody, UploadState, collect_body};
use crate::response_body::WatchdogBody;
use crate::tunnel::{self, UpgradeTunnel};
use crate::upstream::{UpstreamClient, UpstreamPeer};
use nearpath_wire::hop::grpc::has_grpc_content;
use nearpath_wire::hop::headers::{strip_hop_headers, strip_platform_headers};

const X_DURATION_SECONDS: HeaderName = HeaderName::from_static("x-duration-seconds");

/// Readiness of the tenant's server; calls that come earlier wait for it.
#[derive(Debug, Default)]
pub(crate) struct ServerReadiness {
    set: AtomicBool,
    notify: Notify,
}

impl ServerReadiness {
    pub(crate) fn mark_ready(&self) {
        // Release pairs with the Acquire in `is_ready`.
        self.set.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    pub(crate) fn is_ready(&self) -> bool {
        // Acquire pairs with the Release in `mark_ready`: who sees the flag sees the start before
        // it.
        self.set.load(Ordering::Acquire)
    }

    async fn wait_ready(&self) {
        // Created before the check, because `notify_waiters` wakes only futures that exist.
        let notified = self.notify.notified();
        if !self.is_ready() {
            notified.await;
        }
    }
}

/// Mode `http`: forwards requests to the tenant's server.
#[derive(Debug)]
pub(crate) struct HttpMode {
    upstream: Arc<UpstreamClient>,
    base_path: String,
    protocol: UpstreamProtocol,
    read_timeout: Option<Duration>,
    /// Largest body to buffer, in bytes; `None`: bodies pass as they arrive.
    max_buffered_bytes: Option<usize>,
    pub(crate) readiness: Arc<ServerReadiness>,
    reports: ProcessReports,
}

impl HttpMode {
    /// `None` without an upstream, which the configuration demands for this mode.
    pub(crate) fn new(
        config: &WatchdogConfig,
        readiness: Arc<ServerReadiness>,
        reports: ProcessReports,
    ) -> Option<Self> {
        let target = config.upstream.clone()?;
        Some(Self {
            base_path: target.base_path.clone(),
            upstream: Arc::new(UpstreamClient::new(UpstreamPeer::Tenant, target.addrs)),
            protocol: config.upstream_protocol,
            read_timeout: config.read_timeout,
            max_buffered_bytes: config.buffer_request.then_some(config.max_body),
            readiness,
            reports,
        })
    }

    pub(super) fn close_idle_connections(&self) {
        self.upstream.close_idle_connections();
    }

    pub(crate) async fn handle_call(&self, call: ModeCall) -> Result<ModeResponse, PlatformError> {
        // Calls during the start wait instead of failing with a refused connection.
        self.readiness.wait_ready().await;
        let ModeCall {
            mut request,
            started_at,
            upload,
        } = call;
        let caller = tunnel::requested_upgrade(&mut request);
        let asked_type = request.headers().get(CONTENT_TYPE).cloned();
        let request = self
            .upstream_request(request, caller.is_some(), &upload)
            .await?;
        let oom_kills_before = self.reports.oom_kills();
        let sent = self.upstream.send_request(request).await;
        let mut response =
            sent.map_err(|fault| self.reports.explain_lost_server(fault, oom_kills_before))?;
        // From here on silence of the caller is part of the conversation.
        upload.mark_answered();
        let tunnel = caller
            .filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS)
            .map(|caller| UpgradeTunnel::from_response(caller, &mut response));
        if tunnel.is_none() && response.status().is_informational() {
            return Err(unfinal_response(response.status()));
        }
        *response.version_mut() = Version::HTTP_11; // else hyper would answer an HTTP/1.1 caller in the tenant's HTTP/1.0
        finish_head(
            response.headers_mut(),
            tunnel.is_some(),
            asked_type,
            started_at,
        );
        Ok(match tunnel {
            Some(tunnel) => ModeResponse::Upgraded(response.map(|_| WatchdogBody::empty()), tunnel),
            None => ModeResponse::Plain(
                response.map(|body| WatchdogBody::from_stream(TenantBody(body))),
            ),
        })
    }

    /// Converts the request for the tenant's server.
    async fn upstream_request(
        &self,
        request: Request<IncomingBody>,
        upgrade: bool,
        upload: &UploadState,
    ) -> Result<Request<RequestBody>, PlatformError> {
        let (mut parts, body) = request.into_parts();
        let h2c = self.uses_h2c(&parts);
        self.set_address(&mut parts, h2c)?;
        // HTTP/2 has no `Upgrade` header (RFC 9113 section 8.2.2).
        strip_hop_headers(&mut parts.headers, upgrade && !h2c);
        let body = match self.max_buffered_bytes {
            // h2c and upgrades are conversations, which a buffered request would stop.
            Some(max) if !h2c && !upgrade => {
                RequestBody::buffered(collect_body(body, max, self.read_timeout, upload).await?)
            }
            // gRPC callers may pause at will: their deadline is in the protocol.
            _ if has_grpc_content(&parts.headers) => RequestBody::unmonitored(body),
            _ => RequestBody::monitored(body, self.read_timeout, upload),
        };
        Ok(Request::from_parts(parts, body))
    }

    fn uses_h2c(&self, request: &request::Parts) -> bool {
        match self.protocol {
            UpstreamProtocol::H2c => true,
            UpstreamProtocol::Http1 => false,
            UpstreamProtocol::Auto => {
                request.version == Version::HTTP_2 && has_grpc_content(&request.headers)
            }
        }
    }

    /// Sets path and authority: HTTP/1.1 takes a path and `Host`, HTTP/2 an absolute URI.
    fn set_address(&self, parts: &mut request::Parts, h2c: bool) -> Result<(), PlatformError> {
        let invalid = |what: &str| {
            watchdog_error(
                Reason::BadRequest,
                format!("the request's {what} is not valid"),
            )
        };
        let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let path = format!("{}{path}", self.base_path)
            .parse::<PathAndQuery>()
            .map_err(|_| invalid("path"))?;
        // The caller's name for the host goes on, for servers with several sites.
        let host = match parts.uri.authority() {
            Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
            None => parts.headers.get(HOST).cloned(),
        };
        let host = host.unwrap_or(HeaderValue::from_static("localhost"));
        let mut uri = http::uri::Parts::default();
        uri.path_and_query = Some(path);
        if h2c {
            uri.scheme = Some(Scheme::HTTP);
            uri.authority =
                Some(Authority::try_from(host.as_bytes()).map_err(|_| invalid("Host"))?);
            // HTTP/2 has `:authority` in its place (RFC 9113 section 8.3.1).
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

/// Returns the error for an informational status without a request for it. The connection ends with
/// it: what follows would be taken for the response to the next request.
fn unfinal_response(status: StatusCode) -> PlatformError {
    watchdog_error(
        Reason::InstanceDied,
        format!(
            "the function answered with status {status}, which ends no request (RFC 9110 section 15.2)"
        ),
    )
}

/// Completes the head of a response. The content type is its own, else the request's, else
/// `text/plain`.
fn finish_head(
    headers: &mut HeaderMap,
    upgraded: bool,
    asked_type: Option<HeaderValue>,
    started_at: Instant,
) {
    strip_hop_headers(headers, upgraded);
    strip_platform_headers(headers);
    // of-watchdog's rule, which functions without a content type rely on.
    if !headers.contains_key(CONTENT_TYPE) && !upgraded {
        headers.insert(
            CONTENT_TYPE,
            asked_type.unwrap_or(HeaderValue::from_static("text/plain")),
        );
    }
    let took = format!("{:.6}", started_at.elapsed().as_secs_f64());
    headers.insert(
        X_DURATION_SECONDS,
        HeaderValue::from_str(&took).expect("digits and a point"),
    );
}
