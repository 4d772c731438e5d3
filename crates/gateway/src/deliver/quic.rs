//! The path `quic`: a request goes to an instance on a stream of a connection that many calls share, maybe in its first flight.
//!
//! A small body is collected first, so that the call can be made again where it provably has not run; a larger one follows as it comes.
//! What does not get through over UDP takes another path.

mod early_data;

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::quic::{self as wire, CallTerms, CallerConnection, QuicCallError};

use super::attempt_outcome::AttemptOutcome;
use super::buffered_request::BufferedRequest;
use super::delivery_errors::{broken_call_error, timeout_error, unsent_error};
use super::instance_body::InstanceBody;
use super::retry_copy::{may_run_elsewhere, read_refusal_text};
use super::shm::trace_ids;
use super::time_limits::await_within;
use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::context::WorkerContext;
use crate::function::{InstanceEndpoint, monotonic_millis};
use crate::request::RequestUpload;
use crate::transport::{AcquiredQuic, QuicUnavailable};

/// How long a handshake may take before the call goes another way: far more than a round trip.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an open line may bring nothing at all after something was sent on it. A worker that has no processor may need some of that.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// What came of one try on one line.
enum QuicOutcome {
    Answered(Response<Box<wire::QuicResponseBody>>),
    /// It was not made, and why.
    NotRun(String),
    /// Nothing came back over UDP, not even of the handshake; whether it can be made again.
    Silent(bool),
    /// It may have run.
    Broken(QuicCallError),
}

/// Sends the call's request and waits for the head of its answer. `NoConnection`: nothing gets through over UDP, which is noted; the request is back
/// in the call, for another path.
///
/// # Errors
/// As [`super::attempt::attempt`].
pub(super) async fn try_quic(
    call: &mut GatewayCall,
    endpoint: &Arc<InstanceEndpoint>,
) -> Result<Option<AttemptOutcome>, PlatformError> {
    let limit = call.worker.connect_timeout.min(HANDSHAKE_TIMEOUT);
    let mut buffered = BufferedRequest::take_from(call, endpoint).await?;
    call.worker
        .quic_connections
        .note_call(&call.function, call.worker.current_tick());
    loop {
        let AcquiredQuic { connection, is_new } = match call
            .worker
            .quic_connections
            .acquire_connection(endpoint, call.worker.current_tick(), limit)
            .await
        {
            Ok(found) => found,
            Err(QuicUnavailable::Blocked) => {
                call.worker.totals.quic.note_silence();
                return Ok(return_request(call, buffered, None));
            }
            Err(QuicUnavailable::Failed(why)) => {
                return Ok(return_request(call, buffered, Some(why)));
            }
        };
        let sending = send_request(call, endpoint, &connection, &mut buffered);
        match await_within(
            &call.deadlines,
            call.admitted_at,
            call.upload_progress.as_ref(),
            sending,
        )
        .await
        {
            Ok(QuicOutcome::Answered(response)) => {
                return handle_answer(call, endpoint, response, buffered)
                    .await
                    .map(Some);
            }
            Ok(QuicOutcome::NotRun(why)) => {
                call.worker
                    .quic_connections
                    .retire_connection(endpoint, &connection);
                if is_new {
                    return Ok(return_request(call, buffered, Some(why)));
                } // else it had ended meanwhile: a new one
            }
            Ok(QuicOutcome::Silent(is_repeatable)) => {
                note_silence(call, endpoint, &connection);
                return if is_repeatable {
                    Ok(return_request(call, buffered, None))
                } else {
                    Err(lost_error(call, endpoint, UNKNOWN_OUTCOME))
                };
            }
            Ok(QuicOutcome::Broken(QuicCallError::InvalidHead(fault))) => {
                return Err(headers_too_large_error(&fault));
            }
            Ok(QuicOutcome::Broken(QuicCallError::NotRun(why))) => {
                return Err(unsent_error(call, endpoint, &why));
            }
            Ok(QuicOutcome::Broken(error)) => {
                if connection.is_stalled() {
                    note_silence(call, endpoint, &connection);
                }
                return Err(lost_error(
                    call,
                    endpoint,
                    &format!("{error}; it may have run"),
                ));
            }
            Err(reason) => return Err(timeout_error(call, endpoint, reason)),
        }
    }
}

/// Opens lines ahead of calls, after a snapshot has brought new instances.
pub(crate) fn open_ahead_of_calls(worker: &Rc<WorkerContext>) {
    for endpoint in worker
        .quic_connections
        .warmup_targets(worker.current_tick())
    {
        let worker = worker.clone();
        tokio::task::spawn_local(async move {
            let limit = worker.connect_timeout.min(HANDSHAKE_TIMEOUT);
            if let Ok(AcquiredQuic { is_new: true, .. }) = worker
                .quic_connections
                .acquire_connection(&endpoint, worker.current_tick(), limit)
                .await
            {
                worker.totals.quic.note_opened_ahead();
            }
        });
    }
}

/// What a caller is told whose call went early and brought nothing back.
const UNKNOWN_OUTCOME: &str = "no answer over UDP; it may have run";

/// The request is the call's again. `why` it was not sent; nothing: another path may do.
fn return_request(
    call: &mut GatewayCall,
    buffered: BufferedRequest,
    why: Option<String>,
) -> Option<AttemptOutcome> {
    buffered.put_back_into(call);
    why.map(AttemptOutcome::Unsent)
}

async fn send_request(
    call: &GatewayCall,
    endpoint: &InstanceEndpoint,
    connection: &CallerConnection,
    buffered: &mut BufferedRequest,
) -> QuicOutcome {
    let left = call
        .deadlines
        .deadline()
        .saturating_duration_since(Instant::now());
    let terms = CallTerms {
        timeout: Some(left),
        trace_context: trace_ids(&buffered.head),
    };
    if !buffered.is_complete {
        return send_streamed(connection, buffered, terms).await;
    }
    let (setting, method) = (call.route.policy.zero_rtt, &buffered.head.method);
    let early =
        early_data::select_early_data(setting, method, call.worker.totals.quic.is_udp_proven());
    let calling = pin!(connection.call_buffered_parts(
        &buffered.head,
        buffered.first_chunk.clone(),
        early,
        terms
    ));
    match await_answer_or_silence(connection, calling).await {
        Ok(Err(QuicCallError::NoResponse(_))) => {
            QuicOutcome::Silent(early_data::is_repeatable(early, method))
        }
        Ok(Err(QuicCallError::NotRun(_))) if connection.is_stalled() => QuicOutcome::Silent(true),
        Ok(Err(QuicCallError::Interrupted(_)))
            if connection.is_stalled() && method.is_idempotent() =>
        {
            QuicOutcome::Silent(true)
        }
        Ok(answer) => QuicOutcome::from_result(answer),
        Err(_) if method.is_idempotent() => QuicOutcome::Silent(true),
        Err(calling) => {
            endpoint.udp.note_failure(monotonic_millis(Instant::now())); // others take another path; of this one nobody knows whether it ran
            QuicOutcome::from_result(calling.await)
        }
    }
}

type QuicCallResult = Result<Response<wire::QuicResponseBody>, QuicCallError>;

impl QuicOutcome {
    fn from_result(result: QuicCallResult) -> Self {
        match result {
            Ok(response) => Self::Answered(response.map(Box::new)),
            Err(QuicCallError::NotRun(why)) => Self::NotRun(why),
            Err(error) => Self::Broken(error),
        }
    }
}

/// What was answered; or the call, which goes on, when for a while not even that what was sent has arrived.
async fn await_answer_or_silence<F: Future<Output = QuicCallResult> + Unpin>(
    connection: &CallerConnection,
    mut calling: F,
) -> Result<QuicCallResult, F> {
    let before = connection.datagrams_received();
    tokio::select! {
        biased;
        answer = &mut calling => return Ok(answer),
        () = tokio::time::sleep(SILENCE_TIMEOUT) => {}
    }
    if connection.datagrams_received() == before {
        Err(calling)
    } else {
        Ok(calling.await)
    }
}

/// A body that is still coming waits for the handshake: it could not be sent again.
async fn send_streamed(
    connection: &CallerConnection,
    buffered: &mut BufferedRequest,
    terms: CallTerms,
) -> QuicOutcome {
    match connection.wait_handshake().await {
        Err(_) if connection.is_stalled() => return QuicOutcome::Silent(true),
        Err(error) => return QuicOutcome::NotRun(error.to_string()),
        Ok(_) => {}
    }
    let (first, rest) = (
        std::mem::take(&mut buffered.first_chunk),
        std::mem::replace(&mut buffered.remaining, RequestUpload::Empty),
    );
    match connection
        .call_parts(&buffered.head, rest.with_first_chunk(first), terms)
        .await
    {
        Ok(response) => QuicOutcome::Answered(response.map(Box::new)),
        Err((QuicCallError::NotRun(why), Some(body))) => {
            buffered.remaining = body;
            QuicOutcome::NotRun(why)
        }
        Err((error, _)) => QuicOutcome::Broken(error),
    }
}

/// What the instance said: an answer; or that it has not run the call, which is then the call's again if it is there as a whole.
async fn handle_answer(
    call: &mut GatewayCall,
    endpoint: &InstanceEndpoint,
    response: Response<Box<wire::QuicResponseBody>>,
    buffered: BufferedRequest,
) -> Result<AttemptOutcome, PlatformError> {
    if call
        .upload_progress
        .as_ref()
        .is_some_and(|flow| flow.fault().is_some())
    {
        return Err(broken_call_error(call, endpoint, None)); // what was answered is not the answer to the whole request
    }
    endpoint.udp.note_answer();
    call.worker
        .totals
        .quic
        .note_answered(response.body().was_early());
    let refusal = response
        .body()
        .opening()
        .refusal_reason()
        .filter(|reason| reason.did_not_run() && may_run_elsewhere(*reason));
    match refusal.filter(|_| buffered.is_complete) {
        None => Ok(AttemptOutcome::Answered(
            response.map(InstanceBody::Quic),
            None,
        )),
        Some(reason) => {
            let why = read_refusal_text(reason, response.into_body()).await;
            buffered.put_back_into(call);
            Ok(AttemptOutcome::Refused(why))
        }
    }
}

/// Others on the same line get the same answer at once.
fn note_silence(call: &GatewayCall, endpoint: &InstanceEndpoint, connection: &CallerConnection) {
    call.worker.totals.quic.note_silence();
    endpoint.udp.note_failure(monotonic_millis(Instant::now()));
    connection.close();
}

fn lost_error(call: &GatewayCall, endpoint: &InstanceEndpoint, why: &str) -> PlatformError {
    if call
        .upload_progress
        .as_ref()
        .is_some_and(|flow| flow.fault().is_some())
    {
        return broken_call_error(call, endpoint, None);
    }
    let message = format!(
        "instance {} of {} broke off before it had answered: {why}",
        endpoint.id, call.function.name
    );
    PlatformError::new(COMPONENT, Reason::InstanceDied, message)
}

fn headers_too_large_error(fault: &dyn std::fmt::Display) -> PlatformError {
    PlatformError::new(
        COMPONENT,
        Reason::HeadersTooLarge,
        format!("the request's header fields: {fault}"),
    )
}
