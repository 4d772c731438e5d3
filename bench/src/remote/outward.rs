//! The way out of a machine: what functions there call at `/function/NAME`, it calls on another machine, by the route that the call
//! came with. A gateway between machines is the same, but reached by every transport.
//!
//! It stands where a function's own watchdog would be the caller. A call goes over a new connection; where connections are opened
//! ahead, over the one that has waited for it; and with [`Manner::Kept`] always over the same one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use nearpath_testkit::lab::LabNode;
use nearpath_wire::quic::ServedCall;
use nearpath_wire::zero_rtt::Provision;
use tokio::task::{JoinHandle, spawn_local};

use super::call::Route;
use super::caller::{Callee, Caller, Connection};
use super::port::{self, Door};
use super::site::Identity;
use super::{Error, Way, everywhere};
use crate::tally::Failure;

/// A connection that has waited longer is not used: its other end may have given it up.
const FRESH: Duration = Duration::from_secs(3);

/// Which connections calls go over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// One of their own.
    New,
    /// One that stays.
    Kept,
}

/// What the way out of a machine needs.
pub(crate) struct Plan {
    pub(crate) node: LabNode,
    /// As whom it calls.
    pub(crate) identity: Identity,
    /// By name.
    pub(crate) callees: BTreeMap<String, Callee>,
    pub(crate) manner: Manner,
    /// Where calls go that shall not go to their callee directly.
    pub(crate) gateway: Option<Callee>,
}

/// A connection that waits for a call.
struct Waiting {
    since: Instant,
    opening: JoinHandle<Result<Connection, Failure>>,
}

/// See the module's text.
struct Outward {
    caller: Rc<Caller>,
    callees: BTreeMap<String, Callee>,
    manner: Manner,
    gateway: Option<Callee>,
    /// By name of the callee.
    waiting: RefCell<BTreeMap<String, Waiting>>,
    /// A call did not go as it should have, which was seen only after its answer: a first flight was not taken.
    untrue: Cell<bool>,
}

/// Starts the way out of a machine, at that port of its loopback, on a thread of its own, which goes on as long as the process.
/// Returns the thread's number.
pub(crate) fn start(plan: Plan, port: u16) -> Result<u32, Error> {
    everywhere::on_a_thread(&plan.node.clone(), "outward", async move |ready| {
        let listener = port::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        let outward = Outward::new(plan)?;
        ready();
        port::serve(listener, Door::Plain, move |request| {
            answer(Rc::clone(&outward), request)
        })
        .await;
        Ok(())
    })
}

/// Starts a gateway likewise, which callers find where [`everywhere::callee`] says.
pub(crate) fn start_gateway(plan: Plan, provision: Provision) -> Result<u32, Error> {
    everywhere::on_a_thread(&plan.node.clone(), "between", async move |ready| {
        let outward = Outward::new(plan)?;
        let again = Rc::clone(&outward);
        let http = move |request| answer(Rc::clone(&outward), request);
        let quic = move |call: ServedCall| answer(Rc::clone(&again), call.request);
        everywhere::serve(provision, http, quic, ready).await
    })
}

async fn answer<B>(outward: Rc<Outward>, request: Request<B>) -> Response<Full<Bytes>>
where
    B: http_body::Body<Data = Bytes>,
{
    let (head, body) = request.into_parts();
    let passed = match body.collect().await {
        Ok(body) => {
            outward
                .pass(Request::from_parts(head, body.to_bytes()))
                .await
        }
        Err(_) => Err(Failure::Broken),
    };
    passed.map_or_else(|failure| refusal(&failure), |answer| answer.map(Full::new))
}

fn refusal(failure: &Failure) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(failure.to_string()));
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    answer
}

/// `/function/NAME/PATH` → name and `/PATH`.
fn callee(target: &str) -> Option<(String, String)> {
    let rest = target.strip_prefix("/function/")?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (name, path) = rest.split_at(end);
    Some((
        name.to_owned(),
        if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        },
    ))
}

impl Outward {
    fn new(plan: Plan) -> Result<Rc<Self>, Error> {
        let Plan {
            identity,
            callees,
            manner,
            gateway,
            ..
        } = plan;
        let caller = Rc::new(Caller::new(identity)?);
        let (waiting, untrue) = (RefCell::default(), Cell::new(false));
        Ok(Rc::new(Self {
            caller,
            callees,
            manner,
            gateway,
            waiting,
            untrue,
        }))
    }

    /// The call after an untrue one fails, so that somebody notices.
    async fn pass(
        self: &Rc<Self>,
        mut request: Request<Bytes>,
    ) -> Result<Response<Bytes>, Failure> {
        if self.untrue.take() {
            return Err(Failure::Broken);
        }
        let (route, name, callee) = self.directed(&mut request).ok_or(Failure::Connect)?;
        request.headers_mut().remove(http::header::CONNECTION); // it speaks of the connection that ends here
        let mut connection = self.connection(route.way, &name, &callee).await?;
        let answer = connection.whole(request).await?;
        self.afterwards(route.way, &name, callee, connection);
        Ok(answer)
    }

    /// Who is to be called next, and the name of whom that is about. Only the callee itself gets a path without the name.
    fn directed(&self, request: &mut Request<Bytes>) -> Option<(Route, String, Callee)> {
        let route = Route::of(request)?;
        let (name, path) = callee(request.uri().path_and_query()?.as_str())?;
        if let (true, Some(gateway)) = (route.detour, &self.gateway) {
            return Some((route, name, gateway.clone()));
        }
        *request.uri_mut() = path.parse().ok()?;
        let callee = self.callees.get(&name)?.clone();
        Some((route, name, callee))
    }

    async fn connection(
        &self,
        way: Way,
        name: &str,
        callee: &Callee,
    ) -> Result<Connection, Failure> {
        let waiting = self
            .waiting
            .borrow_mut()
            .remove(name)
            .filter(|waiting| waiting.since.elapsed() < FRESH);
        match waiting {
            Some(waiting) if self.is_ahead(way) => {
                waiting.opening.await.unwrap_or(Err(Failure::Connect))
            }
            _ => self.caller.open(way, callee).await,
        }
    }

    /// Whether this way's calls find a connection there.
    fn is_ahead(&self, way: Way) -> bool {
        self.manner == Manner::Kept || way == Way::QuicReady
    }

    /// What follows an answer does not keep it waiting.
    fn afterwards(self: &Rc<Self>, way: Way, name: &str, callee: Callee, connection: Connection) {
        let opening = match (self.manner, way) {
            (Manner::Kept, _) => spawn_local(async { Ok(connection) }),
            (Manner::New, Way::QuicReady) => {
                self.end(connection);
                let caller = Rc::clone(&self.caller);
                spawn_local(async move { caller.open(way, &callee).await })
            }
            (Manner::New, _) => return self.end(connection),
        };
        self.waiting.borrow_mut().insert(
            name.to_owned(),
            Waiting {
                since: Instant::now(),
                opening,
            },
        );
    }

    fn end(self: &Rc<Self>, connection: Connection) {
        let outward = Rc::clone(self);
        spawn_local(async move {
            if connection.end().await.is_err() {
                outward.untrue.set(true);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_and_paths() {
        let read = |target| callee(target).map(|(name, path)| format!("{name} {path}"));
        assert_eq!(
            read("/function/photo-assign/").as_deref(),
            Some("photo-assign /")
        );
        assert_eq!(
            read("/function/photo-success/?a=b/c").as_deref(),
            Some("photo-success /?a=b/c")
        );
        assert_eq!(read("/function/echo?x=1").as_deref(), Some("echo /?x=1"));
        assert_eq!(read("/function/echo").as_deref(), Some("echo /"));
        assert_eq!(read("/echo"), None);
    }

    proptest! {
        #[test]
        fn what_is_composed_is_read(name in "[a-z][a-z0-9-]{0,20}", path in "/[a-z0-9/?=&]{0,30}") {
            prop_assert_eq!(callee(&format!("/function/{name}{path}")), Some((name, path)));
        }
    }
}
