//! A call through memory, and what it means when it does not come to an answer.
//!
//! What provably did not run goes to the gateway, which queues, wakes and tries others; anything else is never repeated.

use bytes::Bytes;
use http::Request;
use http::header::HeaderValue;
use http::uri::PathAndQuery;
use nearpath_domain::post::polled::Post;
use nearpath_domain::{CallError, To, clock};
use nearpath_types::{PlatformError, Reason};

use super::identity::Asked;
use super::wish::Wish;
use super::{Pickup, Sent};
use crate::party;
use crate::refusal::error;

pub(super) async fn call(
    pickup: &Pickup,
    post: &Post,
    asked: &Asked,
    wish: &Wish,
    request: Request<Bytes>,
) -> Result<Sent<Bytes>, PlatformError> {
    let (mut head, body) = request.into_parts();
    let authority = head.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    asked.to_function(&mut head.headers, authority, pickup);
    let sent = {
        let path = wish.path(head.uri.path_and_query().map_or("", PathAndQuery::as_str));
        let fields = party::fields(&head, &path);
        let deadline = wish.timeout.map_or(0, clock::within);
        let (trace, span) = party::traced(&head.headers);
        let request = nearpath_domain::Request { fields: &fields, body: body.clone(), deadline, trace, span };
        post.call(To::Function(&wish.function), &request)
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

fn lost(wish: &Wish, fault: CallError) -> PlatformError {
    let name = &wish.function;
    match fault {
        CallError::Timeout => {
            let text = format!("the instance of {name} had not answered when the deadline passed");
            error(Reason::TotalTimeout, text).governed_by("X-Timeout")
        }
        fault => error(Reason::InstanceDied, format!("an instance of {name}: {fault}")),
    }
}
