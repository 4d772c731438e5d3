//! The walk of a request, in the order in which it goes: route, admit, deliver, and one completion record.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, Version};
use nearpath_types::{FunctionId, PlatformError, Reason, duration};
use nearpath_wire::Body;

use crate::call::{Arriving, Asked, Call, Clock, Flow, Peer, Upload, X_TIMEOUT, grpc};
use crate::deliver::Content;
use crate::lane::Lane;
use crate::record::Completion;
use crate::route::{self, Function, Target};
use crate::{COMPONENT, Zone, admit, deliver, refusal};

/// A request after the first look at it.
pub(crate) enum Begun {
    /// It is answered already.
    Answered(Box<Response<Content>>),
    /// The administrator's side answers it.
    Admin { answer: BoxFuture<'static, Response<Body>>, record: Completion, head: bool },
    /// It is for a function.
    Call(Box<Call>),
}

/// Looks at a request: where it goes, without waiting for anything.
pub(crate) fn begin(lane: &Rc<Lane>, peer: &Rc<Peer>, request: Request<Arriving>) -> Begun {
    if request.method() == Method::CONNECT {
        return refuse(lane, &request, Reason::MethodNotAllowed, "CONNECT is not served here");
    }
    if !one_host(&request) {
        let refused = refuse(lane, &request, Reason::BadRequest, "a request must bear one Host (RFC 9112 section 3.2)");
        return closing(refused);
    }
    match route::parse(request.uri().path()) {
        Ok(Target::Function { name, rest }) => match lane.table.find(name) {
            Some(function) => open(lane, peer, request, function, rest),
            None => match alias(lane, peer, name) {
                Some(function) => open(lane, peer, request, function, rest),
                None => unknown(lane, &request, name),
            },
        },
        Ok(Target::Nowhere) if grpc::is_grpc(&request) => by_authority(lane, peer, request),
        Ok(Target::Health) => health(lane, &request),
        Ok(Target::Admin) if peer.zone == Zone::Public => {
            let (record, head) = unrouted(lane, &request);
            Begun::Admin { answer: lane.control.admin(request.map(Body::from)), record, head }
        }
        Ok(_) => refuse(lane, &request, Reason::NoFunction, "nothing is served on this path"),
        Err(error) => refuse(lane, &request, Reason::BadRequest, &error.to_string()),
    }
}

/// What an instance means by a name that no function has: its own chain may have declared it.
fn alias(lane: &Lane, peer: &Peer, name: &str) -> Option<Arc<Function>> {
    if peer.zone == Zone::Public {
        return None;
    }
    let caller = lane.table.caller(peer.addr)?;
    let name = match name.contains('.') {
        true => name.parse().ok()?,
        false => FunctionId { name: name.parse().ok()?, namespace: caller.id.namespace.clone() },
    };
    lane.table.get(caller.route().policy.alias(&name)?)
}

/// Looks at a request that an adapter read as a whole, for a function that it found. `rest`: where the function's own path
/// begins in the request's.
pub(crate) fn begin_whole(
    lane: &Rc<Lane>,
    peer: &Rc<Peer>,
    request: Request<Bytes>,
    function: Arc<Function>,
    rest: usize,
) -> Begun {
    enter(lane, peer, request, |body, _| Upload::whole(body), function, rest)
}

/// A generated gRPC client cannot put a prefix before its paths: there the authority names the function.
fn by_authority(lane: &Rc<Lane>, peer: &Rc<Peer>, request: Request<Arriving>) -> Begun {
    let name = request.uri().authority().map_or("", |authority| authority.host()).to_owned();
    match lane.table.find(&name) {
        Some(function) => open(lane, peer, request, function, 0),
        None => unknown(lane, &request, &name),
    }
}

/// Ends the connection with the answer: who cannot be understood once is not listened to again.
fn closing(mut begun: Begun) -> Begun {
    if let Begun::Answered(response) = &mut begun {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    begun
}

/// Two hosts are two meanings. HTTP/1.0 may do without one, HTTP/2 has `:authority` instead.
fn one_host<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), None) => true,
        (None, _) => request.version() != Version::HTTP_11,
        (Some(_), Some(_)) => false,
    }
}

/// Answers a request. It always has an answer; the platform's refusals are answers too.
pub(crate) async fn answer(begun: Begun) -> Response<Content> {
    match begun {
        Begun::Answered(response) => *response,
        Begun::Admin { answer, record, head } => administered(answer.await, record, head),
        Begun::Call(mut call) => match walk(&mut call).await {
            Ok(answer) => deliver::reply(call, answer),
            Err(error) => refusal::of_call(*call, &error).map(Content::Own),
        },
    }
}

/// The record of a request that is for no function, and whether it is a `HEAD`.
fn unrouted<B>(lane: &Rc<Lane>, request: &Request<B>) -> (Completion, bool) {
    let mut record = Completion::start(lane, request, None, "");
    let asked = Asked::of(request);
    record.identify(asked.call_id.as_bytes(), None);
    (record, asked.head)
}

fn administered(answer: Response<Body>, mut record: Completion, head: bool) -> Response<Content> {
    record.answered(answer.status().as_u16());
    answer.map(|body| Content::admin(body, record, head))
}

async fn walk(call: &mut Call) -> Result<deliver::Answer, PlatformError> {
    check_caller(call)?;
    let permit = admit::enter(call).await?;
    deliver::send(call, permit).await
}

/// Begins the walk: from here on the request ends in one completion record.
fn open(lane: &Rc<Lane>, peer: &Rc<Peer>, request: Request<Arriving>, function: Arc<Function>, rest: usize) -> Begun {
    enter(lane, peer, request, Upload::new, function, rest)
}

fn enter<B>(
    lane: &Rc<Lane>,
    peer: &Rc<Peer>,
    request: Request<B>,
    upload: impl FnOnce(B, Option<u64>) -> (Upload, Option<Rc<Flow>>),
    function: Arc<Function>,
    rest: usize,
) -> Begun {
    let asked = Asked::of(&request);
    let route = function.route();
    let mut record = Completion::start(lane, &request, Some(function.clone()), &function.name);
    let own = match own_timeout(&request) {
        Ok(own) => own,
        Err(error) => return own(refusal::refused(lane, &asked, record, &error)),
    };
    let admitted = record.started();
    let clock = Clock::new(admitted, &route.policy, own, lane.body_idle);
    let (head, body) = request.into_parts();
    let (upload, flow) = upload(body, route.policy.max_body);
    record.count_in(flow.clone());
    let request = Some(Request::from_parts(head, upload));
    let (lane, peer) = (lane.clone(), peer.clone());
    let call = Call { lane, peer, function, route, asked, clock, record, admitted, request, flow, rest };
    Begun::Call(Box::new(call))
}

/// Inside, an instance calls along declared edges only. Outside, functions are open.
fn check_caller(call: &mut Call) -> Result<(), PlatformError> {
    if call.peer.zone == Zone::Public {
        call.record.identify(call.asked.call_id.as_bytes(), None);
        return Ok(());
    }
    let caller = call.lane.table.caller(call.peer.addr);
    call.record.identify(call.asked.call_id.as_bytes(), caller.as_deref());
    route::check_edge(caller.as_deref(), call.peer.addr, &call.function.id)
}

/// The limit that the caller sets itself, in `X-Timeout` or `grpc-timeout`.
///
/// # Errors
/// `bad_request` when it is no duration.
pub fn own_timeout<B>(request: &Request<B>) -> Result<Option<Duration>, PlatformError> {
    let text = |name| request.headers().get(name).map(|value| value.to_str().unwrap_or("not ASCII"));
    let (name, parsed) = match (text(X_TIMEOUT), text(grpc::GRPC_TIMEOUT)) {
        (Some(text), _) => ("X-Timeout", duration::parse(text).map_err(|error| error.to_string())),
        (None, Some(text)) => ("grpc-timeout", grpc::timeout(text).ok_or(format!("{text:?} is no gRPC timeout"))),
        (None, None) => return Ok(None),
    };
    parsed
        .map(Some)
        .map_err(|why| PlatformError::new(COMPONENT, Reason::BadRequest, format!("{name}: {why}")).governed_by(name))
}

fn own(answer: Response<Body>) -> Begun {
    Begun::Answered(answer.map(Content::Own).into())
}

/// Answers a request that goes nowhere.
pub(crate) fn refuse<B>(lane: &Rc<Lane>, request: &Request<B>, reason: Reason, why: &str) -> Begun {
    own(refusal::outside(lane, request, reason, why))
}

fn unknown<B>(lane: &Rc<Lane>, request: &Request<B>, name: &str) -> Begun {
    match name.parse::<FunctionId>() {
        Ok(id) => refuse(lane, request, Reason::NoFunction, &format!("no function {id} is deployed")),
        Err(error) => refuse(lane, request, Reason::BadRequest, &error.to_string()),
    }
}

fn health<B>(lane: &Rc<Lane>, request: &Request<B>) -> Begun {
    match *request.method() {
        Method::GET | Method::HEAD => {
            let (record, head) = unrouted(lane, request);
            Begun::Answered(administered(Response::new(Body::from("OK\n")), record, head).into())
        }
        _ => refuse(lane, request, Reason::MethodNotAllowed, "/healthz: only GET and HEAD"),
    }
}
