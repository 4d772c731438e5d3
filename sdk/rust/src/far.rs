//! Calls over HTTP, through the gateway: the way that is there everywhere.

use std::error::Error as _;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Frame, Incoming};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use nearpath_domain::clock;
use tokio::sync::mpsc;

use crate::answer::Streaming;
use crate::ask::Ask;
use crate::body::{Body, Own, Source};
use crate::context::Context as Handed;
use crate::dial::{self, Connector};
use crate::error::{Error, Kind};
use crate::head::Head;
use crate::message::{Path, Response};
use crate::way::{self, Told};

/// Largest answer that is taken, as through memory.
pub(crate) const LARGEST_BODY: usize = 64 << 20;
/// A connection that nobody has used for so long is closed: sooner than the gateway would.
const IDLE: Duration = Duration::from_secs(30);

/// Connections to the gateway.
#[derive(Debug)]
pub(crate) struct Client {
    pool: Pool<Connector, Either<Full<Bytes>, Upload>>,
    gateway: String,
}

/// What the gateway does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It brings the answer. What stood against a nearer path, as far as is known here.
    Sync(&'static str),
    /// It accepts the call; nobody is told of the answer.
    Async,
}

/// The most of the platform's text that is kept for people.
const LONGEST_TEXT: usize = 4096;

/// A body that is sent as its pieces come through a channel.
#[derive(Debug)]
pub(crate) struct Upload(mpsc::Receiver<Piece>);

/// A piece of a body, or why there is no more.
pub(crate) type Piece = Result<Bytes, String>;

impl Upload {
    /// With what hands the pieces over.
    pub(crate) fn new() -> (mpsc::Sender<Piece>, Self) {
        let (sender, pieces) = mpsc::channel(1);
        (sender, Self(pieces))
    }
}

impl hyper::body::Body for Upload {
    type Data = Bytes;
    type Error = String;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, String>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

impl Client {
    pub(crate) fn new(gateway: String) -> Self {
        let mut pool = Pool::builder(TokioExecutor::new());
        let pool = pool.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).build(dial::connector(&gateway));
        Self { pool, gateway }
    }

    /// Makes a call and waits for the answer.
    pub(crate) async fn call(
        &self,
        way: Way,
        name: &str,
        body: &Bytes,
        ask: &Ask,
        context: Handed,
    ) -> Result<Response, Error> {
        let fault = |kind| Error::new(name, Some(Path::Http), kind);
        let request = self
            .request(way, name, Either::Left(Full::new(body.clone())), ask, context)
            .map_err(|why| fault(self.unmade(&why)))?;
        let answer = async {
            let answer = self.pool.request(request).await.map_err(broken)?;
            collect(answer, way).await
        };
        until(context.deadline, answer).await.map_err(fault)
    }

    /// Makes a call whose body goes as it comes, and waits for the beginning of the answer.
    pub(crate) async fn open(
        &self,
        name: &str,
        way: Way,
        upload: Upload,
        ask: &Ask,
        context: Handed,
    ) -> Result<(Response, Incoming), Error> {
        let fault = |kind| Error::new(name, Some(Path::Http), kind);
        let request = self.request(way, name, Either::Right(upload), ask, context);
        let request = request.map_err(|why| fault(self.unmade(&why)))?;
        let answer = async {
            let (parts, body) = self.pool.request(request).await.map_err(broken)?.into_parts();
            match parts.headers.contains_key("x-nearpath-reason") {
                true => Err(refusal(&parts, &text(body).await)),
                false => Ok((beginning(parts, way)?, body)),
            }
        };
        until(context.deadline, answer).await.map_err(fault)
    }

    /// As [`Client::open`], with the body to be read.
    pub(crate) async fn stream(
        &self,
        name: &str,
        way: Way,
        upload: Upload,
        ask: &Ask,
        context: Handed,
    ) -> Result<Streaming, Error> {
        let (response, incoming) = self.open(name, way, upload, ask, context).await?;
        let body = Body::of(name, Path::Http, Bytes::new(), Some(Source::Far(incoming))).until(context.deadline);
        Ok(Streaming { response, body })
    }

    /// What is wrong with a request that cannot be written down.
    fn unmade(&self, why: &http::Error) -> Kind {
        Kind::Unsent(format!("{why}: in the call's method or path, or in the gateway's URL, {}", self.gateway))
    }

    fn request(
        &self,
        way: Way,
        name: &str,
        body: Either<Full<Bytes>, Upload>,
        ask: &Ask,
        context: Handed,
    ) -> Result<http::Request<Either<Full<Bytes>, Upload>>, http::Error> {
        let (route, asked) = match way {
            Way::Sync(_) => ("function", Some((way::FIELD, "?".to_owned()))),
            Way::Async => ("async-function", None),
        };
        let context = Handed { deadline: if way == Way::Async { 0 } else { context.deadline }, ..context };
        let path = ask.path.as_deref().filter(|path| *path != "/").unwrap_or_default();
        let slash = if path.is_empty() || path.starts_with(['/', '?']) { "" } else { "/" };
        let request = http::Request::builder()
            .method(ask.method.as_deref().unwrap_or("POST"))
            .uri(format!("{}/{route}/{name}{slash}{path}", self.gateway));
        let request = ask.head.iter().fold(request, |request, (name, value)| request.header(name, value));
        let own = asked.into_iter().chain(context.fields()).filter(|(name, _)| ask.head.get(name).is_none());
        own.fold(request, |request, (name, value)| request.header(name, value)).body(body)
    }
}

/// Hands a body over as its pieces come. Why it failed, if it did: then the request is broken off.
pub(crate) async fn write(sender: mpsc::Sender<Piece>, mut body: Own) -> Result<(), String> {
    use futures_util::StreamExt;
    while let Ok(room) = sender.reserve().await {
        match body.next().await {
            Some(Ok(piece)) => room.send(Ok(piece)),
            Some(Err(why)) => {
                room.send(Err(why.clone()));
                return Err(why);
            }
            None => break,
        }
    }
    Ok(())
}

async fn until<T>(deadline: clock::Nanos, answer: impl Future<Output = Result<T, Kind>>) -> Result<T, Kind> {
    if deadline == 0 {
        return answer.await;
    }
    tokio::time::timeout(clock::until(deadline), answer).await.unwrap_or(Err(Kind::Timeout))
}

/// A connection that was never made, or a request that never began, has run nothing.
fn broken(error: hyper_util::client::legacy::Error) -> Kind {
    let cause = innermost(&error);
    let cancelled = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    if error.is_connect() || cancelled.is_some_and(hyper::Error::is_canceled) {
        Kind::Unsent(format!("the gateway cannot be reached: {}", dial::explain(cause)))
    } else {
        Kind::Died(cause.to_string())
    }
}

fn innermost<'a>(mut error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error
}

async fn collect(answer: http::Response<Incoming>, way: Way) -> Result<Response, Kind> {
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, LARGEST_BODY).collect().await.map_err(|error| {
        let large = error.is::<http_body_util::LengthLimitError>();
        if large { Kind::TooLarge(LARGEST_BODY) } else { Kind::Cut(error.to_string()) }
    })?;
    let body = body.to_bytes();
    match parts.headers.contains_key("x-nearpath-reason") {
        true => Err(refusal(&parts, &body)),
        false => Ok(beginning(parts, way)?.with_body(body.into())),
    }
}

/// An answer without its body. The field that tells the way is about this call: who passes the answer on does not pass it on.
fn beginning(mut parts: http::response::Parts, way: Way) -> Result<Response, Kind> {
    let told = parts.headers.remove(way::FIELD);
    let obstacle = if let Way::Sync(obstacle) = way { obstacle } else { way::CALLER_NO_PARTY };
    let told = Told::of(told.as_ref().map(http::HeaderValue::as_bytes), obstacle);
    let mut head = Head::default();
    head.of_http(&parts.headers).map_err(|bad| Kind::Cut(bad.to_string()))?;
    let response = Response::new("").with_status(parts.status.as_u16()).with_head(head).came_over(told);
    Ok(response.of_length(length(&parts.headers)))
}

/// Bytes of the body, as its sender says.
fn length(fields: &http::HeaderMap) -> Option<u64> {
    fields.get(http::header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// An answer of the platform.
fn refusal(parts: &http::response::Parts, text: &[u8]) -> Kind {
    let reason = parts.headers.get("x-nearpath-reason");
    let reason = reason.map(|reason| String::from_utf8_lossy(reason.as_bytes()).into_owned());
    let text = String::from_utf8_lossy(text).trim_end().to_owned();
    Kind::Platform { status: parts.status.as_u16(), reason, text }
}

/// What the platform says, for people.
async fn text(body: Incoming) -> Bytes {
    Limited::new(body, LONGEST_TEXT).collect().await.map_or_else(|_| Bytes::new(), |text| text.to_bytes())
}
