//! One request over HTTP/3, from its head to the last byte of its answer.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use futures_util::poll;
use http::header::{CONTENT_LENGTH, DATE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use nearpath_types::Reason;
use nearpath_wire::h3::{Asked, Incoming, Malformed, Opened, Unread};

use super::Port;
use super::client::{Client, One};
use super::early_data::{self, EARLY_DATA};
use crate::context::WorkerContext;
use crate::deliver::Content;
use crate::listen::client_requests::{Reply, Stream};
use crate::pipeline::{self, Begun};
use crate::record::Completion;
use crate::request::Arriving;

const PROTOCOL: &str = "HTTP/3";

/// Answers it; [`pipeline::answer`] does, as for all others. Ends early when the client gives it up.
pub(super) async fn answer(client: Rc<Client>, port: Rc<Port>, opened: Opened, early: bool, _one: One) {
    let (visit, lane) = (&client.visit, &client.lane);
    let stream = Stream::new(visit);
    let asked = match tokio::time::timeout(port.header_timeout, opened.read()).await {
        Ok(Ok(asked)) => asked,
        Ok(Err(error)) => return unread(lane, &stream, &error),
        Err(_) => return Completion::unread(&lane.recorder, PROTOCOL).refused(Reason::SlowRequest),
    };
    let Asked { mut request, fault, answering, mut stopped } = asked;
    let (busy, _sending) = (visit.life.begin(false), visit.life.begin(false));
    lane.totals.http3.requests.fetch_add(1, Ordering::Relaxed);
    let bodiless = *request.method() == Method::HEAD;
    let answered = async {
        let slow = tokio::time::timeout(port.header_timeout, look(&mut request)).await.is_err();
        let begun = match unfit(&request, &port, fault, slow, early) {
            Some((reason, why)) => pipeline::refuse(lane, &request, reason, &why),
            None => begin(&client, request, early),
        };
        pipeline::answer(begun).await
    };
    let response = tokio::select! {
        biased;
        response = answered => response,
        () = &mut stopped => return,
    };
    stream.answered();
    let bodiless = bodiless || has_no_body(response.status());
    if let Err(error) = answering.send(dated(lane, response).map(|content| Reply::new(content, busy)), bodiless).await {
        return tracing::debug!(%error, "an answer did not go as a whole");
    }
    // What is left is quinn's to send, and would be lost if the connection were taken for idle, or as drained.
    let _ = tokio::time::timeout(port.write_timeout, stopped).await;
}

fn begin(client: &Client, mut request: Request<Incoming>, early: bool) -> Begun {
    if early {
        client.lane.totals.http3.early.fetch_add(1, Ordering::Relaxed);
        request.headers_mut().insert(EARLY_DATA, HeaderValue::from_static("1"));
    }
    pipeline::begin(&client.lane, &client.visit.peer, request.map(|body| Arriving::Http3(Box::new(body))))
}

/// Learns whether there is a body, where the head does not tell: who has none need not be sent one without a known end. Waits for it
/// only with methods that have none as a rule.
async fn look(request: &mut Request<Incoming>) {
    if request.headers().contains_key(CONTENT_LENGTH) && request.body().size_hint().lower() > 0 {
        return;
    }
    let waits = early_data::is_safe(request.method());
    // What is wrong with the body comes up when it is read.
    let mut is_empty = poll_fn(|cx| request.body_mut().poll_is_empty(cx));
    let looked = poll!(&mut is_empty);
    if waits && looked.is_pending() {
        let _ = is_empty.await;
    }
}

/// Why a request goes nowhere.
fn unfit(
    request: &Request<Incoming>,
    port: &Port,
    fault: Option<Malformed>,
    slow: bool,
    early: bool,
) -> Option<(Reason, String)> {
    if let Some(fault) = fault {
        return Some((Reason::BadRequest, fault.to_string()));
    }
    if request.headers().len() > port.limits.headers {
        let most = port.limits.headers;
        return Some((Reason::HeadersTooLarge, format!("the request has more than {most} fields; the limit is fixed")));
    }
    if slow {
        return Some((Reason::SlowRequest, "the request did not say whether it has a body".to_owned()));
    }
    if early && !early_data::may_run(request.method(), !request.body().is_end_stream()) {
        return Some((Reason::TooEarly, "send it again when the handshake is complete (RFC 8470)".to_owned()));
    }
    None
}

fn unread(lane: &Rc<WorkerContext>, stream: &Stream, error: &Unread) {
    match error {
        Unread::TooLarge => Completion::unread(&lane.recorder, PROTOCOL).refused(Reason::HeadersTooLarge),
        Unread::Malformed(_) => Completion::unread(&lane.recorder, PROTOCOL).refused(Reason::BadRequest),
        Unread::Gone(_) => return, // it counts as abandoned
    }
    stream.answered();
}

fn dated(lane: &WorkerContext, mut response: Response<Content>) -> Response<Content> {
    let date = || HeaderValue::from_bytes(&lane.date()).expect("a date is ASCII");
    response.headers_mut().entry(DATE).or_insert_with(date);
    response
}

fn has_no_body(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}
