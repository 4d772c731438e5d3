//! Calls of the tenant's code to other functions, picked up inside the instance: `http://gateway:8080/function/NAME`.
//!
//! In an instance of a chain the name `gateway` means a loopback address that the watchdog listens on. What a declared edge
//! leads to, and the chain's memory can carry, goes there ([`ring`]); what leads to a function that is called over QUIC goes straight to
//! one of its instances ([`direct`]); anything else, and all that is in doubt, goes to the gateway itself, as it came
//! ([`forward`]): it refuses, wakes and queues, and knows the caller by its eIP as ever. The listener outlives the drain, because calls
//! that are being finished may still call others.

mod call_target;
mod direct;
mod forward;
mod identity;
mod ring;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::Builder;
use nearpath_path::Path;
use nearpath_types::{PlatformError, Reason};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use crate::arrival::Arrival;
use crate::body::Body;
use crate::config::premises;
use crate::edges::{Callee, Edges};
use crate::inbound::{Inbound, Upload, collect};
use crate::listen::{self, ACCEPT_PAUSE};
use crate::party::Membership;
use crate::refusal::error;
use crate::upstream::{Peer, Upstream};

use call_target::{CallTarget, MAX_HELD_BODY, is_held};
use forward::forward;

/// What every call needs.
#[derive(Debug)]
pub(crate) struct Pickup {
    membership: Membership,
    edges: Edges,
    gateway: Upstream,
    /// What the gateway would say of the caller.
    forwarded_for: HeaderValue,
    served_by: HeaderValue,
    /// Longest silence of the tenant's code inside a body.
    read_timeout: Option<Duration>,
}

impl Pickup {
    fn new(place: premises::Pickup, membership: Membership, edges: Edges, read_timeout: Option<Duration>) -> Self {
        let host = rustix::system::uname().nodename().to_bytes().to_owned();
        Self {
            membership,
            edges,
            gateway: Upstream::new(Peer::Gateway, vec![place.gateway]),
            forwarded_for: HeaderValue::from_str(&place.eip.to_string()).expect("an address is ASCII"),
            served_by: HeaderValue::from_bytes(&host).unwrap_or(HeaderValue::from_static("nearpath-watchdog")),
            read_timeout,
        }
    }
}

/// Opens the listener and serves it until the process ends.
///
/// # Errors
/// When the address is taken: the instance could call nobody.
pub(crate) fn start(
    place: premises::Pickup,
    membership: Membership,
    edges: Edges,
    read_timeout: Option<Duration>,
) -> io::Result<()> {
    let listener = listen::bind(place.listen, true)?;
    spawn_local(accept(listener, Rc::new(Pickup::new(place, membership, edges, read_timeout))));
    Ok(())
}

async fn accept(listener: TcpListener, pickup: Rc<Pickup>) {
    let http = Rc::new(listen::http(Local));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(spawn_local(connection(stream, Rc::clone(&http), Rc::clone(&pickup)))),
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Runs what hyper spawns on this thread.
#[derive(Debug, Clone, Copy)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, work: F) {
        spawn_local(async { drop(work.await) });
    }
}

async fn connection(stream: TcpStream, http: Rc<Builder<Local>>, pickup: Rc<Pickup>) {
    let _ = stream.set_nodelay(true); // a connection that is already gone shows it at the first read
    let service = service_fn(|request| {
        let pickup = Rc::clone(&pickup);
        async move { Ok::<_, Infallible>(answer(&pickup, request).await) }
    });
    let _ = http.serve_connection_with_upgrades(TokioIo::new(stream), service).await; // its end is the caller's affair
}

async fn answer(pickup: &Pickup, request: Request<Incoming>) -> Response<Body> {
    let asked = identity::Asked::of(&request);
    match pass(pickup, &asked, request).await {
        Ok(response) => response,
        Err(fault) => asked.refuse(pickup, &fault),
    }
}

/// What became of a call that did not go to the gateway.
enum Sent<B> {
    Answered(Response<Body>),
    /// Nothing ran: here is the request for another way.
    Not(Request<B>),
}

/// Through memory when it can be, else straight to an instance over QUIC, else to the gateway.
async fn pass(
    pickup: &Pickup,
    asked: &identity::Asked,
    request: Request<Incoming>,
) -> Result<Response<Body>, PlatformError> {
    if request.method() == http::Method::CONNECT {
        return Err(error(Reason::MethodNotAllowed, "CONNECT is not served here"));
    }
    let Some(wish) = CallTarget::read(&request) else { return as_it_comes(pickup, request).await };
    let (post, callee) = (pickup.membership.post(), pickup.edges.callee(&wish.function));
    let plan = wish.plan(&request, post, callee.as_deref());
    let post = post.filter(|_| plan.allows(Path::Shm));
    let callee = callee.filter(|_| plan.allows(Path::Quic));
    if post.is_none() && callee.is_none() {
        return as_it_comes(pickup, request).await;
    }
    if !is_held(&request) {
        let request = request.map(|body| Inbound::conversing(Arrival::Wire(body)));
        return on(pickup, callee.as_deref(), asked, &wish, request).await;
    }
    let (head, body) = request.into_parts();
    let body = collect(Arrival::Wire(body), MAX_HELD_BODY, pickup.read_timeout, &Upload::default()).await?;
    let mut request = Request::from_parts(head, body);
    if let Some(post) = post {
        match ring::call(pickup, post, asked, &wish, request).await? {
            Sent::Answered(response) => return Ok(response),
            Sent::Not(unsent) => request = unsent,
        }
    }
    on(pickup, callee.as_deref(), asked, &wish, request).await
}

/// Straight to an instance if there is one, else to the gateway.
async fn on<B>(
    pickup: &Pickup,
    callee: Option<&Callee>,
    asked: &identity::Asked,
    wish: &CallTarget,
    mut request: Request<B>,
) -> Result<Response<Body>, PlatformError>
where
    B: direct::Sendable + Into<Inbound>,
{
    if let Some(callee) = callee {
        match direct::call(pickup, callee, asked, wish, request).await? {
            Sent::Answered(response) => return Ok(response),
            Sent::Not(unsent) => request = unsent,
        }
    }
    forward(&pickup.gateway, request.map(Into::into)).await
}

async fn as_it_comes(pickup: &Pickup, request: Request<Incoming>) -> Result<Response<Body>, PlatformError> {
    forward(&pickup.gateway, request.map(|body| Inbound::conversing(Arrival::Wire(body)))).await
}
