//! HTTP/1.1 connections of a client.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::tally::RequestFailure;

/// Time limit for a request; a slower one counts as failed.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// An open connection. Dropping it closes it.
pub(crate) struct LoadConnection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

/// A complete response.
pub(crate) struct LoadResponse {
    pub(crate) status: StatusCode,
    /// The platform's reason for an error (`X-Nearpath-Reason`); empty without one.
    pub(crate) reason: String,
    /// The path of the call (`X-Nearpath-Path`); empty if it is not reported.
    pub(crate) path: String,
    pub(crate) body: Bytes,
}

impl LoadResponse {
    /// Returns the response if its status is a success.
    pub(crate) fn require_success(self) -> Result<Self, RequestFailure> {
        match self.status.is_success() {
            true => Ok(self),
            false => Err(RequestFailure::Status(self.status.as_u16(), self.reason)),
        }
    }
}

impl LoadConnection {
    pub(crate) async fn open(addr: SocketAddr) -> Result<Self, RequestFailure> {
        let stream = TcpStream::connect(addr)
            .await
            .map_err(|_| RequestFailure::Connect)?;
        Self::over(stream).await
    }

    /// Starts HTTP on a stream.
    pub(crate) async fn over(stream: TcpStream) -> Result<Self, RequestFailure> {
        stream
            .set_nodelay(true)
            .map_err(|_| RequestFailure::Connect)?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|_| RequestFailure::Connect)?;
        // hyper's connection makes progress only while its future is polled.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, driver })
    }

    /// Returns whether another request may be sent.
    pub(crate) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends a request and returns its whole response, with any status.
    pub(crate) async fn send_request(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<LoadResponse, RequestFailure> {
        tokio::time::timeout(REQUEST_TIMEOUT, self.exchange(request))
            .await
            .unwrap_or(Err(RequestFailure::Timeout))
    }

    async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<LoadResponse, RequestFailure> {
        self.sender
            // hyper wants readiness before each request: after an answer with a body it comes a
            // moment later.
            .ready()
            .await
            .map_err(|_| RequestFailure::Broken)?;
        let response = self
            .sender
            .send_request(request)
            .await
            .map_err(|_| RequestFailure::Broken)?;
        let (head, body) = response.into_parts();
        let header_value = |name| {
            head.headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let (reason, path) = (
            header_value("x-nearpath-reason"),
            header_value("x-nearpath-path"),
        );
        let body = body
            .collect()
            .await
            .map_err(|_| RequestFailure::Broken)?
            .to_bytes();
        Ok(LoadResponse {
            status: head.status,
            reason,
            path,
            body,
        })
    }
}

impl Drop for LoadConnection {
    fn drop(&mut self) {
        // Dropping the sender alone would let the driver wait for the server's close.
        self.driver.abort();
    }
}

/// Sends a request on a new connection.
pub(crate) async fn send_once(
    addr: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<LoadResponse, RequestFailure> {
    LoadConnection::open(addr)
        .await?
        .send_request(request)
        .await
}
