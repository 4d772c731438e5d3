//! TLS over TCP in the watchdog's place, for callers who show no certificate: ends it, and passes calls on to the handler over kept
//! connections.
//!
//! It does less for a call than the watchdog (no limits, metrics or deadlines), so it is an able baseline.

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

use super::port::{self, Door};
use super::{Error, tls};

/// Options of `quic-front`. Credentials come by standard input, as a provision.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where callers come
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,

    /// The handler
    #[arg(long, value_name = "ADDR:PORT")]
    upstream: SocketAddr,
}

type Sender = SendRequest<Incoming>;

/// Connections to the handler.
struct Upstream {
    addr: SocketAddr,
    idle: RefCell<Vec<Sender>>,
}

/// Answers until it is killed; says `ready` when it does.
pub(crate) async fn run(args: Args) -> Result<ExitCode, Error> {
    let mut frame = Vec::new();
    std::io::stdin().read_to_end(&mut frame)?;
    let provision = Provision::decode(frame.get(4..).unwrap_or_default())?;
    let upstream = Rc::new(Upstream {
        addr: args.upstream,
        idle: RefCell::default(),
    });
    let handler = move |request| pass(Rc::clone(&upstream), request);
    let door = Door::Nameless(tls::callee(&provision)?.into());
    let serving = port::serve(port::listen(args.listen)?, door, handler);
    println!("ready");
    tokio::task::LocalSet::new().run_until(serving).await;
    Ok(ExitCode::FAILURE)
}

async fn pass(
    upstream: Rc<Upstream>,
    request: Request<Incoming>,
) -> Response<BoxBody<Bytes, hyper::Error>> {
    match upstream.ask(request).await {
        Ok(answer) => answer.map(BodyExt::boxed),
        Err(_) => {
            let mut broken = Response::new(Empty::new().map_err(|never| match never {}).boxed());
            *broken.status_mut() = StatusCode::BAD_GATEWAY;
            broken
        }
    }
}

impl Upstream {
    async fn ask(&self, request: Request<Incoming>) -> Result<Response<Incoming>, Error> {
        let idle = self.ready();
        let mut sender = match idle {
            Some(sender) => sender,
            None => nearpath_wire::client::connect_http1(self.addr, Duration::from_secs(5)).await?,
        };
        let answer = sender.send_request(request).await?;
        self.idle.borrow_mut().push(sender);
        Ok(answer)
    }

    /// A connection whose last answer has gone out as a whole.
    fn ready(&self) -> Option<Sender> {
        let mut idle = self.idle.borrow_mut();
        let place = idle.iter().rposition(SendRequest::is_ready)?;
        Some(idle.swap_remove(place))
    }
}
