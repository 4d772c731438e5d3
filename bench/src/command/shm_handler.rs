//! The handler as a function of a chain: the same response, to calls through shared memory.

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_domain::endpoint::EndpointSettings;
use nearpath_domain::endpoint::polled::{AsyncEndpoint, ReceivedCall};
use nearpath_domain::{CallDestination, CallRequest, CallResponse};
use nearpath_types::{FunctionId, Reason};

/// Variable that names the dispatch socket of a domain; see `contract/dispatch.md`.
const DISPATCH_VAR: &str = "NEARPATH_DISPATCH";

/// Serves calls through shared memory beside HTTP if there is a dispatch socket, without a limit of
/// concurrency. Each takes `work` of CPU time; `next` is called before each response.
pub(super) async fn serve_shm(next: Option<FunctionId>, work: Duration, answer: &'static [u8]) {
    // Outside a chain there is no dispatch socket, and HTTP is all there is.
    let Some(socket_path) = std::env::var_os(DISPATCH_VAR) else {
        return;
    };
    let (post, driver) =
        match AsyncEndpoint::dial(Path::new(&socket_path), EndpointSettings::default()).await {
            Ok(joined) => joined,
            Err(error) => return eprintln!("shared memory: {error}"),
        };
    // Before the announcement: the node expects an announced endpoint to answer.
    tokio::task::spawn_local(driver);
    if let Err(error) = post.announce_ready() {
        return eprintln!("shared memory: {error}");
    }
    let next = next.map(Rc::new);
    while let Some(received) = post.next_incoming().await {
        burn_cpu(work);
        match &next {
            None => received.send_response(CallResponse::ok(answer)),
            // A task for each call, or one slow callee would hold up all others.
            Some(next) => drop(tokio::task::spawn_local(answer_call(
                post.clone(),
                next.clone(),
                received,
                answer,
            ))),
        }
    }
}

/// Burns CPU like a computing handler: no other work runs on its thread meanwhile.
fn burn_cpu(work: Duration) {
    // No clock reading without work: it would be a measurable part of a call.
    let end = (!work.is_zero()).then(|| Instant::now() + work);
    while end.is_some_and(|end| Instant::now() < end) {
        // Burns CPU rather than sleeping: a handler that computes keeps its core.
        std::hint::spin_loop();
    }
}

async fn answer_call(
    post: AsyncEndpoint,
    next: Rc<FunctionId>,
    received: ReceivedCall,
    answer: &'static [u8],
) {
    let next_response = match post.call(CallDestination::Function(&next), &CallRequest::default()) {
        Ok(call) => call.await.map(drop).map_err(|error| error.to_string()),
        Err(unsent) => Err(unsent.to_string()),
    };
    received.send_response(match next_response {
        Ok(()) => CallResponse::ok(answer),
        Err(error) => {
            eprintln!("{error}");
            CallResponse::platform_error(Reason::InstanceDied, "the next function did not respond")
        }
    });
}
