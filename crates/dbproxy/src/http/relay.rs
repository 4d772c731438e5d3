//! Relay of one request and its response.

use std::rc::Rc;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::backend::HttpBackend;
use super::cache_exchange::{self, HttpAnswer};
use super::exchange::ExchangeError;
use super::prefetch;
use super::request_body::HttpRequestBody;
use super::response_body::HttpResponseBody;
use super::session::HttpSession;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::UsedConnection;
use nearpath_connpool::pool::NoConnection;
use nearpath_wire::hop::headers::{strip_connection_headers, wants_upgrade};

/// Answers one request with the destination's response or an error of the adapter.
pub(super) async fn relay_request(
    session: Rc<HttpSession>,
    mut request: Request<Incoming>,
) -> Response<HttpResponseBody> {
    let leaves_http = wants_upgrade(request.method(), request.headers());
    // The upgrade is claimed before the request is taken apart: hyper keeps it in the extensions.
    let client = leaves_http.then(|| hyper::upgrade::on(&mut request));
    strip_connection_headers(request.headers_mut(), leaves_http);
    let request = outgoing_request(&session, request);
    match answer_request(&session, request).await {
        Ok(HttpAnswer::Stored(response)) => {
            response.map(|body| HttpResponseBody::Local(Full::new(body)))
        }
        Ok(HttpAnswer::Fetched(mut response, backend, response_end, body_copy)) => {
            let upgraded = is_upgraded(&response, leaves_http);
            strip_connection_headers(response.headers_mut(), upgraded);
            // The client's connection speaks 1.1, whatever version the destination used.
            *response.version_mut() = Version::HTTP_11;
            if let (true, Some(client)) = (upgraded, client) {
                let destination = hyper::upgrade::on(&mut response);
                let counters = Rc::clone(&session.context.upstream.counters);
                // The response ends here for the client. The tunnel runs after the server loop,
                // which has to give the socket back first.
                session.upgraded_tunnel.replace(Some(Box::pin(tunnel_bytes(
                    counters,
                    client,
                    destination,
                    backend,
                ))));
                return response.map(|_| HttpResponseBody::Local(Full::default()));
            }
            response
                .map(|body| HttpResponseBody::new(body, session, backend, response_end, body_copy))
        }
        Err(failed) => error_response(&session, &failed),
    }
}

/// Answers a request with a prefetched response, a stored one, or one of the destination.
async fn answer_request(
    session: &HttpSession,
    request: Request<HttpRequestBody>,
) -> Result<HttpAnswer, ExchangeError> {
    let (parts, body) = request.into_parts();
    if let Some(response) = prefetch::take_prefetched(session, &parts, body.is_end_stream()).await {
        return Ok(HttpAnswer::Stored(response));
    }
    let writes = !parts.method.is_safe();
    let answer = cache_exchange::exchange_cached(session, Request::from_parts(parts, body)).await;
    if writes {
        prefetch::invalidate(session); // what was read meanwhile may be older than that
    }
    answer
}

/// Returns whether the connection leaves HTTP after a response.
fn is_upgraded(response: &Response<Incoming>, wants_upgrade: bool) -> bool {
    wants_upgrade
        && (response.status() == StatusCode::SWITCHING_PROTOCOLS
            // CONNECT succeeds with any 2xx (RFC 9110 section 9.3.6), every other upgrade with 101
            // only.
            || response.status().is_success() && response.extensions().get::<OnUpgrade>().is_some())
}

fn outgoing_request(session: &HttpSession, request: Request<Incoming>) -> Request<HttpRequestBody> {
    let counters = session.context.upstream.counters.clone();
    request.map(|body| {
        if body.is_end_stream() {
            HttpRequestBody::Empty
        } else {
            HttpRequestBody::Body {
                body,
                gate: None,
                counters,
            }
        }
    })
}

/// Relays bytes both ways until both sides have closed.
async fn tunnel_bytes(
    counters: Rc<DestinationCounters>,
    client: OnUpgrade,
    destination: OnUpgrade,
    backend: UsedConnection<HttpBackend>,
) {
    counters.count_pin("Upgrade");
    let _permit = Rc::clone(&backend.connection.permit);
    // The sender is dropped and the permit stays: hyper ends its task, but the tunnel still counts
    // below `max`.
    drop(backend);
    let Ok((client, destination)) = tokio::try_join!(client, destination) else {
        return;
    };
    let (mut client, mut destination) = (TokioIo::new(client), TokioIo::new(destination));
    // A reset is a usual end of an upgraded connection, so the error is ignored.
    if let Ok((sent, received)) = tokio::io::copy_bidirectional(&mut client, &mut destination).await
    {
        DestinationCounters::increase(&counters.sent_bytes, sent);
        DestinationCounters::increase(&counters.received_bytes, received);
    }
}

/// Returns the adapter's own response where the destination gave none.
fn error_response(session: &HttpSession, failed: &ExchangeError) -> Response<HttpResponseBody> {
    let to = &session.context.upstream.destination.key.host_port;
    // 503 tells the caller that a retry may help, 502 that the destination is at fault (RFC 9110
    // section 15.6).
    let (status, text) = match failed {
        ExchangeError::NoConnection(error @ NoConnection::Exhausted { .. }) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{error} (egress max=)\n"),
        ),
        ExchangeError::NoConnection(error) => (StatusCode::BAD_GATEWAY, format!("{error}\n")),
        ExchangeError::Broken(error) => (
            StatusCode::BAD_GATEWAY,
            format!("{to} closed the connection before answering: {error}\n"),
        ),
    };
    let mut response = Response::new(HttpResponseBody::Local(Full::new(Bytes::from(text))));
    *response.status_mut() = status;
    response
}
