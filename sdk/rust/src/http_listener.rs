//! Calls that come over HTTP.

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
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::body_stream::{BodySource, HttpBody, MAX_BODY_BYTES};
use crate::context::{CONTEXT, CallContext};
use crate::handler_response::HandlerResponse;
use crate::head::HeaderFields;
use crate::message::{Path, Request, Response};
use crate::server::{Handler, HandlerService};

/// A pause when the system has no descriptor left for a connection.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A body that goes out.
type OutgoingBody = Either<Full<Bytes>, HttpBody>;

pub(crate) async fn accept_connections<H: Handler>(
    listener: TcpListener,
    service: Rc<HandlerService<H>>,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            continue;
        };
        let _ = stream.set_nodelay(true); // a matter of speed only
        spawn_local(serve_connection(stream, Rc::clone(&service)));
    }
}

/// Until the other side hangs up, or the function stops: then the request that is under way is the last one.
async fn serve_connection<H: Handler>(stream: TcpStream, service: Rc<HandlerService<H>>) {
    let _one = service.open_work.start_one();
    let answer = service_fn(|request| {
        let service = Rc::clone(&service);
        async move { Ok::<_, Infallible>(handle_request(request, &service).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), answer);
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return, // who hangs up in the middle needs no answer
        () = service.open_work.wait_ending() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn handle_request<H: Handler>(
    request: http::Request<Incoming>,
    service: &HandlerService<H>,
) -> http::Response<OutgoingBody> {
    let request = match read_request(request, service.streams).await {
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

async fn read_request(
    request: http::Request<Incoming>,
    streams: bool,
) -> Result<Request, Response> {
    let (parts, body) = request.into_parts();
    let mut head = HeaderFields::default();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let own = head
        .append_field(":method", parts.method.as_str().as_bytes())
        .and_then(|()| head.append_field(":path", path.as_bytes()));
    let read = own.and_then(|()| head.append_http(&parts.headers));
    read.map_err(|bad| Response::new(format!("{bad}\n")).with_status(431))?;
    let context = CallContext::default()
        .with_traceparent(head.get("traceparent"))
        .with_timeout(head.get("x-timeout"));
    let request = Request {
        head,
        body: CallBody::default(),
        source: None,
        caller: None,
        is_event: false,
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

/// Fields that HTTP does not know are left out.
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
