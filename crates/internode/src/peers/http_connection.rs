//! HTTP/1.1 connection to another node.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use nearpath_types::NodeName;

use super::abort_on_drop::AbortOnDrop;
use super::dialer::{DialedStream, NodeDialError, NodeDialer};
use crate::protocol::STREAM_PROTOCOL;

/// Maximum bytes of a refusal's text.
const MAX_TEXT_BYTES: usize = 4 * 1024;

/// Node, and the address that was resolved for this attempt.
#[derive(Clone)]
pub(super) struct PeerTarget {
    pub(super) node: NodeName,
    pub(super) addr: SocketAddr,
    pub(super) dialer: Arc<dyn NodeDialer>,
}

/// Failure of a connection or of a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error(transparent)]
    Dial(#[from] NodeDialError),
    #[error("HTTP: {0}")]
    Http(#[from] hyper::Error),
    #[error("it responds with status {0}: expected 200")]
    Status(StatusCode),
    #[error("invalid request: {0}")]
    Request(#[from] http::Error),
    #[error("status {status}: {text}")]
    Refused { status: StatusCode, text: String },
    #[error("it went down")]
    Lost,
}

/// Open connection for one request at a time.
pub(super) struct HttpConnection {
    requests: SendRequest<Empty<Bytes>>,
    host: String,
    _driver: AbortOnDrop,
}

impl HttpConnection {
    pub(super) async fn open(target: &PeerTarget) -> Result<Self, RequestError> {
        let stream = target.dialer.dial(&target.node, target.addr).await?;
        let (requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Its result is that of the requests.
        let driver = AbortOnDrop::spawn(async { drop(connection.with_upgrades().await) });
        Ok(Self {
            requests,
            host: target.node.to_string(),
            _driver: driver,
        })
    }

    /// Sends a GET request and returns the response if it is a success.
    pub(super) async fn get(&mut self, path: &str) -> Result<Response<Incoming>, RequestError> {
        let request = Request::get(path).header(header::HOST, &self.host);
        self.requests.ready().await?;
        let response = self
            .requests
            .send_request(request.body(Empty::new())?)
            .await?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => Err(RequestError::Status(status)),
        }
    }

    /// Asks for an upgrade to [`STREAM_PROTOCOL`], and returns the connection after it.
    pub(super) async fn upgrade(
        mut self,
        path: &str,
    ) -> Result<impl DialedStream + use<>, RequestError> {
        let request = Request::get(path)
            .header(header::HOST, &self.host)
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, STREAM_PROTOCOL);
        self.requests.ready().await?;
        let response = self.requests.send_request(request.body(Empty::new())?);
        let response = response.await?;
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS => {
                // Awaited while the driver lives, which gives the connection away.
                Ok(TokioIo::new(hyper::upgrade::on(response).await?))
            }
            status => {
                let text = read_text(response.into_body()).await;
                Err(RequestError::Refused { status, text })
            }
        }
    }
}

/// Reads the text of a refusal, for a log line.
async fn read_text(body: Incoming) -> String {
    let read = Limited::new(body, MAX_TEXT_BYTES).collect().await;
    let bytes = read.map(|body| body.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    // Another node's text must not make lines of its own.
    text.trim().replace(char::is_control, " ")
}
