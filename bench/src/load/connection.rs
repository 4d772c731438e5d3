//! One HTTP/1.1 connection of a client.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::tally::Failure;

/// How long a request may take before it counts as failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An open connection. Dropping it closes it.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

/// A complete answer.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The platform's reason for an error (`X-Nearpath-Reason`); empty when there is none.
    pub(crate) reason: String,
    /// The path that the call took (`X-Nearpath-Path`); empty when it is not told.
    pub(crate) path: String,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The answer, when its status says success.
    pub(crate) fn success(self) -> Result<Self, Failure> {
        match self.status.is_success() {
            true => Ok(self),
            false => Err(Failure::Status(self.status.as_u16(), self.reason)),
        }
    }
}

impl Connection {
    pub(crate) async fn open(addr: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(addr)
            .await
            .map_err(|_| Failure::Connect)?;
        stream.set_nodelay(true).map_err(|_| Failure::Connect)?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|_| Failure::Connect)?;
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, driver })
    }

    /// Whether another request may be tried on it.
    pub(crate) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// One request and its whole answer, whatever its status.
    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, Failure> {
        tokio::time::timeout(PATIENCE, self.exchange(request))
            .await
            .unwrap_or(Err(Failure::Timeout))
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, Failure> {
        self.sender.ready().await.map_err(|_| Failure::Broken)?;
        let response = self
            .sender
            .send_request(request)
            .await
            .map_err(|_| Failure::Broken)?;
        let (head, body) = response.into_parts();
        let told = |name| {
            head.headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let (reason, path) = (told("x-nearpath-reason"), told("x-nearpath-path"));
        let body = body
            .collect()
            .await
            .map_err(|_| Failure::Broken)?
            .to_bytes();
        Ok(Answer {
            status: head.status,
            reason,
            path,
            body,
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// One request on a connection of its own.
pub(crate) async fn once(
    addr: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<Answer, Failure> {
    Connection::open(addr).await?.ask(request).await
}
