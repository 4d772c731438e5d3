//! Calls through the gateway, unchanged: streams, upgrades and HTTP/2 included. The connection is
//! made in this instance, so the gateway knows the caller by its eIP.

use http::header::{HOST, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use nearpath_types::PlatformError;

use crate::request_body::RequestBody;
use crate::response_body::WatchdogBody;
use crate::tunnel::{self, UpgradeTunnel};
use crate::upstream::UpstreamClient;
use nearpath_wire::hop::headers::strip_hop_headers;

/// Authority of an HTTP/2 request that has none.
const DEFAULT_AUTHORITY: Authority = Authority::from_static("gateway");

pub(super) async fn forward_request(
    gateway: &UpstreamClient,
    mut request: Request<RequestBody>,
) -> Result<Response<WatchdogBody>, PlatformError> {
    // Before the headers are stripped, because that removes the upgrade.
    let caller_upgrade = tunnel::requested_upgrade(&mut request);
    strip_hop_headers(request.headers_mut(), caller_upgrade.is_some());
    set_address(&mut request);
    let mut response = gateway.send_request(request).await?;
    let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    strip_hop_headers(response.headers_mut(), upgraded);
    *response.version_mut() = Version::HTTP_11; // hyper writes it in the caller's own
    if let Some(caller) = caller_upgrade.filter(|_| upgraded) {
        let tunnel = UpgradeTunnel::from_response(caller, &mut response);
        // In a task: the bytes flow only after the caller has its 101.
        tokio::spawn(tunnel.copy_bytes());
        return Ok(response.map(|_| WatchdogBody::empty()));
    }
    Ok(response)
}

/// Sets path and authority: HTTP/1.1 takes a path and `Host`, HTTP/2 an absolute URI.
fn set_address(request: &mut Request<RequestBody>) {
    let from = std::mem::take(request.uri_mut()).into_parts();
    let mut to = http::uri::Parts::default();
    to.path_and_query = Some(
        from.path_and_query
            .unwrap_or(PathAndQuery::from_static("/")),
    );
    if request.version() == Version::HTTP_2 {
        to.scheme = Some(Scheme::HTTP);
        to.authority = Some(from.authority.unwrap_or(DEFAULT_AUTHORITY));
        // The authority says the same.
        request.headers_mut().remove(HOST);
    } else {
        *request.version_mut() = Version::HTTP_11;
        // HTTP/1.0 may omit it.
        let host = HeaderValue::from_static("gateway");
        request.headers_mut().entry(HOST).or_insert(host);
    }
    *request.uri_mut() = Uri::from_parts(to).expect("a path alone, or all three parts, make a URI");
}
