//! Headers that the gateway would set on a request and its response, set here with the same
//! meaning.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use http::header::{ACCEPT, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, Version};
use nearpath_types::PlatformError;
use nearpath_types::direct::split_incarnation;
use tokio::time::Instant;
use uuid::Uuid;

use nearpath_wire::hop::headers::{
    append_forwarded_for, strip_hop_headers, strip_platform_headers,
};

use super::OutboundProxy;
use crate::errors;
use crate::response_body::WatchdogBody;
use nearpath_wire::hop::grpc::has_grpc_content;

const X_CALL_ID: HeaderName = HeaderName::from_static("x-call-id");
const X_START_TIME: HeaderName = HeaderName::from_static("x-start-time");
const X_SERVED_BY: HeaderName = HeaderName::from_static("x-served-by");
const X_DURATION_SECONDS: HeaderName = HeaderName::from_static("x-duration-seconds");
const X_NEARPATH_PATH: HeaderName = HeaderName::from_static("x-nearpath-path");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Path of a call, for the header that shows it.
pub(super) struct PathHeader {
    pub(super) path: &'static str,
    /// Name of the incarnation that was called on another node.
    pub(super) remote: Option<Rc<str>>,
}

impl PathHeader {
    /// Writes `quic`, or for another node `quic; node=b; instance=i5`. Where the gateway names a node
    /// without an instance, that node has delivered the call.
    fn to_value(&self) -> HeaderValue {
        let place = self.remote.as_deref().and_then(split_incarnation);
        let text = place
            .map(|(instance, node)| format!("{}; node={node}; instance={instance}", self.path));
        let value = text.and_then(|text| HeaderValue::try_from(text).ok());
        value.unwrap_or(HeaderValue::from_static(self.path))
    }
}

/// Properties of a request that its response needs.
#[derive(Debug)]
pub(super) struct OutboundContext {
    call_id: HeaderValue,
    start_time: HeaderValue,
    started_at: Instant,
    pub(super) is_head: bool,
    wants_path: bool,
    wants_json: bool,
    is_grpc: bool,
}

impl OutboundContext {
    pub(super) fn from_request<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        Self {
            call_id: headers.get(X_CALL_ID).cloned().unwrap_or_else(new_call_id),
            start_time: start_time_header(),
            started_at: Instant::now(),
            is_head: request.method() == Method::HEAD,
            wants_path: headers.contains_key(X_NEARPATH_PATH),
            wants_json: accept.is_some_and(|accept| accept.contains("application/json")),
            is_grpc: request.version() == Version::HTTP_2 && has_grpc_content(headers),
        }
    }

    /// Prepares the head for the function. If the gateway gets the request after all, it sets the
    /// same fields again.
    pub(super) fn prepare_request(&self, headers: &mut HeaderMap, proxy: &OutboundProxy) {
        strip_hop_headers(headers, false);
        strip_platform_headers(headers);
        headers.remove(EXPECT);
        if let Some(host) = headers.get(HOST).cloned() {
            headers.entry(X_FORWARDED_HOST).or_insert(host);
        }
        append_forwarded_for(headers, &proxy.forwarded_for);
        headers
            .entry(X_FORWARDED_PROTO)
            .or_insert(HeaderValue::from_static("http"));
        headers.insert(X_CALL_ID, self.call_id.clone());
        headers.insert(X_START_TIME, self.start_time.clone());
    }

    /// Returns the time since the request came.
    pub(super) fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Completes the head of a response that came by this path instead of the gateway's.
    pub(super) fn finish_response(
        &self,
        headers: &mut HeaderMap,
        proxy: &OutboundProxy,
        path: &PathHeader,
    ) {
        self.set_identity_headers(headers, proxy);
        let took = self.started_at.elapsed().as_secs_f64();
        let seconds = || HeaderValue::from_str(&format!("{took:.6}")).expect("digits and a point");
        headers.entry(X_DURATION_SECONDS).or_insert_with(seconds);
        if self.wants_path {
            headers.insert(X_NEARPATH_PATH, path.to_value());
        }
    }

    fn set_identity_headers(&self, headers: &mut HeaderMap, proxy: &OutboundProxy) {
        headers.insert(X_CALL_ID, self.call_id.clone());
        headers.insert(X_START_TIME, self.start_time.clone());
        headers.insert(X_SERVED_BY, proxy.served_by.clone());
    }

    /// Builds the response for an error in the format that the caller reads.
    pub(super) fn error_response(
        &self,
        proxy: &OutboundProxy,
        error: &PlatformError,
    ) -> Response<WatchdogBody> {
        let mut response = errors::error_response(error);
        response.headers_mut().insert(
            errors::X_OPENFAAS_INTERNAL,
            HeaderValue::from_static(error.component),
        );
        if self.wants_json {
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *response.body_mut() = WatchdogBody::from(error.to_json());
        }
        // Last: gRPC clients read neither the HTTP status nor the body.
        if self.is_grpc {
            response = errors::grpc_error_response(response, error);
        }
        self.set_identity_headers(response.headers_mut(), proxy);
        response
    }
}

fn new_call_id() -> HeaderValue {
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let text = Uuid::new_v4().hyphenated().encode_lower(&mut text);
    HeaderValue::from_str(text).expect("a UUID is ASCII")
}

fn start_time_header() -> HeaderValue {
    // Nanoseconds since the epoch, as OpenFaaS's gateway writes `X-Start-Time`.
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    HeaderValue::from(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
