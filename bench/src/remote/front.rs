//! TLS over TCP instead of the watchdog, for callers without certificates: it terminates TLS and
//! forwards calls to the handler over keep-alive connections.
//!
//! The front does less per call than the watchdog (no limits, metrics or deadlines): a strong
//! baseline.

use std::cell::RefCell;
use std::io::Read;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use nearpath_wire::zero_rtt::Provision;

use super::port::{self, PortProtocol};
use super::{BenchError, tls};

/// Options of `quic-front`. Standard input has its credentials, as a provision.
#[derive(clap::Args)]
pub(crate) struct QuicFrontArgs {
    /// Address for callers
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,

    /// The handler
    #[arg(long, value_name = "ADDR:PORT")]
    upstream: SocketAddr,
}

type RequestSender = SendRequest<Incoming>;

/// Connections to the handler.
struct FrontUpstream {
    addr: SocketAddr,
    idle: RefCell<Vec<RequestSender>>,
}

/// Serves until it is killed; prints `ready` when it serves.
pub(crate) async fn run(args: QuicFrontArgs) -> Result<ExitCode, BenchError> {
    let mut frame = Vec::new();
    std::io::stdin().read_to_end(&mut frame)?;
    // The first four bytes are the frame's length.
    let provision = Provision::decode(frame.get(4..).unwrap_or_default())?;
    let upstream = Rc::new(FrontUpstream {
        addr: args.upstream,
        idle: RefCell::default(),
    });
    let handler = move |request| forward_request(Rc::clone(&upstream), request);
    let protocol = PortProtocol::Nameless(tls::callee_config(&provision)?.into());
    let serving = port::serve_port(port::listen_on(args.listen)?, protocol, handler);
    println!("ready");
    tokio::task::LocalSet::new().run_until(serving).await;
    Ok(ExitCode::FAILURE)
}

async fn forward_request(
    upstream: Rc<FrontUpstream>,
    request: Request<Incoming>,
) -> Response<BoxBody<Bytes, hyper::Error>> {
    match upstream.send_request(request).await {
        Ok(response) => response.map(BodyExt::boxed),
        Err(_) => {
            let mut broken = Response::new(Empty::new().map_err(|never| match never {}).boxed());
            *broken.status_mut() = StatusCode::BAD_GATEWAY;
            broken
        }
    }
}

impl FrontUpstream {
    async fn send_request(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Incoming>, BenchError> {
        let idle = self.take_ready();
        let mut sender = match idle {
            Some(sender) => sender,
            None => nearpath_wire::client::connect_http1(self.addr, Duration::from_secs(5)).await?,
        };
        let response = sender.send_request(request).await?;
        // Pushed before the body is read; `take_ready` skips it until then.
        self.idle.borrow_mut().push(sender);
        Ok(response)
    }

    /// Returns a connection whose last response is complete.
    fn take_ready(&self) -> Option<RequestSender> {
        let mut idle = self.idle.borrow_mut();
        // The last one: used most recently, so least likely to be closed.
        let place = idle.iter().rposition(SendRequest::is_ready)?;
        Some(idle.swap_remove(place))
    }
}
