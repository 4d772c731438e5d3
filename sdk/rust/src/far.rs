//! Calls over HTTP, through the gateway: the way that is there everywhere.

use std::error::Error as _;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use nearpath_domain::clock;

use crate::ask::Ask;
use crate::context::Context;
use crate::error::{Error, Kind};
use crate::head::Head;
use crate::message::{Path, Response};

/// Largest answer that is taken, as through memory.
pub(crate) const LARGEST_BODY: usize = 64 << 20;
/// A connection that nobody has used for so long is closed: sooner than the gateway would.
const IDLE: Duration = Duration::from_secs(30);

/// Connections to the gateway.
#[derive(Debug)]
pub(crate) struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    gateway: String,
}

/// What the gateway does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It brings the answer.
    Sync,
    /// It accepts the call; nobody is told of the answer.
    Async,
}

impl Client {
    pub(crate) fn new(gateway: String) -> Self {
        let mut pool = Pool::builder(TokioExecutor::new());
        Self { pool: pool.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).build_http(), gateway }
    }

    /// Makes a call and waits for the answer.
    pub(crate) async fn call(
        &self,
        way: Way,
        name: &str,
        body: &Bytes,
        ask: &Ask,
        context: Context,
    ) -> Result<Response, Error> {
        let fault = |kind| Error::new(name, Some(Path::Http), kind);
        let request =
            self.request(way, name, body, ask, context).map_err(|why| fault(Kind::Unsent(why.to_string())))?;
        let answer = async {
            let answer = self.pool.request(request).await.map_err(broken)?;
            collect(answer).await
        };
        until(context.deadline, answer).await.map_err(fault)
    }

    fn request(
        &self,
        way: Way,
        name: &str,
        body: &Bytes,
        ask: &Ask,
        context: Context,
    ) -> Result<http::Request<Full<Bytes>>, http::Error> {
        let route = if way == Way::Sync { "function" } else { "async-function" };
        let path = ask.path.as_deref().filter(|path| *path != "/").unwrap_or_default();
        let slash = if path.is_empty() || path.starts_with(['/', '?']) { "" } else { "/" };
        let request = http::Request::builder()
            .method(ask.method.as_deref().unwrap_or("POST"))
            .uri(format!("{}/{route}/{name}{slash}{path}", self.gateway));
        let request = ask.head.iter().fold(request, |request, (name, value)| request.header(name, value));
        let trace = context.traceparent().filter(|_| ask.head.get("traceparent").is_none());
        let request = trace.into_iter().fold(request, |request, trace| request.header("traceparent", trace));
        request.body(Full::new(body.clone()))
    }
}

async fn until<T>(deadline: clock::Nanos, answer: impl Future<Output = Result<T, Kind>>) -> Result<T, Kind> {
    if deadline == 0 {
        return answer.await;
    }
    tokio::time::timeout(clock::until(deadline), answer).await.unwrap_or(Err(Kind::Timeout))
}

/// A connection that was never made, or a request that never began, has run nothing.
fn broken(error: hyper_util::client::legacy::Error) -> Kind {
    let cause = innermost(&error).to_string();
    let cancelled = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    if error.is_connect() || cancelled.is_some_and(hyper::Error::is_canceled) {
        Kind::Unsent(format!("the gateway cannot be reached: {cause}"))
    } else {
        Kind::Died(cause)
    }
}

fn innermost<'a>(mut error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error
}

async fn collect(answer: http::Response<Incoming>) -> Result<Response, Kind> {
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, LARGEST_BODY).collect().await.map_err(|error| {
        let large = error.is::<http_body_util::LengthLimitError>();
        if large { Kind::TooLarge(LARGEST_BODY) } else { Kind::Cut(error.to_string()) }
    })?;
    let body = body.to_bytes();
    let status = parts.status.as_u16();
    if let Some(reason) = parts.headers.get("x-nearpath-reason") {
        let reason = Some(String::from_utf8_lossy(reason.as_bytes()).into_owned());
        return Err(Kind::Platform { status, reason, text: String::from_utf8_lossy(&body).trim_end().to_owned() });
    }
    let mut head = Head::default();
    head.of_http(&parts.headers).map_err(|bad| Kind::Cut(bad.to_string()))?;
    Ok(Response::new(body).with_status(status).with_head(head).came_over(Path::Http, None))
}
