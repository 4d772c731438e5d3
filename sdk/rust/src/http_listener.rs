//! Serves calls that arrive over HTTP instead of shared memory.

use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nearpath_domain::endpoint::CallBody;
use nearpath_types::platform_field::TOPIC_FIELD;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::body_stream::{BodySource, HttpBody, MAX_BODY_BYTES};
use crate::context::{CONTEXT, CallContext};
use crate::handler_response::HandlerResponse;
use crate::head::HeaderFields;
use crate::message::{Path, Request, Response};
use crate::server::{Handler, HandlerService};

/// Delay after a failed accept: without a free file descriptor, a retry fails again at once.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Body of a response: whole or streamed.
type OutgoingBody = Either<Full<Bytes>, HttpBody>;

/// Accepts connections until its task ends, and serves each in a task of its own.
pub(crate) async fn accept_connections<H: Handler>(
    listener: TcpListener,
    service: Rc<HandlerService<H>>,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            continue;
        };
        let _ = stream.set_nodelay(true); // affects only latency
        spawn_local(serve_connection(stream, Rc::clone(&service)));
    }
}

/// Serves requests until the client closes the connection or the function stops. A stop lets the open request finish.
async fn serve_connection<H: Handler>(stream: TcpStream, service: Rc<HandlerService<H>>) {
    // The stop of the function waits for open connections, at most for its drain grace.
    let _guard = service.open_work.acquire_guard();
    let http_service = service_fn(|request| {
        let service = Rc::clone(&service);
        async move { Ok::<_, Infallible>(handle_request(request, &service).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), http_service);
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return, // no response is possible after an error
        () = service.open_work.wait_for_stop() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn handle_request<H: Handler>(
    request: http::Request<Incoming>,
    service: &HandlerService<H>,
) -> http::Response<OutgoingBody> {
    let request = match read_request(request, service.is_streaming).await {
        Ok(request) => request,
        Err(refusal) => return http_response(refusal).map(Either::Left),
    };
    let context = request.context;
    match CONTEXT
        .scope(context, service.handler.handle(request))
        .await
    {
        HandlerResponse::Whole(response) => http_response(response).map(Either::Left),
        HandlerResponse::Streaming(streaming) => {
            let body = HttpBody(streaming.body.with_context(context));
            http_response(streaming.response).map(|_| Either::Right(body))
        }
    }
}

/// Reads a request, with its whole body unless the handler `streams`. Returns the response that refuses an invalid one.
async fn read_request(
    request: http::Request<Incoming>,
    streams: bool,
) -> Result<Request, Response> {
    let (parts, body) = request.into_parts();
    let mut head = HeaderFields::default();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let appended = head
        .append_field(":method", parts.method.as_str().as_bytes())
        .and_then(|()| head.append_field(":path", path.as_bytes()))
        .and_then(|()| head.append_http(&parts.headers));
    appended.map_err(|error| Response::new(format!("{error}\n")).with_status(431))?;
    // Set by the platform alone, for an event that could not come through memory.
    let topic = head.get(TOPIC_FIELD).map(<[u8]>::to_vec);
    if let Some(topic) = &topic {
        // It was part of the head, so there is room for it.
        let _ = head.append_field(":name", topic);
    }
    let context = CallContext::default()
        .with_traceparent(head.get("traceparent"))
        .with_timeout(head.get("x-timeout"));
    let request = Request {
        head,
        body: CallBody::default(),
        source: None,
        caller: None,
        is_event: topic.is_some(),
        path: Path::Http,
        context,
    };
    if streams {
        return Ok(Request {
            source: Some(BodySource::Http(body)),
            ..request
        });
    }
    let body = Limited::new(body, MAX_BODY_BYTES)
        .collect()
        .await
        .map_err(|error| {
            let status = if error.is::<LengthLimitError>() {
                413
            } else {
                400
            };
            Response::new(format!("the request's body: {error}\n")).with_status(status)
        })?;
    Ok(Request {
        body: body.to_bytes().into(),
        ..request
    })
}

/// Converts a response. Fields that HTTP does not permit are omitted, and an invalid status becomes 502.
fn http_response(response: Response) -> http::Response<Full<Bytes>> {
    let mut out = http::Response::new(Full::default());
    *out.status_mut() =
        http::StatusCode::from_u16(response.status()).unwrap_or(http::StatusCode::BAD_GATEWAY);
    for (name, value) in response.head().iter() {
        let name = http::HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            out.headers_mut().append(name, value);
        }
    }
    *out.body_mut() = Full::new(response.into_body().into());
    out
}
