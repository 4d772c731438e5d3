//! A request to the gateway, as it came: streams, upgrades and HTTP/2 included. The connection is made from this instance,
//! so the gateway knows the caller by its eIP.

use http::header::{HOST, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use nearpath_types::PlatformError;

use crate::hop_headers;
use crate::request_body::RequestBody;
use crate::response_body::WatchdogBody;
use crate::tunnel::{self, UpgradeTunnel};
use crate::upstream::UpstreamClient;

/// What an HTTP/2 request's authority is when it has none.
const DEFAULT_AUTHORITY: Authority = Authority::from_static("gateway");

pub(super) async fn forward_request(
    gateway: &UpstreamClient,
    mut request: Request<RequestBody>,
) -> Result<Response<WatchdogBody>, PlatformError> {
    let caller_upgrade = tunnel::requested_upgrade(&mut request);
    hop_headers::strip_hop_headers(request.headers_mut(), caller_upgrade.is_some());
    set_address(&mut request);
    let mut response = gateway.send_request(request).await?;
    let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    hop_headers::strip_hop_headers(response.headers_mut(), upgraded);
    *response.version_mut() = Version::HTTP_11; // hyper writes it in the caller's own
    if let Some(caller) = caller_upgrade.filter(|_| upgraded) {
        let tunnel = UpgradeTunnel::from_response(caller, &mut response);
        tokio::spawn(tunnel.copy_bytes());
        return Ok(response.map(|_| WatchdogBody::empty()));
    }
    Ok(response)
}

/// HTTP/1.1 has a path and a `EgressHost`, HTTP/2 an absolute URI.
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
    } else {
        *request.version_mut() = Version::HTTP_11;
        let host = from
            .authority
            .as_ref()
            .and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        let host = host.unwrap_or(HeaderValue::from_static("gateway"));
        request.headers_mut().entry(HOST).or_insert(host);
    }
    *request.uri_mut() = Uri::from_parts(to).expect("a path alone, or all three parts, make a URI");
}
