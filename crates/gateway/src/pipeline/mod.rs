//! The path of a request: route, admit, deliver, and one completion record.

mod refusal;

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response};
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::Body;

use crate::admit;
use crate::call::Call;
use crate::context::WorkerContext;
use crate::deliver::{self, Answer, Content, Delivery, Undelivered};
use crate::function::{Function, Permit};
use crate::record::Completion;
use crate::request::{Arriving, Asked, Clock, Flow, Peer, Upload, Zone, own_timeout};
use crate::route::{self, Destination, Unroutable};

pub(crate) use refusal::of_call as refuse_call;

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
pub(crate) fn begin(lane: &Rc<WorkerContext>, peer: &Rc<Peer>, request: Request<Arriving>) -> Begun {
    match route::resolve(&lane.table, peer, &request) {
        Ok(Destination::Function { function, rest }) => enter(lane, peer, request, Upload::new, function, rest),
        Ok(Destination::Health) => health(lane, &request),
        Ok(Destination::Admin) => {
            let (record, head) = unrouted(lane, &request);
            Begun::Admin { answer: lane.control.admin(request.map(Body::from)), record, head }
        }
        Err(Unroutable { reason, message, closes: false }) => refuse(lane, &request, reason, &message),
        Err(Unroutable { reason, message, closes: true }) => closing(refuse(lane, &request, reason, &message)),
    }
}

/// Looks at a request that was read as a whole, for a function that is known. `rest`: where the function's own path
/// begins in the request's.
pub(crate) fn begin_whole(
    lane: &Rc<WorkerContext>,
    peer: &Rc<Peer>,
    request: Request<Bytes>,
    function: Arc<Function>,
    rest: usize,
) -> Begun {
    enter(lane, peer, request, |body, _| Upload::whole(body), function, rest)
}

/// Ends the connection with the answer: after a request that has two meanings, the next cannot be trusted.
fn closing(mut begun: Begun) -> Begun {
    if let Begun::Answered(response) = &mut begun {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    begun
}

/// Answers a request. It always has an answer; the platform's refusals are answers too.
pub(crate) async fn answer(begun: Begun) -> Response<Content> {
    match begun {
        Begun::Answered(response) => *response,
        Begun::Admin { answer, record, head } => administered(answer.await, record, head),
        Begun::Call(mut call) => match admit_and_deliver(&mut call).await {
            Ok(answer) => deliver::reply(call, answer),
            Err(error) => refusal::of_call(*call, &error).map(Content::Own),
        },
    }
}

/// The record of a request that is for no function, and whether it is a `HEAD`.
fn unrouted<B>(lane: &WorkerContext, request: &Request<B>) -> (Completion, bool) {
    let mut record = Completion::start(&lane.recorder, request, None, "");
    let asked = Asked::of(request);
    record.identify(asked.call_id.as_bytes(), None);
    (record, asked.head)
}

fn administered(answer: Response<Body>, mut record: Completion, head: bool) -> Response<Content> {
    record.answered(answer.status().as_u16());
    answer.map(|body| Content::admin(body, record, head))
}

async fn admit_and_deliver(call: &mut Call) -> Result<Answer, PlatformError> {
    check_caller(call)?;
    let permit = admit::enter(call).await?;
    let delivery = Delivery::begin(call)?;
    deliver_admitted(call, delivery, permit).await
}

/// Delivers a request; where no instance is left, it is admitted again, before all others.
async fn deliver_admitted(
    call: &mut Call,
    mut delivery: Delivery,
    mut permit: Permit,
) -> Result<Answer, PlatformError> {
    loop {
        permit = match delivery.send(call, permit).await {
            Ok(answer) => return Ok(answer),
            Err(Undelivered::Failed(error)) => return Err(error),
            // On the heap: few requests come here, and every request's future would be as large otherwise.
            Err(Undelivered::Readmit(permit)) => Box::pin(admit::enter_again(call, permit)).await?,
        };
    }
}

/// Delivers a request that the instance at `refused` would not run, as if it had been sent there from here.
///
/// # Errors
/// Why there is no answer.
pub(crate) async fn deliver_elsewhere(
    call: &mut Call,
    refused: deliver::Place,
    why: String,
) -> Result<Answer, PlatformError> {
    let (delivery, permit) = Delivery::after_refusal(call, refused, why)?;
    let permit = match permit {
        Some(permit) => permit,
        None => admit::enter_again(call, None).await?,
    };
    deliver_admitted(call, delivery, permit).await
}

/// Begins the path of a call: from here on the request ends in one completion record.
fn enter<B>(
    lane: &Rc<WorkerContext>,
    peer: &Rc<Peer>,
    request: Request<B>,
    upload: impl FnOnce(B, Option<u64>) -> (Upload, Option<Rc<Flow>>),
    function: Arc<Function>,
    rest: usize,
) -> Begun {
    let asked = Asked::of(&request);
    let route = function.route();
    let mut record = Completion::start(&lane.recorder, &request, Some(function.clone()), &function.name);
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

fn own(answer: Response<Body>) -> Begun {
    Begun::Answered(answer.map(Content::Own).into())
}

/// Answers a request that goes nowhere.
pub(crate) fn refuse<B>(lane: &Rc<WorkerContext>, request: &Request<B>, reason: Reason, why: &str) -> Begun {
    own(refusal::outside(lane, request, reason, why))
}

fn health<B>(lane: &Rc<WorkerContext>, request: &Request<B>) -> Begun {
    match *request.method() {
        Method::GET | Method::HEAD => {
            let (record, head) = unrouted(lane, request);
            Begun::Answered(administered(Response::new(Body::from("OK\n")), record, head).into())
        }
        _ => refuse(lane, request, Reason::MethodNotAllowed, "/healthz: only GET and HEAD"),
    }
}
