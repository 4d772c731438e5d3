//! The tenant's code of every worker: a POST returns its body, GET `/N` returns N bytes.

use std::net::SocketAddr;
use std::process::ExitCode;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use super::{BenchError, port};

/// Largest response to a GET.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// Options of `quic-handler`.
#[derive(clap::Args)]
pub(crate) struct QuicHandlerArgs {
    /// Listening address
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
}

/// Serves until it is killed; prints `ready` when it serves.
pub(crate) async fn run(args: QuicHandlerArgs) -> Result<ExitCode, BenchError> {
    let listener = port::listen_on(args.listen)?;
    println!("ready");
    // Allocated once: an answer is a slice of it and costs no copy here.
    let content = Bytes::from(vec![b'x'; MAX_RESPONSE_BYTES]);
    let serving = port::serve_port(listener, port::PortProtocol::Plain, move |request| {
        handle_request(request, content.clone())
    });
    tokio::task::LocalSet::new().run_until(serving).await;
    Ok(ExitCode::FAILURE)
}

async fn handle_request(request: Request<Incoming>, content: Bytes) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let length = head
        .uri
        .path()
        .trim_start_matches('/')
        .parse()
        .unwrap_or(0)
        // A larger request would panic in `slice`.
        .min(content.len());
    match body.collect().await {
        Ok(body) if head.method == Method::POST => Response::new(Full::new(body.to_bytes())),
        Ok(_) => Response::new(Full::new(content.slice(..length))),
        Err(_) => {
            let mut broken = Response::new(Full::default());
            *broken.status_mut() = StatusCode::BAD_REQUEST;
            broken
        }
    }
}
