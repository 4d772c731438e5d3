//! HTTP/1.1, for customers, for services that call each other so, and for the watchdog's question whether somebody is there.

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

use super::Shop;
use crate::Outcome;
use crate::words::{PASSED_ON, Problem, Request, Response};

/// Largest body of a request.
const LARGEST: usize = 1 << 20;

/// Serves until the process is told to stop.
pub(crate) async fn serve(listen: SocketAddr, shop: Rc<Shop>) -> Outcome {
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        spawn_local(connection(stream, shop.clone()));
    }
}

async fn connection(stream: TcpStream, shop: Rc<Shop>) {
    if stream.set_nodelay(true).is_err() {
        return; // it has gone
    }
    let service = service_fn(|request| answer(request, &shop));
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await; // who breaks off is no news
}

async fn answer(
    request: http::Request<Incoming>,
    shop: &Shop,
) -> Result<http::Response<Full<Bytes>>, Infallible> {
    let answer = match read(request, shop).await {
        Ok(request) => shop.answer(&request).await,
        Err(problem) => Err(problem),
    };
    Ok(written(answer.unwrap_or_else(Response::from)))
}

async fn read(request: http::Request<Incoming>, shop: &Shop) -> Result<Request, Problem> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, LARGEST).collect().await;
    let body = body
        .map_err(|error| Problem::wrong(format!("the body did not come: {error}")))?
        .to_bytes();
    let target = head
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str())
        .to_owned();
    Ok(Request {
        method: head.method,
        target,
        cookie: text(&head.headers, COOKIE.as_str()).to_owned(),
        html: text(&head.headers, ACCEPT.as_str()).contains("text/html"),
        passed: PASSED_ON
            .into_iter()
            .filter_map(|name| passed(&head.headers, name))
            .collect(),
        encoding: shop.encoding,
        body,
    })
}

/// A field's value; empty when it is not there or not text.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("")
}

fn passed(headers: &HeaderMap, name: &'static str) -> Option<(&'static str, String)> {
    Some(text(headers, name))
        .filter(|value| !value.is_empty())
        .map(|value| (name, value.to_owned()))
}

fn written(response: Response) -> http::Response<Full<Bytes>> {
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
