//! The path `quic`: a request uses a stream of a shared connection, possibly in its first flight.
//!
//! A small body is collected first, so that a call that provably did not run can be repeated. A
//! larger one is streamed. If UDP is blocked, the call takes another path.

mod early_data;

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Response;
use nearpath_types::policy::ZeroRttPolicy;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::quic::{self as wire, CallTerms, CallerConnection, QuicCallError};

use super::attempt_outcome::AttemptOutcome;
use super::buffered_request::BufferedRequest;
use super::delivery_errors::{broken_call_error, timeout_error, unsent_error};
use super::instance_body::InstanceBody;
use super::retry_copy::{may_run_elsewhere, read_refusal_text};
use super::shm_head::trace_ids;
use super::time_limits::await_within;
use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::context::WorkerContext;
use crate::function::{DialTarget, FunctionEndpoint, monotonic_millis};
use crate::request::RequestUpload;
use crate::transport::{AcquiredQuic, QuicUnavailable};

/// Maximum handshake time before the call takes another path; far more than a round trip.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum silence of an open connection after data was sent on it. Includes time for a worker
/// that gets no CPU.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// Result of one attempt on one connection.
enum QuicOutcome {
    Answered(Response<Box<wire::QuicResponseBody>>),
    /// The call did not run, and the cause.
    NotRun(String),
    /// No packet came back, not even of the handshake; the flag tells whether the call may be
    /// repeated.
    Silent(bool),
    /// The call may have run.
    Broken(QuicCallError),
}

/// Sends the request over QUIC and waits for the head of the response. `None`: UDP is blocked,
/// which is noted, and the request is back in the call.
///
/// # Errors
/// As [`super::attempt::try_instance`].
pub(super) async fn try_quic(
    call: &mut GatewayCall,
    endpoint: &Arc<FunctionEndpoint>,
) -> Result<Option<AttemptOutcome>, PlatformError> {
    let limit = call.worker.connect_timeout.min(HANDSHAKE_TIMEOUT);
    let mut buffered = BufferedRequest::take_from(call, endpoint).await?;
    // Counted for every call, successful or not: warm-up follows demand.
    call.worker
        .connections_to(&endpoint.target)
        .quic
        .note_call(&call.function, call.worker.current_tick());
    loop {
        let AcquiredQuic { connection, is_new } = match call
            .worker
            .connections_to(&endpoint.target)
            .quic
            .acquire_connection(&endpoint.target, call.worker.current_tick(), limit)
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
                // The instance accepts no more calls here, but open calls on this connection go
                // on.
                call.worker
                    .connections_to(&endpoint.target)
                    .quic
                    .retire_connection(&endpoint.target, &connection);
                if is_new {
                    return Ok(return_request(call, buffered, Some(why)));
                } // an older connection may have ended meanwhile: dial a new one
            }
            Ok(QuicOutcome::Silent(is_repeatable)) => {
                note_silence(call, endpoint, &connection);
                return if is_repeatable {
                    Ok(return_request(call, buffered, None))
                } else {
                    Err(lost_error(call, endpoint, UNKNOWN_OUTCOME))
                };
            }
            Ok(QuicOutcome::Broken(error)) => {
                return Err(broken_quic_error(call, endpoint, &connection, error));
            }
            Err(reason) => return Err(timeout_error(call, endpoint, reason)),
        }
    }
}

/// Opens connections ahead of calls, after a snapshot with new instances or nodes.
pub(crate) fn open_ahead_of_calls(worker: &Rc<WorkerContext>) {
    let quic = &worker.instance_connections.quic;
    let instances = quic.warmup_targets(worker.current_tick());
    let nodes = worker.table.nodes();
    let nodes = nodes.all().filter(|node| !node.udp.is_blocked_now());
    for target in instances.iter().chain(nodes) {
        let (worker, target) = (worker.clone(), target.clone());
        tokio::task::spawn_local(async move { open_ahead(&worker, &target).await });
    }
}

async fn open_ahead(worker: &WorkerContext, target: &Arc<DialTarget>) {
    let limit = worker.connect_timeout.min(HANDSHAKE_TIMEOUT);
    let quic = &worker.connections_to(target).quic;
    let acquired = quic.acquire_connection(target, worker.current_tick(), limit);
    // A failed attempt is not reported: the next call dials again and reports its own error.
    if let Ok(AcquiredQuic { is_new: true, .. }) = acquired.await {
        worker.totals.quic.note_opened_ahead();
    }
}

/// Error text for a call in a first flight without an answer.
const UNKNOWN_OUTCOME: &str = "no answer over UDP; it may have run";

/// Puts the request back. `why` names the cause; `None` allows another path to the same instance.
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
    endpoint: &FunctionEndpoint,
    connection: &CallerConnection,
    buffered: &mut BufferedRequest,
) -> QuicOutcome {
    // The instance gets the remaining time, so that it stops working when no caller waits any
    // more.
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
    let (setting, method) = (zero_rtt_policy(call, endpoint), &buffered.head.method);
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
        // A call that may not run twice is awaited further: only its own answer tells whether it
        // ran.
        Err(calling) => {
            // Other calls take another path; this one may have run.
            endpoint
                .target
                .udp
                .note_failure(monotonic_millis(Instant::now()));
            QuicOutcome::from_result(calling.await)
        }
    }
}

/// Returns the calls that may go in a first flight. To another node, a call that may not run twice waits for
/// the handshake: connections are there as a rule, and a node that has ended could not tell that it did
/// not run.
fn zero_rtt_policy(call: &GatewayCall, endpoint: &FunctionEndpoint) -> ZeroRttPolicy {
    match call.route.policy.zero_rtt {
        ZeroRttPolicy::Always if endpoint.is_remote() => ZeroRttPolicy::Idempotent,
        setting => setting,
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

/// Awaits the answer; returns the call if not even an acknowledgment came for
/// [`SILENCE_TIMEOUT`].
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
    // Any received byte proves that UDP gets through, also those of other calls on this
    // connection.
    if connection.datagrams_received() == before {
        Err(calling)
    } else {
        Ok(calling.await)
    }
}

/// Sends a body that is still arriving. Waits for the handshake, because it could not be sent
/// again.
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
    let (first, remaining) = (
        std::mem::take(&mut buffered.first_chunk),
        std::mem::replace(&mut buffered.remaining, RequestUpload::Empty),
    );
    match connection
        .call_parts(&buffered.head, remaining.with_first_chunk(first), terms)
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

/// Handles the instance's answer. A refusal puts a complete request back into the call.
async fn handle_answer(
    call: &mut GatewayCall,
    endpoint: &FunctionEndpoint,
    response: Response<Box<wire::QuicResponseBody>>,
    buffered: BufferedRequest,
) -> Result<AttemptOutcome, PlatformError> {
    if call
        .upload_progress
        .as_ref()
        .is_some_and(|progress| progress.fault().is_some())
    {
        // The answer is to a part of the request only.
        return Err(broken_call_error(call, endpoint, None));
    }
    endpoint.target.udp.note_answer();
    call.worker
        .totals
        .quic
        .note_answered(response.body().was_early());
    // Only the envelope counts. A header can be written by the function itself.
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

/// Returns the error for a call that broke. Notes a connection that fell silent.
fn broken_quic_error(
    call: &GatewayCall,
    endpoint: &FunctionEndpoint,
    connection: &CallerConnection,
    error: QuicCallError,
) -> PlatformError {
    match error {
        // Our own encoder refused the head. Every instance would get the same one, so no other is
        // tried.
        QuicCallError::InvalidHead(fault) => headers_too_large_error(&fault),
        QuicCallError::NotRun(why) => unsent_error(call, endpoint, &why),
        error => {
            if connection.is_stalled() {
                note_silence(call, endpoint, connection);
            }
            // Never repeated: an answer may be lost on the way back although the function ran.
            lost_error(call, endpoint, &format!("{error}; it may have run"))
        }
    }
}

/// Closes a silent connection, so that its other calls fail at once and take another path.
fn note_silence(call: &GatewayCall, endpoint: &FunctionEndpoint, connection: &CallerConnection) {
    call.worker.totals.quic.note_silence();
    endpoint
        .target
        .udp
        .note_failure(monotonic_millis(Instant::now()));
    connection.close();
}

fn lost_error(call: &GatewayCall, endpoint: &FunctionEndpoint, why: &str) -> PlatformError {
    if call
        .upload_progress
        .as_ref()
        .is_some_and(|progress| progress.fault().is_some())
    {
        return broken_call_error(call, endpoint, None);
    }
    let message = format!(
        "{} of {} closed the connection before it answered: {why}",
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
