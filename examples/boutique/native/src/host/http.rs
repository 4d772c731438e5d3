//! HTTP/1.1, for customers, for services that call each other so, and for the watchdog's question
//! whether somebody is there.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, COOKIE, HeaderMap, SET_COOKIE};
use http::{HeaderValue, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use super::ServiceServer;
use crate::ServiceResult;
use crate::message::{FORWARDED_HEADERS, ServiceError, ServiceRequest, ServiceResponse};

/// Largest body of a request.
const MAX_BODY_BYTES: usize = 1 << 20;

/// Serves until the process is told to stop.
pub(crate) async fn serve(listen: SocketAddr, shop: Rc<ServiceServer>) -> ServiceResult {
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        spawn_local(serve_connection(stream, shop.clone()));
    }
}

async fn serve_connection(stream: TcpStream, shop: Rc<ServiceServer>) {
    if stream.set_nodelay(true).is_err() {
        return; // it has gone
    }
    let service = service_fn(|request| answer_request(request, &shop));
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await; // who breaks off is no news
}

async fn answer_request(
    request: http::Request<Incoming>,
    shop: &ServiceServer,
) -> Result<http::Response<Full<Bytes>>, Infallible> {
    let answer = match read_request(request, shop).await {
        Ok(request) => shop.answer_request(&request).await,
        Err(problem) => Err(problem),
    };
    Ok(to_http(answer.unwrap_or_else(ServiceResponse::from)))
}

async fn read_request(
    request: http::Request<Incoming>,
    shop: &ServiceServer,
) -> Result<ServiceRequest, ServiceError> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, MAX_BODY_BYTES).collect().await;
    let body = body
        .map_err(|error| ServiceError::bad_request(format!("the body did not come: {error}")))?
        .to_bytes();
    let target = head
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str())
        .to_owned();
    Ok(ServiceRequest {
        method: head.method,
        target,
        cookie: header_text(&head.headers, COOKIE.as_str()).to_owned(),
        html: header_text(&head.headers, ACCEPT.as_str()).contains("text/html"),
        passed: FORWARDED_HEADERS
            .into_iter()
            .filter_map(|name| forwarded_header(&head.headers, name))
            .collect(),
        encoding: shop.encoding,
        body,
    })
}

/// A field's value; empty when it is not there or not text.
fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("")
}

fn forwarded_header(headers: &HeaderMap, name: &'static str) -> Option<(&'static str, String)> {
    Some(header_text(headers, name))
        .filter(|value| !value.is_empty())
        .map(|value| (name, value.to_owned()))
}

fn to_http(response: ServiceResponse) -> http::Response<Full<Bytes>> {
    let mut written = http::Response::new(Full::new(response.body));
    *written.status_mut() =
        StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    written.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static(response.content_type),
    );
    for cookie in response.cookies {
        if let Ok(value) = HeaderValue::try_from(cookie) {
            written.headers_mut().append(SET_COOKIE, value);
        }
    }
    written
}
