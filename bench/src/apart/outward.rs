//! The way out of a machine: what functions there call at `/function/NAME`, it calls on another machine, by the way that the call
//! came with.
//!
//! It stands where a function's own watchdog would be the caller. A call goes over a new connection; where connections are opened
//! ahead, over the one that has waited for it; and with [`Manner::Kept`] always over the same one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use nearpath_testkit::lab::Node;
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use super::caller::{Callee, Caller, Connection};
use super::site::Identity;
use super::{Error, Way, call, port};
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
    pub(crate) node: Node,
    /// Port on the machine's loopback.
    pub(crate) port: u16,
    /// As whom it calls.
    pub(crate) identity: Identity,
    /// By name.
    pub(crate) callees: BTreeMap<String, Callee>,
    pub(crate) manner: Manner,
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
    /// By name of the callee.
    waiting: RefCell<BTreeMap<String, Waiting>>,
    /// A call did not go as it should have, which was seen only after its answer: a first flight was not taken.
    untrue: Cell<bool>,
}

/// Starts it on a thread of its own, which goes on as long as the process. Returns the thread's number.
pub(crate) fn start(plan: Plan) -> Result<u32, Error> {
    let (tell, told) = mpsc::channel();
    let node = plan.node.clone();
    node.enter(move || std::thread::Builder::new().name("outward".to_owned()).spawn(move || thread(plan, &tell)))?;
    told.recv().map_err(|_| "the way out ended before it was ready")?.map_err(Error::from)
}

fn thread(plan: Plan, tell: &mpsc::Sender<Result<u32, String>>) {
    let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    let run = || -> Result<(), Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        LocalSet::new().block_on(&runtime, serve(plan, || drop(tell.send(Ok(id)))))
    };
    if let Err(error) = run() {
        let _ = tell.send(Err(error.to_string()));
    }
}

async fn serve(plan: Plan, ready: impl FnOnce()) -> Result<(), Error> {
    let Plan { port, identity, callees, manner, .. } = plan;
    let caller = Rc::new(Caller::new(identity)?);
    let (waiting, untrue) = (RefCell::default(), Cell::new(false));
    let outward = Rc::new(Outward { caller, callees, manner, waiting, untrue });
    let listener = port::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    ready();
    port::serve(listener, port::Door::Plain, move |request| answer(Rc::clone(&outward), request)).await;
    Ok(())
}

async fn answer(outward: Rc<Outward>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let passed = match received(request).await {
        Some((way, name, request)) => outward.pass(way, &name, request).await,
        None => Err(Failure::Broken),
    };
    passed.map_or_else(|failure| refusal(&failure), |answer| answer.map(Full::new))
}

fn refusal(failure: &Failure) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(failure.to_string()));
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    answer
}

/// By which way, to whom and what, when all of that is there.
async fn received(request: Request<Incoming>) -> Option<(Way, String, Request<Bytes>)> {
    let way = call::way(&request)?;
    let (name, path) = callee(request.uri().path_and_query()?.as_str())?;
    let (mut head, body) = request.into_parts();
    head.uri = path.parse().ok()?;
    head.headers.remove(http::header::CONNECTION); // it speaks of the connection that ends here
    Some((way, name, Request::from_parts(head, body.collect().await.ok()?.to_bytes())))
}

/// `/function/NAME/PATH` → name and `/PATH`.
fn callee(target: &str) -> Option<(String, String)> {
    let rest = target.strip_prefix("/function/")?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (name, path) = rest.split_at(end);
    Some((name.to_owned(), if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }))
}

impl Outward {
    /// The call after an untrue one fails, so that somebody notices.
    async fn pass(self: &Rc<Self>, way: Way, name: &str, request: Request<Bytes>) -> Result<Response<Bytes>, Failure> {
        if self.untrue.take() {
            return Err(Failure::Broken);
        }
        let callee = self.callees.get(name).ok_or(Failure::Connect)?;
        let mut connection = self.connection(way, name, callee).await?;
        let answer = connection.whole(request).await?;
        self.afterwards(way, name, callee.clone(), connection);
        Ok(answer)
    }

    async fn connection(&self, way: Way, name: &str, callee: &Callee) -> Result<Connection, Failure> {
        let waiting = self.waiting.borrow_mut().remove(name).filter(|waiting| waiting.since.elapsed() < FRESH);
        match waiting {
            Some(waiting) if self.is_ahead(way) => waiting.opening.await.unwrap_or(Err(Failure::Connect)),
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
        self.waiting.borrow_mut().insert(name.to_owned(), Waiting { since: Instant::now(), opening });
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
        assert_eq!(read("/function/photo-assign/").as_deref(), Some("photo-assign /"));
        assert_eq!(read("/function/photo-success/?a=b/c").as_deref(), Some("photo-success /?a=b/c"));
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
