//! A call through memory, and what it means when it does not come to an answer.
//!
//! What provably did not run goes to the gateway, which queues, wakes and tries others; anything else is never repeated.

use bytes::Bytes;
use http::Request;
use http::header::HeaderValue;
use http::uri::PathAndQuery;
use nearpath_domain::endpoint::polled::AsyncEndpoint;
use nearpath_domain::{CallDestination, CallError, clock};
use nearpath_types::{PlatformError, Reason};

use super::call_target::CallTarget;
use super::identity::Asked;
use super::{Pickup, Sent};
use crate::party;
use crate::refusal::error;

pub(super) async fn call(
    pickup: &Pickup,
    post: &AsyncEndpoint,
    asked: &Asked,
    wish: &CallTarget,
    request: Request<Bytes>,
) -> Result<Sent<Bytes>, PlatformError> {
    let (mut head, body) = request.into_parts();
    let authority = head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    asked.to_function(&mut head.headers, authority, pickup);
    let sent = {
        let path = wish.path(head.uri.path_and_query().map_or("", PathAndQuery::as_str));
        let fields = party::fields(&head, &path);
        let deadline = wish.timeout.map_or(0, clock::deadline_after);
        let (trace, span) = party::traced(&head.headers);
        let request = nearpath_domain::CallRequest { fields: &fields, body: body.clone(), deadline, trace, span };
        post.call(CallDestination::Function(&wish.function), &request)
    };
    let outcome = match sent {
        Ok(answer) => answer.await,
        Err(_) => return Ok(Sent::Not(Request::from_parts(head, body))),
    };
    match outcome {
        Ok(reply) if reply.did_not_run() => Ok(Sent::Not(Request::from_parts(head, body))),
        Ok(reply) => {
            let mut response = party::response(reply, asked.head);
            asked.to_caller(response.headers_mut(), pickup, "shm");
            Ok(Sent::Answered(response))
        }
        Err(CallError::Unsent(_)) => Ok(Sent::Not(Request::from_parts(head, body))),
        Err(fault) => Err(lost(wish, fault)),
    }
}

fn lost(wish: &CallTarget, fault: CallError) -> PlatformError {
    let name = &wish.function;
    match fault {
        CallError::Timeout => {
            let text = format!("the instance of {name} had not answered when the deadline passed");
            error(Reason::TotalTimeout, text).governed_by("X-Timeout")
        }
        fault => error(Reason::InstanceDied, format!("an instance of {name}: {fault}")),
    }
}
