//! The tenant's code behind every worker: a POST is answered with its body, GET `/N` with N bytes.

use std::net::SocketAddr;
use std::process::ExitCode;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use super::{Error, port};

/// Largest answer to a GET.
const LARGEST: usize = 16 << 20;

/// Options of `quic-handler`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
}

/// Answers until it is killed; says `ready` when it does.
pub(crate) async fn run(args: Args) -> Result<ExitCode, Error> {
    let listener = port::listen(args.listen)?;
    println!("ready");
    let content = Bytes::from(vec![b'x'; LARGEST]);
    let serving = port::serve(listener, port::Door::Plain, move |request| {
        answer(request, content.clone())
    });
    tokio::task::LocalSet::new().run_until(serving).await;
    Ok(ExitCode::FAILURE)
}

async fn answer(request: Request<Incoming>, content: Bytes) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let asked = head
        .uri
        .path()
        .trim_start_matches('/')
        .parse()
        .unwrap_or(0)
        .min(content.len());
    match body.collect().await {
        Ok(body) if head.method == Method::POST => Response::new(Full::new(body.to_bytes())),
        Ok(_) => Response::new(Full::new(content.slice(..asked))),
        Err(_) => {
            let mut broken = Response::new(Full::default());
            *broken.status_mut() = StatusCode::BAD_REQUEST;
            broken
        }
    }
}
