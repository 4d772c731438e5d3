//! The walk of a request, in the order in which it goes: route, admit, deliver, and one completion record.

use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, Version};
use hyper::body::Incoming;
use nearpath_types::{PlatformError, Reason, duration};
use nearpath_wire::Body;

use crate::call::{Asked, Call, Clock, Peer, Upload, X_TIMEOUT};
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
    Admin(BoxFuture<'static, Response<Body>>),
    /// It is for a function.
    Call(Box<Call>),
}

/// Looks at a request: where it goes, without waiting for anything.
pub(crate) fn begin(lane: &Rc<Lane>, peer: &Rc<Peer>, request: Request<Incoming>) -> Begun {
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
            None => unknown(lane, &request, name),
        },
        Ok(Target::Health) => health(lane, &request),
        Ok(Target::Admin) if peer.zone == Zone::Public => Begun::Admin(lane.control.admin(request)),
        Ok(_) => refuse(lane, &request, Reason::NoFunction, "nothing is served on this path"),
        Err(error) => refuse(lane, &request, Reason::BadRequest, &error.to_string()),
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
        Begun::Admin(answer) => answer.await.map(Content::Own),
        Begun::Call(mut call) => match walk(&mut call).await {
            Ok(answer) => deliver::reply(call, answer),
            Err(error) => refusal::of_call(*call, &error).map(Content::Own),
        },
    }
}

async fn walk(call: &mut Call) -> Result<deliver::Answer, PlatformError> {
    check_caller(call)?;
    let permit = admit::enter(call).await?;
    deliver::send(call, permit).await
}

/// Begins the walk: from here on the request ends in one completion record.
fn open(lane: &Rc<Lane>, peer: &Rc<Peer>, request: Request<Incoming>, function: Arc<Function>, rest: usize) -> Begun {
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
    let (upload, flow) = Upload::new(body, route.policy.max_body);
    record.count_in(flow.clone());
    let request = Some(Request::from_parts(head, upload));
    let (lane, peer) = (lane.clone(), peer.clone());
    let call = Call { lane, peer, function, route, asked, clock, record, admitted, request, flow, rest };
    Begun::Call(Box::new(call))
}

/// Inside, an instance calls along declared edges only. Outside, functions are open.
fn check_caller(call: &mut Call) -> Result<(), PlatformError> {
    if call.peer.zone == Zone::Public {
        call.record.identify(&call.asked.call_id, None);
        return Ok(());
    }
    let caller = call.lane.table.caller(call.peer.addr);
    call.record.identify(&call.asked.call_id, caller.as_deref());
    route::check_edge(caller.as_deref(), call.peer.addr, &call.function.id)
}

/// The limit that the caller sets itself, in `X-Timeout`.
///
/// # Errors
/// `bad_request` when it is no duration.
pub fn own_timeout<B>(request: &Request<B>) -> Result<Option<std::time::Duration>, PlatformError> {
    let Some(value) = request.headers().get(X_TIMEOUT) else { return Ok(None) };
    let parsed = value
        .to_str()
        .map_err(|error| error.to_string())
        .and_then(|text| duration::parse(text).map_err(|error| error.to_string()));
    parsed.map(Some).map_err(|why| {
        PlatformError::new(COMPONENT, Reason::BadRequest, format!("X-Timeout: {why}")).governed_by("X-Timeout")
    })
}

fn own(answer: Response<Body>) -> Begun {
    Begun::Answered(answer.map(Content::Own).into())
}

fn refuse<B>(lane: &Rc<Lane>, request: &Request<B>, reason: Reason, why: &str) -> Begun {
    own(refusal::outside(lane, request, reason, why))
}

fn unknown<B>(lane: &Rc<Lane>, request: &Request<B>, name: &str) -> Begun {
    match name.parse::<nearpath_types::FunctionId>() {
        Ok(id) => refuse(lane, request, Reason::NoFunction, &format!("no function {id} is deployed")),
        Err(error) => refuse(lane, request, Reason::BadRequest, &error.to_string()),
    }
}

fn health<B>(lane: &Rc<Lane>, request: &Request<B>) -> Begun {
    match *request.method() {
        Method::GET | Method::HEAD => own(Response::new(Body::from("OK\n"))),
        _ => refuse(lane, request, Reason::MethodNotAllowed, "/healthz: only GET and HEAD"),
    }
}
