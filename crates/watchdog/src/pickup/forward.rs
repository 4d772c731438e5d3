//! A request to the gateway, as it came: streams, upgrades and HTTP/2 included. The connection is made from this instance,
//! so the gateway knows the caller by its eIP.

use http::header::{HOST, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use nearpath_types::PlatformError;

use crate::body::Body;
use crate::hop;
use crate::inbound::Inbound;
use crate::tunnel::{self, Tunnel};
use crate::upstream::Upstream;

/// What an HTTP/2 request's authority is when it has none.
const AUTHORITY: Authority = Authority::from_static("gateway");

pub(super) async fn forward(
    gateway: &Upstream,
    mut request: Request<Inbound>,
) -> Result<Response<Body>, PlatformError> {
    let caller = tunnel::wanted(&mut request);
    hop::strip(request.headers_mut(), caller.is_some());
    readdress(&mut request);
    let mut response = gateway.send(request).await?;
    let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    hop::strip(response.headers_mut(), upgraded);
    *response.version_mut() = Version::HTTP_11; // hyper writes it in the caller's own
    if let Some(caller) = caller.filter(|_| upgraded) {
        let tunnel = Tunnel::between(caller, &mut response);
        tokio::spawn(tunnel.pass());
        return Ok(response.map(|_| Body::empty()));
    }
    Ok(response)
}

/// HTTP/1.1 has a path and a `Host`, HTTP/2 an absolute URI.
fn readdress(request: &mut Request<Inbound>) {
    let from = std::mem::take(request.uri_mut()).into_parts();
    let mut to = http::uri::Parts::default();
    to.path_and_query = Some(from.path_and_query.unwrap_or(PathAndQuery::from_static("/")));
    if request.version() == Version::HTTP_2 {
        to.scheme = Some(Scheme::HTTP);
        to.authority = Some(from.authority.unwrap_or(AUTHORITY));
    } else {
        *request.version_mut() = Version::HTTP_11;
        let host = from.authority.as_ref().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        let host = host.unwrap_or(HeaderValue::from_static("gateway"));
        request.headers_mut().entry(HOST).or_insert(host);
    }
    *request.uri_mut() = Uri::from_parts(to).expect("a path alone, or all three parts, make a URI");
}
