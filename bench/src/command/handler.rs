//! `handler`: what both gateways stand in front of. Small, so that the gateway is what is measured.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::Outcome;

const RESPONSE: &[u8] =
    b"{\"message\":\"a small response of one hundred bytes, as a function gives it to its caller each time\"}\n";

/// Options of `handler`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDR:PORT")]
    listen: SocketAddr,
}

/// Answers until it is killed.
pub(crate) async fn run(args: Args) -> Outcome {
    let mut sockets = nearpath_wire::bind::bind(args.listen, 1)?;
    let listener = tokio::net::TcpListener::from_std(sockets.pop().ok_or("no socket")?)?;
    let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = end.recv() => return Ok(ExitCode::SUCCESS),
            accepted = listener.accept() => drop(tokio::spawn(connection(accepted?.0))),
        }
    }
}

async fn connection(stream: tokio::net::TcpStream) {
    if stream.set_nodelay(true).is_err() {
        return; // it has gone
    }
    let service = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
    let _ = service.await; // a caller that breaks off is no news
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let _ = request.into_body().collect().await;
    Ok(Response::new(Full::from(Bytes::from_static(RESPONSE))))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_response_is_as_long_as_it_says() {
        assert_eq!(super::RESPONSE.len(), 100);
    }
}
