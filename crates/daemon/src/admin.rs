//! The admin port: `/metrics` and `/healthz`. It is separate from the public port so that neither
//! can starve the other, and callers cannot read metrics.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nearpath_types::exposition::MetricsFormat;
use nearpath_types::log_limiter::LogLimiter;

use crate::drain::DrainWatch;
use crate::metrics::MetricsRegistry;
use crate::ready::ProcessReadiness;

/// Bytes of a request body that are read and dropped. No path takes a body.
const MAX_DROPPED_BYTES: usize = 64 * 1024 * 1024;
/// Time for a request body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP server of the admin port.
#[derive(Debug, Clone)]
pub struct AdminServer {
    /// Metrics for `/metrics`.
    pub registry: MetricsRegistry,
    /// Readiness for `/healthz`.
    pub readiness: ProcessReadiness,
}

impl AdminServer {
    /// Serves on `listener` until the drain begins. Needs a running runtime.
    ///
    /// # Errors
    /// When the listener cannot be made non-blocking or registered.
    pub fn serve(self, listener: TcpListener, drain: DrainWatch) -> io::Result<()> {
        // tokio expects a non-blocking listener and does not set the mode.
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::spawn(async move {
            tokio::select! {
                () = self.accept_all(listener) => {}
                () = drain.signaled() => {}
            }
        });
        Ok(())
    }

    async fn accept_all(self, listener: tokio::net::TcpListener) {
        let mut log_lines = LogLimiter::default();
        loop {
            match listener.accept().await {
                // A task per connection: a slow scraper must not block health checks.
                Ok((stream, _)) => drop(tokio::spawn(self.clone().serve_connection(stream))),
                Err(error) => {
                    if let Some(suppressed) = log_lines.take_due(error.kind(), Instant::now()) {
                        tracing::warn!(%error, suppressed, "admin port: accept failed, retrying");
                    }
                    // Usually out of file descriptors, which a tight loop would not cure.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn serve_connection(self, stream: tokio::net::TcpStream) {
        let service = service_fn(move |request: Request<Incoming>| {
            let admin = self.clone();
            async move {
                let (head, body) = request.into_parts();
                drop_body(body).await;
                Ok::<_, Infallible>(admin.answer_request(&Request::from_parts(head, ())))
            }
        });
        // The timer enables hyper's default timeout for request headers (30 s).
        let http = http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = http.await {
            tracing::debug!(%error, "admin port: connection ended");
        }
    }

    fn answer_request<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let read = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            "/metrics" | "/healthz" if !read => {
                let text = "only GET and HEAD\n".into();
                let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, text);
                let allowed = http::HeaderValue::from_static("GET, HEAD");
                response.headers_mut().insert(header::ALLOW, allowed);
                response
            }
            "/metrics" => self.metrics_response(request.headers().get(header::ACCEPT)),
            "/healthz" => self.health_response(),
            _ => text_response(
                StatusCode::NOT_FOUND,
                "not found: this port serves /metrics and /healthz\n".into(),
            ),
        }
    }

    fn metrics_response(&self, accept: Option<&http::HeaderValue>) -> Response<Full<Bytes>> {
        let format = MetricsFormat::negotiate(accept.map(http::HeaderValue::as_bytes));
        let text = format.convert(self.registry.encode());
        typed_response(StatusCode::OK, format.content_type(), text)
    }

    fn health_response(&self) -> Response<Full<Bytes>> {
        match self.readiness.waiting_for().as_slice() {
            [] => text_response(StatusCode::OK, "OK\n".into()),
            parts => text_response(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("waiting for: {}\n", parts.join(", ")),
            ),
        }
    }
}

/// Reads a body to its end, so that its sender reads the response: a close with unread bytes resets
/// the connection (RFC 9112 section 9.6).
async fn drop_body(body: Incoming) {
    let mut body = pin!(Limited::new(body, MAX_DROPPED_BYTES));
    let ended = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(BODY_TIMEOUT, ended).await;
}

fn text_response(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    typed_response(status, "text/plain; charset=utf-8", body)
}

fn typed_response(
    status: StatusCode,
    content_type: &'static str,
    body: String,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        http::HeaderValue::from_static(content_type),
    );
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn a_plain_client_gets_the_text_format_and_a_wrong_method_the_right_ones() {
        let admin = AdminServer {
            registry: MetricsRegistry::default(),
            readiness: ProcessReadiness::default(),
        };
        let header = |method, accept, name| {
            let request = Request::builder().method(method).uri("/metrics");
            let request = request.header(header::ACCEPT, accept).body(()).unwrap();
            admin.answer_request(&request).headers()[name].clone()
        };
        let content_type = |accept| header(Method::GET, accept, header::CONTENT_TYPE);
        assert_eq!(
            content_type("*/*"),
            "text/plain; version=0.0.4; charset=utf-8"
        );
        let openmetrics = "application/openmetrics-text; version=1.0.0";
        assert!(
            content_type(openmetrics)
                .to_str()
                .unwrap()
                .starts_with(openmetrics)
        );
        assert_eq!(header(Method::POST, "*/*", header::ALLOW), "GET, HEAD");
    }

    fn request_status(admin: &AdminServer, method: Method, path: &str) -> StatusCode {
        admin
            .answer_request(
                &Request::builder()
                    .method(method)
                    .uri(path)
                    .body(())
                    .unwrap(),
            )
            .status()
    }

    #[tokio::test]
    async fn a_client_that_sends_a_long_body_gets_its_response() {
        const BODY_BYTES: usize = 32 * 1024 * 1024;
        let admin = AdminServer {
            registry: MetricsRegistry::default(),
            readiness: ProcessReadiness::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (_drain, watch) = crate::drain::channel();
        admin.serve(listener, watch).unwrap();
        let exchange = async {
            let mut stream = tokio::net::TcpStream::connect(addr).await?;
            let head = format!(
                "POST /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {BODY_BYTES}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&vec![b'x'; BODY_BYTES]).await?;
            let mut response = String::new();
            stream.read_to_string(&mut response).await?;
            io::Result::Ok(response)
        };
        let response = tokio::time::timeout(Duration::from_secs(60), exchange).await;
        let response = response.expect("the port answers").unwrap();
        assert!(response.starts_with("HTTP/1.1 405 "), "{response}");
        assert!(response.ends_with("only GET and HEAD\n"), "{response}");
    }

    #[test]
    fn health_follows_readiness() {
        let admin = AdminServer {
            registry: MetricsRegistry::default(),
            readiness: ProcessReadiness::default(),
        };
        let pending = admin.readiness.add_pending("store");
        assert_eq!(
            request_status(&admin, Method::GET, "/healthz"),
            StatusCode::SERVICE_UNAVAILABLE
        );
        drop(pending);
        assert_eq!(
            request_status(&admin, Method::GET, "/healthz"),
            StatusCode::OK
        );
        assert_eq!(
            request_status(&admin, Method::GET, "/metrics"),
            StatusCode::OK
        );
        assert_eq!(
            request_status(&admin, Method::POST, "/metrics"),
            StatusCode::METHOD_NOT_ALLOWED
        );
        assert_eq!(
            request_status(&admin, Method::GET, "/system/functions"),
            StatusCode::NOT_FOUND
        );
    }
}
