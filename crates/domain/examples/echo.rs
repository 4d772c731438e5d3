//! A function process: joins at `NEARPATH_DISPATCH` and gives every body back.
//!
//! With an argument it passes the call on to the function of that name, and gives its answer back.

use std::path::Path;

use nearpath_domain::endpoint::{EndpointSettings, blocking};
use nearpath_domain::{CallDestination, CallError, CallRequest, CallResponse, IncomingCall};
use nearpath_types::{FunctionId, Reason};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket_path =
        std::env::var("NEARPATH_DISPATCH").unwrap_or_else(|_| "/run/nearpath/dispatch".into());
    let next: Option<FunctionId> = std::env::args()
        .nth(1)
        .map(|name| name.parse())
        .transpose()?;
    let mut endpoint =
        blocking::BlockingEndpoint::dial(Path::new(&socket_path), EndpointSettings::default())?;
    Ok(endpoint.serve_calls(|endpoint, incoming| match &next {
        Some(next) => pass_on(endpoint, next, incoming),
        None => CallResponse::ok(std::mem::take(&mut incoming.body)),
    })?)
}

fn pass_on(
    endpoint: &mut blocking::BlockingEndpoint,
    next: &FunctionId,
    incoming: &mut IncomingCall,
) -> CallResponse {
    let request = CallRequest {
        deadline: incoming.deadline,
        ..CallRequest::default()
    };
    let begun = endpoint.begin_call_with(
        CallDestination::Function(next),
        &request,
        &mut incoming.body,
    );
    match begun
        .map_err(CallError::from)
        .and_then(|pending| endpoint.wait_response(pending))
    {
        Ok(reply) => CallResponse {
            status: reply.status,
            body: reply.body,
            ..CallResponse::default()
        },
        Err(_) => {
            CallResponse::platform_error(Reason::InstanceDied, "the next function gave no answer\n")
        }
    }
}
