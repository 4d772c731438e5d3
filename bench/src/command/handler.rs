//! `handler`: the handler behind every gateway, with little work, so that the gateway dominates.
//! With `--next` it is a function of a chain: it calls the next one before it responds.

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

use super::BenchOutcome;

/// Response body of calls over HTTP.
const HTTP_RESPONSE: &[u8] =
    b"{\"message\":\"a small response of one hundred bytes, as a function gives it to its caller each time\"}\n";

/// Response body of calls through shared memory: as long as the other, but different, so that a
/// watchdog's response is distinguishable.
const SHM_RESPONSE: &[u8] =
    b"{\"message\":\"a small response of one hundred bytes, as a function gives it to its peers via memory\"}\n";

/// Options of `handler`.
#[derive(clap::Args)]
pub(crate) struct HandlerArgs {
    /// Listen at this address
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDR:PORT")]
    listen: SocketAddr,

    /// Call this address before the response
    #[arg(long, value_name = "ADDR:PORT")]
    next: Option<SocketAddr>,

    /// Call this function before the response to a call through shared memory
    #[arg(long, value_name = "NAME")]
    next_function: Option<FunctionId>,

    /// Work this number of microseconds on each call through shared memory
    #[arg(long, default_value_t = 0, value_name = "MICROS")]
    work: u64,
}

/// Serves until it is killed.
pub(crate) async fn run(args: HandlerArgs) -> BenchOutcome {
    tokio::task::LocalSet::new()
        .run_until(serve_http(args))
        .await
}

async fn serve_http(args: HandlerArgs) -> BenchOutcome {
    // Both servers on one thread: a function has one, and its CPU time stays comparable.
    tokio::task::spawn_local(super::shm_handler::serve_shm(
        args.next_function,
        Duration::from_micros(args.work),
        SHM_RESPONSE,
    ));
    let next = args.next.map(|addr| {
        Rc::new(NextFunction {
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
            accepted = listener.accept() => drop(tokio::task::spawn_local(serve_connection(accepted?.0, next.clone()))),
        }
    }
}

async fn serve_connection(stream: tokio::net::TcpStream, next: Option<Rc<NextFunction>>) {
    if stream.set_nodelay(true).is_err() {
        return; // it has gone
    }
    let service = service_fn(|request| answer_request(request, next.clone()));
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await; // a caller that breaks off is no news
}

async fn answer_request(
    request: Request<Incoming>,
    next: Option<Rc<NextFunction>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    // The body is read, or the connection could not be kept.
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::from(Bytes::from_static(HTTP_RESPONSE)));
    if let Some(next) = next
        && next.call_next().await.is_err()
    {
        *response.status_mut() = StatusCode::BAD_GATEWAY;
    }
    Ok(response)
}

/// The next function of the chain, over keep-alive connections.
struct NextFunction {
    addr: SocketAddr,
    idle: RefCell<Vec<SendRequest<Empty<Bytes>>>>,
}

impl NextFunction {
    async fn call_next(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        // Bound before the await: the borrow must not outlive it.
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
        // To the end, since hyper keeps a connection only after the whole body.
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
    fn the_responses_have_their_stated_length() {
        assert_eq!(
            (super::HTTP_RESPONSE.len(), super::SHM_RESPONSE.len()),
            (100, 100)
        );
    }
}
