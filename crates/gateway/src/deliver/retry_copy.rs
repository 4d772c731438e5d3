//! What becomes of a request that an instance did not run, and said so.
//!
//! hyper keeps what it sends. So where it is likely that a request comes back, a copy is kept: to an instance that refused the last one, or that
//! may turn the gateway's certificate down. Elsewhere a copy would cost more (0.6 µs of each call) than the rare answer that is passed on as it came.

use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::{BoxError, unseen};

use super::attempt_outcome::Attempt;
use super::buffered_request::Taken;
use super::delivery_errors::{broken, not_called};
use super::instance_body::Source;
use crate::call::Call;
use crate::function::Endpoint;
use crate::request::Upload;
use crate::transport::Line;

/// A copy of the call's request, if all of it is here. With `careful` a small body is collected first.
///
/// # Errors
/// See [`Taken::out_of`].
pub(super) async fn copy(
    call: &mut Call,
    endpoint: &Endpoint,
    careful: bool,
) -> Result<Option<Request<Upload>>, PlatformError> {
    if careful {
        Taken::out_of(call, endpoint).await?.put_back(call);
    }
    let request = call.request.as_ref().expect("an unsent request is put back");
    Ok(request.body().copy().map(|body| {
        let mut copy = Request::new(body);
        request.method().clone_into(copy.method_mut());
        request.uri().clone_into(copy.uri_mut());
        request.headers().clone_into(copy.headers_mut());
        *copy.version_mut() = request.version();
        copy
    }))
}

/// Whether a request that was not run for this reason may run elsewhere. An instance that is full says so to the caller: others are chosen by the gate.
pub(super) fn goes_elsewhere(reason: Reason) -> bool {
    reason != Reason::Overload
}

/// What came over HTTP: an answer; or the word that the request has not run, and then it is the call's again.
pub(super) async fn answered(
    call: &mut Call,
    endpoint: &std::sync::Arc<Endpoint>,
    mut response: Response<Incoming>,
    line: Line,
    spare: Option<Request<Upload>>,
) -> Attempt {
    line.answered();
    let refused = unseen::take(response.headers_mut()).filter(|reason| goes_elsewhere(*reason));
    endpoint.answered(refused.is_none());
    let (Some(reason), Some(request)) = (refused, spare) else {
        return Attempt::Answered(response.map(Source::Http), Some(line));
    };
    let why = words(reason, response.into_body()).await;
    call.lane.pools.put(endpoint, line, call.lane.now());
    call.request = Some(request);
    Attempt::Refused(why)
}

/// After a line broke: only an instance that turned the gateway's certificate down has provably run nothing.
///
/// # Errors
/// When the request may have run, or is not there any more.
pub(super) fn unanswered(
    call: &mut Call,
    endpoint: &Endpoint,
    line: &Line,
    spare: Option<Request<Upload>>,
    error: &hyper::Error,
) -> Result<Attempt, PlatformError> {
    let at_fault = call.flow.as_ref().is_some_and(|flow| flow.fault().is_some());
    let Some(why) = line.refusal().filter(|_| !at_fault) else { return Err(broken(call, endpoint, Some(error))) };
    call.request = spare;
    if call.request.is_some() {
        return Ok(Attempt::Unsent(why));
    }
    Err(not_called(call, endpoint, &why))
}

/// The text of a refusal, which the platform wrote; or its reason, when it has none.
pub(super) async fn words<B>(reason: Reason, body: B) -> String
where
    B: Body,
    B::Error: Into<BoxError>,
{
    const LONGEST: (usize, Duration) = (4096, Duration::from_secs(1));
    let said = tokio::time::timeout(LONGEST.1, Limited::new(body, LONGEST.0).collect()).await;
    let said = said.ok().and_then(Result::ok).map(|said| said.to_bytes()).unwrap_or_default();
    match String::from_utf8_lossy(&said).trim_end() {
        "" => reason.name().to_owned(),
        text => text.to_owned(),
    }
}
