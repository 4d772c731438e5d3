//! One try to have a request answered by one instance.

use std::sync::Arc;

use nearpath_path::{Obstacle, Path, Plan};
use nearpath_types::PlatformError;
use nearpath_wire::client::ConnectError;

use super::attempt_outcome::Attempt;
use super::delivery_errors::too_late;
use super::time_limits::within;
use super::{path_choice, quic, retry_copy, shm};
use crate::call::Call;
use crate::function::Endpoint;
use crate::transport::{Cover, Line};

/// Sends the call's request to `endpoint` over a pooled or a new connection and waits for the head of its answer.
///
/// # Errors
/// Everything after which the request may have run: it is not sent again.
pub(crate) async fn attempt(call: &mut Call, endpoint: &Arc<Endpoint>) -> Result<Attempt, PlatformError> {
    let (mut plan, post) = path_choice::plan(call, endpoint);
    if let Some(post) = post {
        // On the heap, because not every request comes here and this future is copied into its place.
        let answered = Box::pin(shm::attempt(call, endpoint, post)).await?;
        if !matches!(answered, Attempt::Unsent(_)) {
            return Ok(answered);
        }
        plan = path_choice::next(call, plan, Path::Shm, Obstacle::NoRoom);
    }
    match plan.first().path {
        Path::Quic => Box::pin(over_quic(call, endpoint, plan)).await,
        path => over_tcp(call, endpoint, path).await,
    }
}

/// What does not get through over UDP goes over TCP.
async fn over_quic(call: &mut Call, endpoint: &Arc<Endpoint>, plan: Plan) -> Result<Attempt, PlatformError> {
    if let Some(attempt) = quic::attempt(call, endpoint).await? {
        return Ok(attempt);
    }
    let plan = path_choice::next(call, plan, Path::Quic, Obstacle::UdpBlocked);
    over_tcp(call, endpoint, plan.first().path).await
}

/// What `path` names decides how a line is opened, and among which idle ones it is looked for.
async fn over_tcp(call: &mut Call, endpoint: &Arc<Endpoint>, path: Path) -> Result<Attempt, PlatformError> {
    let (cover, h2) = (path_choice::cover(path, endpoint.transport), call.asked.grpc);
    let mut pooled = call.lane.pools.take(endpoint, cover, h2);
    loop {
        let fresh = pooled.is_none();
        let mut line = match pooled.take() {
            Some(line) => line,
            // Rare, so on the heap: every request's future would be as large otherwise, and it is copied into its place.
            None => match Box::pin(open(call, endpoint, cover)).await {
                Ok(line) => line,
                Err(error) => return Ok(Attempt::Unsent(error.to_string())),
            },
        };
        let careful = endpoint.is_wary() || line.is_on_trial();
        let spare = if fresh || careful { Box::pin(retry_copy::copy(call, endpoint, careful)).await? } else { None };
        let request = call.request.take().expect("an unsent request is put back");
        match within(&call.clock, call.admitted, call.flow.as_ref(), line.send(request)).await {
            Ok(Ok(response)) => return Ok(retry_copy::answered(call, endpoint, response, line, spare).await),
            Ok(Err(mut error)) => {
                call.request = error.take_message();
                let error = error.into_error();
                match call.request {
                    None => return retry_copy::unanswered(call, endpoint, &line, spare, &error),
                    Some(_) if fresh => return Ok(Attempt::Unsent(error.to_string())),
                    Some(_) => {} // the pooled connection had been closed: a new one
                }
            }
            Err(reason) => return Err(too_late(call, endpoint, reason)),
        }
    }
}

async fn open(call: &Call, endpoint: &Arc<Endpoint>, cover: Cover) -> Result<Line, ConnectError> {
    let caller = if cover == Cover::Plain { None } else { call.lane.lines.caller() };
    call.lane.pools.open(endpoint, cover, call.asked.grpc, call.lane.connect_timeout, caller).await
}
