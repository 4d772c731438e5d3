//! `handler`: what is behind every gateway. Small, so that the gateway is what is measured. With `--next` it is a function
//! in a chain: it asks the next one before it answers.

use std::cell::RefCell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_types::FunctionId;

use super::Outcome;

/// What calls over HTTP are answered.
const RESPONSE: &[u8] =
    b"{\"message\":\"a small response of one hundred bytes, as a function gives it to its caller each time\"}\n";

/// What calls through shared memory are answered: as long, and tells that no watchdog stood in for the function.
const RESPONSE_IN_MEMORY: &[u8] =
    b"{\"message\":\"a small response of one hundred bytes, as a function gives it to its peers via memory\"}\n";

/// Options of `handler`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDR:PORT")]
    listen: SocketAddr,

    /// Whom to ask before answering
    #[arg(long, value_name = "ADDR:PORT")]
    next: Option<SocketAddr>,

    /// Whom to ask before answering a call that came through shared memory
    #[arg(long, value_name = "NAME")]
    next_function: Option<FunctionId>,

    /// Microseconds of work on each call that came through shared memory
    #[arg(long, default_value_t = 0, value_name = "MICROS")]
    work: u64,
}

/// Answers until it is killed.
pub(crate) async fn run(args: Args) -> Outcome {
    tokio::task::LocalSet::new().run_until(serve(args)).await
}

async fn serve(args: Args) -> Outcome {
    tokio::task::spawn_local(super::shm_handler::serve(
        args.next_function,
        Duration::from_micros(args.work),
        RESPONSE_IN_MEMORY,
    ));
    let next = args.next.map(|addr| {
        Rc::new(Next {
            addr,
            idle: RefCell::default(),
        })
    });
    let mut sockets = nearpath_wire::sockets::bind_tcp(args.listen, 1)?;
    let listener = tokio::net::TcpListener::from_std(sockets.pop().ok_or("no socket")?)?;
    let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = end.recv() => return Ok(ExitCode::SUCCESS),
            accepted = listener.accept() => drop(tokio::task::spawn_local(connection(accepted?.0, next.clone()))),
        }
    }
}

async fn connection(stream: tokio::net::TcpStream, next: Option<Rc<Next>>) {
    if stream.set_nodelay(true).is_err() {
        return; // it has gone
    }
    let service = service_fn(|request| answer(request, next.clone()));
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await; // a caller that breaks off is no news
}

async fn answer(
    request: Request<Incoming>,
    next: Option<Rc<Next>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::from(Bytes::from_static(RESPONSE)));
    if let Some(next) = next
        && next.ask().await.is_err()
    {
        *response.status_mut() = StatusCode::BAD_GATEWAY;
    }
    Ok(response)
}

/// The next function of the chain, over kept connections.
struct Next {
    addr: SocketAddr,
    idle: RefCell<Vec<SendRequest<Empty<Bytes>>>>,
}

impl Next {
    async fn ask(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let idle = self.idle.borrow_mut().pop();
        let mut sender = match idle {
            Some(sender) => sender,
            None => nearpath_wire::client::connect_http1(self.addr, Duration::from_secs(5)).await?,
        };
        let request = Request::get("/")
            .header(http::header::HOST, "next")
            .body(Empty::new())?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        response.into_body().collect().await?;
        self.idle.borrow_mut().push(sender);
        if status.is_success() {
            Ok(())
        } else {
            Err(status.to_string().into())
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_responses_are_as_long_as_they_say() {
        assert_eq!(
            (super::RESPONSE.len(), super::RESPONSE_IN_MEMORY.len()),
            (100, 100)
        );
    }
}
