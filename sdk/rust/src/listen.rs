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
use nearpath_domain::post::Payload;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::answer::Answer;
use crate::body::{OverHttp, Source};
use crate::context::{CONTEXT, Context};
use crate::far::LARGEST_BODY;
use crate::head::Head;
use crate::message::{Path, Request, Response};
use crate::server::{Handler, Service};

/// A pause when the system has no descriptor left for a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// A body that goes out.
type Outgoing = Either<Full<Bytes>, OverHttp>;

pub(crate) async fn accept<H: Handler>(listener: TcpListener, service: Rc<Service<H>>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let _ = stream.set_nodelay(true); // a matter of speed only
        spawn_local(converse(stream, Rc::clone(&service)));
    }
}

/// Until the other side hangs up, or the function stops: then the request that is under way is the last one.
async fn converse<H: Handler>(stream: TcpStream, service: Rc<Service<H>>) {
    let _one = service.open.one();
    let answer = service_fn(|request| {
        let service = Rc::clone(&service);
        async move { Ok::<_, Infallible>(answer(request, &service).await) }
    });
    let connection = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), answer);
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return, // who hangs up in the middle needs no answer
        () = service.open.ending() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn answer<H: Handler>(request: http::Request<Incoming>, service: &Service<H>) -> http::Response<Outgoing> {
    let request = match read(request, service.streams).await {
        Ok(request) => request,
        Err(refusal) => return write(refusal).map(Either::Left),
    };
    let context = request.context;
    match CONTEXT.scope(context, service.handler.answer(request)).await {
        Answer::Whole(response) => write(response).map(Either::Left),
        Answer::Streaming(streaming) => {
            let body = OverHttp(streaming.body.within(context));
            write(streaming.response).map(|_| Either::Right(body))
        }
    }
}

async fn read(request: http::Request<Incoming>, streams: bool) -> Result<Request, Response> {
    let (parts, body) = request.into_parts();
    let mut head = Head::default();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let own =
        head.append(":method", parts.method.as_str().as_bytes()).and_then(|()| head.append(":path", path.as_bytes()));
    let read = own.and_then(|()| head.of_http(&parts.headers));
    read.map_err(|bad| Response::new(format!("{bad}\n")).with_status(431))?;
    let context = Context::default().traced(head.get("traceparent")).limited(head.get("x-timeout"));
    let request =
        Request { head, body: Payload::default(), rest: None, caller: None, event: false, path: Path::Http, context };
    if streams {
        return Ok(Request { rest: Some(Source::Far(body)), ..request });
    }
    let body = Limited::new(body, LARGEST_BODY).collect().await.map_err(|error| {
        let status = if error.is::<LengthLimitError>() { 413 } else { 400 };
        Response::new(format!("the request's body: {error}\n")).with_status(status)
    })?;
    Ok(Request { body: body.to_bytes().into(), ..request })
}

/// Fields that HTTP does not know are left out.
fn write(response: Response) -> http::Response<Full<Bytes>> {
    let mut out = http::Response::new(Full::default());
    *out.status_mut() = http::StatusCode::from_u16(response.status()).unwrap_or(http::StatusCode::BAD_GATEWAY);
    for (name, value) in response.head().iter() {
        let name = http::HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            out.headers_mut().append(name, value);
        }
    }
    *out.body_mut() = Full::new(response.into_body().into());
    out
}
