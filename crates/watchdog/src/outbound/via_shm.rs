//! Calls through shared memory, and the meaning of their failures.
//!
//! Calls that provably did not run go to the gateway, which queues, wakes and tries others. All
//! other calls are never repeated.

use bytes::Bytes;
use http::Request;
use http::uri::PathAndQuery;
use nearpath_domain::endpoint::polled::AsyncEndpoint;
use nearpath_domain::{CallDestination, CallError, clock};
use nearpath_types::{PlatformError, Reason};

use super::call_target::CallTarget;
use super::request_context::{OutboundContext, PathHeader};
use super::{OutboundProxy, SendOutcome};
use crate::errors::watchdog_error;
use crate::shm_server;

pub(super) async fn call_via_shm(
    proxy: &OutboundProxy,
    endpoint: &AsyncEndpoint,
    context: &OutboundContext,
    target: &CallTarget,
    request: Request<Bytes>,
) -> Result<SendOutcome<Bytes>, PlatformError> {
    let (mut head, body) = request.into_parts();
    context.prepare_request(&mut head.headers, proxy);
    // In a block, because the fields borrow the head that the gateway may still need.
    let sent = {
        let path = target.function_path(head.uri.path_and_query().map_or("", PathAndQuery::as_str));
        let fields = shm_server::request_fields(&head, &path);
        let deadline = target.timeout.map_or(0, clock::deadline_after);
        let (trace, span) = shm_server::trace_ids(&head.headers);
        let request = nearpath_domain::CallRequest {
            fields: &fields,
            body: body.clone(),
            deadline,
            trace,
            span,
        };
        endpoint.call(CallDestination::Function(&target.function), &request)
    };
    let outcome = match sent {
        Ok(answer) => answer.await,
        // Nothing was written, for lack of a peer or of room.
        Err(_) => return Ok(SendOutcome::NotRun(Request::from_parts(head, body))),
    };
    match outcome {
        // The callee's platform refused before its code saw the call.
        Ok(reply) if reply.did_not_run() => {
            Ok(SendOutcome::NotRun(Request::from_parts(head, body)))
        }
        Ok(reply) => {
            let mut response = shm_server::http_response(reply, context.is_head);
            context.finish_response(
                response.headers_mut(),
                proxy,
                &PathHeader {
                    path: "shm",
                    remote: None,
                },
            );
            Ok(SendOutcome::Answered(response))
        }
        // Not sent, for example for lack of credit: another path may take the call.
        Err(CallError::Unsent(_)) => Ok(SendOutcome::NotRun(Request::from_parts(head, body))),
        Err(fault) => Err(lost_call_error(target, fault)),
    }
}

fn lost_call_error(target: &CallTarget, fault: CallError) -> PlatformError {
    let name = &target.function;
    match fault {
        CallError::Timeout => {
            let text = format!("the instance of {name} had not answered when the deadline passed");
            watchdog_error(Reason::TotalTimeout, text).governed_by("X-Timeout")
        }
        fault => watchdog_error(
            Reason::InstanceDied,
            format!("an instance of {name}: {fault}"),
        ),
    }
}
