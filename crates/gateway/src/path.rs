//! The walk of a request, in the order in which it goes: route, admit, deliver, and one completion record.

use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use nearpath_types::{PlatformError, Reason, duration};
use nearpath_wire::{Body, BoxError};

use crate::deliver::headers::{Asked, X_TIMEOUT};
use crate::deliver::{Clock, Flow, Passing, Upload};
use crate::lane::Lane;
use crate::record::Completion;
use crate::route::{self, Function, Route, Target};
use crate::{COMPONENT, Zone, admit, deliver, refusal};

/// Who is at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Whether it comes from outside or from an instance.
    pub zone: Zone,
    /// Its address; inside, that is its identity.
    pub addr: IpAddr,
    /// The same, for `X-Forwarded-For`.
    pub forwarded_for: HeaderValue,
    /// `http` or `https`, for `X-Forwarded-Proto`.
    pub proto: HeaderValue,
}

/// One request for a function, from its head to the last byte of its answer. It is made once and not moved again: what
/// each room needs to know is here, so that the walk's own state stays small.
pub(crate) struct Call {
    pub lane: Rc<Lane>,
    pub peer: Rc<Peer>,
    pub function: Arc<Function>,
    /// What the snapshot said that let it in.
    pub route: Arc<Route>,
    pub asked: Asked,
    pub clock: Clock,
    pub record: Completion,
    /// When it was let in.
    pub admitted: Instant,
    /// What is to be sent; `None` while and after it is.
    pub request: Option<Request<Upload>>,
    /// How far its body is; `None`: it has none.
    pub flow: Option<Rc<Flow>>,
    /// Where the function's own path begins in the request's.
    pub rest: usize,
}

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
            Some(function) => Call::open(lane, peer, request, function, rest),
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
            Err(error) => refusal::of_call(*call, &error),
        },
    }
}

async fn walk(call: &mut Call) -> Result<deliver::Answer, PlatformError> {
    call.check_caller()?;
    let permit = admit::enter(call).await?;
    deliver::send(call, permit).await
}

impl Call {
    /// Begins the walk: from here on the request ends in one completion record.
    fn open(
        lane: &Rc<Lane>,
        peer: &Rc<Peer>,
        request: Request<Incoming>,
        function: Arc<Function>,
        rest: usize,
    ) -> Begun {
        let asked = Asked::of(&request);
        let route = function.route();
        let mut record = Completion::start(lane, &request, Some(function.clone()), &function.name);
        let own = match own_timeout(&request) {
            Ok(own) => own,
            Err(error) => return Begun::Answered(refusal::refused(lane, &asked, record, &error).into()),
        };
        let admitted = record.started();
        let clock = Clock::new(admitted, &route.policy, own, lane.body_idle);
        let (head, body) = request.into_parts();
        let (upload, flow) = Upload::new(body, route.policy.max_body);
        record.count_in(flow.clone());
        let request = Some(Request::from_parts(head, upload));
        let (lane, peer) = (lane.clone(), peer.clone());
        let call = Self { lane, peer, function, route, asked, clock, record, admitted, request, flow, rest };
        Begun::Call(Box::new(call))
    }

    /// Inside, an instance calls along declared edges only. Outside, functions are open.
    fn check_caller(&mut self) -> Result<(), PlatformError> {
        if self.peer.zone == Zone::Public {
            self.record.identify(&self.asked.call_id, None);
            return Ok(());
        }
        let caller = self.lane.table.caller(self.peer.addr);
        self.record.identify(&self.asked.call_id, caller.as_deref());
        route::check_edge(caller.as_deref(), self.peer.addr, &self.function.id)
    }
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

fn refuse<B>(lane: &Rc<Lane>, request: &Request<B>, reason: Reason, why: &str) -> Begun {
    Begun::Answered(refusal::outside(lane, request, reason, why).into())
}

fn unknown<B>(lane: &Rc<Lane>, request: &Request<B>, name: &str) -> Begun {
    match name.parse::<nearpath_types::FunctionId>() {
        Ok(id) => refuse(lane, request, Reason::NoFunction, &format!("no function {id} is deployed")),
        Err(error) => refuse(lane, request, Reason::BadRequest, &error.to_string()),
    }
}

fn health<B>(lane: &Rc<Lane>, request: &Request<B>) -> Begun {
    match *request.method() {
        Method::GET | Method::HEAD => Begun::Answered(Response::new(Content::Own(Body::from("OK\n"))).into()),
        _ => refuse(lane, request, Reason::MethodNotAllowed, "/healthz: only GET and HEAD"),
    }
}

/// The body of an answer.
pub(crate) enum Content {
    /// Made by the platform.
    Own(Body),
    /// Made by a function.
    Function(Passing),
}

impl HttpBody for Content {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Own(body) => Pin::new(body).poll_frame(cx),
            Self::Function(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) => body.is_end_stream(),
            Self::Function(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) => body.size_hint(),
            Self::Function(body) => body.size_hint(),
        }
    }
}
