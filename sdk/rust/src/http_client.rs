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
use nearpath_path::Obstacle;
use tokio::sync::mpsc;

use crate::body_stream::{BodySource, BodyStream, MAX_BODY_BYTES, OwnStream};
use crate::call_options::CallOptions;
use crate::context::CallContext as Handed;
use crate::error::{Error, ErrorKind};
use crate::gateway_connector::{self, GatewayConnector};
use crate::handler_response::StreamingResponse;
use crate::head::HeaderFields;
use crate::message::{Path, Response};
use crate::path_header::{self, ReportedPath};

/// Idle timeout of a connection: shorter than the gateway's own.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections to the gateway.
#[derive(Debug)]
pub(crate) struct GatewayClient {
    pool: Pool<GatewayConnector, Either<Full<Bytes>, UploadBody>>,
    gateway: String,
}

/// Treatment of a call by the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GatewayMode {
    /// The gateway returns the answer. Holds the known obstacle to a nearer path.
    Sync(Obstacle),
    /// The gateway queues the call; no answer is returned.
    Async,
}

/// The most of the platform's text that is kept for people.
const MAX_ERROR_TEXT_BYTES: usize = 4096;

/// A body that is sent as its pieces come through a channel.
#[derive(Debug)]
pub(crate) struct UploadBody(mpsc::Receiver<UploadChunk>);

/// A piece of a body, or why there is no more.
pub(crate) type UploadChunk = Result<Bytes, String>;

impl UploadBody {
    /// Creates a body and the sender of its chunks.
    pub(crate) fn new() -> (mpsc::Sender<UploadChunk>, Self) {
        let (sender, pieces) = mpsc::channel(1);
        (sender, Self(pieces))
    }
}

impl hyper::body::Body for UploadBody {
    type Data = Bytes;
    type Error = String;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, String>>> {
        self.0
            .poll_recv(cx)
            .map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

impl GatewayClient {
    pub(crate) fn new(gateway: String) -> Self {
        let mut pool = Pool::builder(TokioExecutor::new());
        let pool = pool
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(gateway_connector::gateway_connector(&gateway));
        Self { pool, gateway }
    }

    /// Makes a call and waits for the answer.
    pub(crate) async fn call(
        &self,
        way: GatewayMode,
        name: &str,
        body: &Bytes,
        ask: &CallOptions,
        context: Handed,
    ) -> Result<Response, Error> {
        let fault = |kind| Error::new(name, Some(Path::Http), kind);
        let request = self
            .build_request(
                way,
                name,
                Either::Left(Full::new(body.clone())),
                ask,
                context,
            )
            .map_err(|why| fault(self.invalid_request(&why)))?;
        let answer = async {
            let answer = self.pool.request(request).await.map_err(request_failure)?;
            collect_response(answer, way).await
        };
        with_deadline(context.deadline, answer).await.map_err(fault)
    }

    /// Makes a call whose body goes as it comes, and waits for the beginning of the answer.
    pub(crate) async fn open_call(
        &self,
        name: &str,
        way: GatewayMode,
        upload: UploadBody,
        ask: &CallOptions,
        context: Handed,
    ) -> Result<(Response, Incoming), Error> {
        let fault = |kind| Error::new(name, Some(Path::Http), kind);
        let request = self.build_request(way, name, Either::Right(upload), ask, context);
        let request = request.map_err(|why| fault(self.invalid_request(&why)))?;
        let answer = async {
            let (parts, body) = self
                .pool
                .request(request)
                .await
                .map_err(request_failure)?
                .into_parts();
            match parts.headers.contains_key("x-nearpath-reason") {
                true => Err(platform_error(&parts, &platform_text(body).await)),
                false => Ok((response_head(parts, way)?, body)),
            }
        };
        with_deadline(context.deadline, answer).await.map_err(fault)
    }

    /// As [`GatewayClient::open_call`], with the body to be read.
    pub(crate) async fn stream_call(
        &self,
        name: &str,
        way: GatewayMode,
        upload: UploadBody,
        ask: &CallOptions,
        context: Handed,
    ) -> Result<StreamingResponse, Error> {
        let (response, incoming) = self.open_call(name, way, upload, ask, context).await?;
        let body = BodyStream::from_source(
            name,
            Path::Http,
            Bytes::new(),
            Some(BodySource::Http(incoming)),
        )
        .with_deadline(context.deadline);
        Ok(StreamingResponse { response, body })
    }

    /// Describes why a request could not be built.
    fn invalid_request(&self, why: &http::Error) -> ErrorKind {
        ErrorKind::Unsent(format!(
            "{why}: in the call's method or path, or in the gateway's URL, {}",
            self.gateway
        ))
    }

    fn build_request(
        &self,
        way: GatewayMode,
        name: &str,
        body: Either<Full<Bytes>, UploadBody>,
        ask: &CallOptions,
        context: Handed,
    ) -> Result<http::Request<Either<Full<Bytes>, UploadBody>>, http::Error> {
        let (route, asked) = match way {
            GatewayMode::Sync(_) => ("function", Some((path_header::FIELD, "?".to_owned()))),
            GatewayMode::Async => ("async-function", None),
        };
        let context = Handed {
            deadline: if way == GatewayMode::Async {
                0
            } else {
                context.deadline
            },
            ..context
        };
        let path = ask
            .path
            .as_deref()
            .filter(|path| *path != "/")
            .unwrap_or_default();
        let slash = if path.is_empty() || path.starts_with(['/', '?']) {
            ""
        } else {
            "/"
        };
        let request = http::Request::builder()
            .method(ask.method.as_deref().unwrap_or("POST"))
            .uri(format!("{}/{route}/{name}{slash}{path}", self.gateway));
        let request = ask.head.iter().fold(request, |request, (name, value)| {
            request.header(name, value)
        });
        let own = asked
            .into_iter()
            .chain(context.fields())
            .filter(|(name, _)| ask.head.get(name).is_none());
        own.fold(request, |request, (name, value)| {
            request.header(name, value)
        })
        .body(body)
    }
}

/// Hands a body over as its pieces come. Why it failed, if it did: then the request is aborted.
pub(crate) async fn write_upload(
    sender: mpsc::Sender<UploadChunk>,
    mut body: OwnStream,
) -> Result<(), String> {
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

async fn with_deadline<T>(
    deadline: clock::MonotonicNanos,
    answer: impl Future<Output = Result<T, ErrorKind>>,
) -> Result<T, ErrorKind> {
    if deadline == 0 {
        return answer.await;
    }
    tokio::time::timeout(clock::time_until(deadline), answer)
        .await
        .unwrap_or(Err(ErrorKind::Timeout))
}

/// A connection that was never made, or a request that never began, has run nothing.
fn request_failure(error: hyper_util::client::legacy::Error) -> ErrorKind {
    let cause = innermost_cause(&error);
    let cancelled = error
        .source()
        .and_then(|source| source.downcast_ref::<hyper::Error>());
    if error.is_connect() || cancelled.is_some_and(hyper::Error::is_canceled) {
        ErrorKind::Unsent(format!(
            "the gateway cannot be reached: {}",
            gateway_connector::explain_failure(cause)
        ))
    } else {
        ErrorKind::Died(cause.to_string())
    }
}

fn innermost_cause<'a>(
    mut error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error
}

async fn collect_response(
    answer: http::Response<Incoming>,
    way: GatewayMode,
) -> Result<Response, ErrorKind> {
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, MAX_BODY_BYTES)
        .collect()
        .await
        .map_err(|error| {
            let large = error.is::<http_body_util::LengthLimitError>();
            if large {
                ErrorKind::TooLarge(MAX_BODY_BYTES)
            } else {
                ErrorKind::Truncated(error.to_string())
            }
        })?;
    let body = body.to_bytes();
    match parts.headers.contains_key("x-nearpath-reason") {
        true => Err(platform_error(&parts, &body)),
        false => Ok(response_head(parts, way)?.with_body(body.into())),
    }
}

/// An answer without its body. The field that tells the way is about this call: who passes the answer on does not pass it on.
fn response_head(
    mut parts: http::response::Parts,
    way: GatewayMode,
) -> Result<Response, ErrorKind> {
    let told = parts.headers.remove(path_header::FIELD);
    let obstacle = if let GatewayMode::Sync(obstacle) = way {
        obstacle
    } else {
        Obstacle::CallerNoEndpoint
    };
    let told = ReportedPath::of(told.as_ref().map(http::HeaderValue::as_bytes), obstacle);
    let mut head = HeaderFields::default();
    head.append_http(&parts.headers)
        .map_err(|bad| ErrorKind::Truncated(bad.to_string()))?;
    let response = Response::new("")
        .with_status(parts.status.as_u16())
        .with_head(head)
        .with_path_report(told);
    Ok(response.with_length(content_length(&parts.headers)))
}

/// Bytes of the body, as its sender says.
fn content_length(fields: &http::HeaderMap) -> Option<u64> {
    fields
        .get(http::header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

/// An answer of the platform.
fn platform_error(parts: &http::response::Parts, text: &[u8]) -> ErrorKind {
    let reason = parts.headers.get("x-nearpath-reason");
    let reason = reason.map(|reason| String::from_utf8_lossy(reason.as_bytes()).into_owned());
    let text = String::from_utf8_lossy(text).trim_end().to_owned();
    ErrorKind::Platform {
        status: parts.status.as_u16(),
        reason,
        text,
    }
}

/// Reads the platform's text, for display.
async fn platform_text(body: Incoming) -> Bytes {
    Limited::new(body, MAX_ERROR_TEXT_BYTES)
        .collect()
        .await
        .map_or_else(|_| Bytes::new(), |text| text.to_bytes())
}
