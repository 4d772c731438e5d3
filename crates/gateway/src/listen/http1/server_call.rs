//! A plain request at the function's own port. A task and the event loop take the same steps with it.

use bytes::Bytes;

use super::server_head::write_head;
use crate::deliver::may_run_elsewhere;
use crate::fast_path::{CallLimit, Http1Call, PlainCall, PlainRequest};
use crate::listen::client_connection::ClientConnection;
use crate::listen::conn_state::ActiveRequest;
use crate::transport::{
    Exchange, ExchangeError, Http1Body, ResponseHead, ResponseHeadError, ServerBody, ServerResponse,
};

/// Call without a response yet. Dropping it ends the call.
pub(in crate::listen) struct OpenCall {
    pub(super) exchange: Exchange,
    state: CallState,
}

/// State of a call, apart from its connection to the server.
pub(super) struct CallState {
    pub(super) plain: PlainRequest,
    pub(super) call: PlainCall,
    pub(super) limit: CallLimit,
    pub(super) active: ActiveRequest,
}

/// Outcome of a call.
pub(super) enum CallResponse {
    /// A short response, which only has to be written. The call is recorded.
    Short(ShortResponse),
    /// Anything else: the task writes it and records the call.
    Unfinished(Box<UnfinishedCall>),
}

/// Response with its whole body.
pub(super) struct ShortResponse {
    /// Head, with room for a short body.
    pub(super) head: Vec<u8>,
    pub(super) body: Bytes,
    /// The connection to the caller ends after it.
    pub(super) close: bool,
}

/// Call whose response streams, or has failed.
pub(in crate::listen) struct UnfinishedCall {
    pub(super) state: CallState,
    pub(super) outcome: Result<StreamedResponse, CallFailure>,
}

/// Cause for which a call has no response.
pub(super) enum CallFailure {
    /// The call did not run, and may run elsewhere.
    NotRun(String),
    /// The call may have run.
    Lost(ExchangeError),
}

impl From<ExchangeError> for CallFailure {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Head(ResponseHeadError::Refused(why)) => Self::NotRun(why),
            error => Self::Lost(error),
        }
    }
}

/// Head of a response, and its body as it arrives.
pub(super) struct StreamedResponse {
    pub(super) head: ResponseHead,
    pub(super) body: Box<Http1Body>,
}

impl OpenCall {
    pub(super) fn new(plain: PlainRequest, call: Http1Call, active: ActiveRequest) -> Self {
        let Http1Call {
            exchange,
            call,
            limit,
        } = call;
        Self {
            exchange,
            state: CallState {
                plain,
                call,
                limit,
                active,
            },
        }
    }

    /// Waits for the response, or the time limit.
    pub(super) async fn complete(self, client: &ClientConnection) -> CallResponse {
        let CallState { call, limit, .. } = &self.state;
        let deadline = limit.deadline_after(call.record.started_at());
        let outcome = self.exchange.complete_by(deadline).await;
        self.state.end(client, outcome)
    }

    /// Takes the response that has arrived.
    pub(super) fn take_response(self, client: &ClientConnection) -> CallResponse {
        self.state.end(client, self.exchange.into_response())
    }

    /// Ends the call without a response.
    pub(super) fn fail(self, error: ExchangeError) -> Box<UnfinishedCall> {
        Box::new(UnfinishedCall {
            state: self.state,
            outcome: Err(error.into()),
        })
    }
}

impl CallState {
    fn end(
        self,
        client: &ClientConnection,
        outcome: Result<ServerResponse, ExchangeError>,
    ) -> CallResponse {
        let outcome = match outcome {
            Ok(response) if self.is_refused(&response.head) => {
                Err(CallFailure::NotRun(refusal_text(response.body)))
            }
            Ok(ServerResponse { head, body }) => match body {
                ServerBody::Buffered(body) => {
                    return CallResponse::Short(self.end_short(client, &head, body));
                }
                ServerBody::Stream(body) => Ok(StreamedResponse { head, body }),
            },
            Err(error) => Err(error.into()),
        };
        CallResponse::Unfinished(Box::new(UnfinishedCall {
            state: self,
            outcome,
        }))
    }

    /// Returns whether another node has refused the call as not run, so that it may run elsewhere.
    fn is_refused(&self, head: &ResponseHead) -> bool {
        if !self.call.is_remote() {
            return false; // the field would be the function's own
        }
        let reason = head.not_run_reason().filter(|one| may_run_elsewhere(*one));
        self.call.note_answer(reason.is_none());
        reason.is_some()
    }

    fn end_short(
        self,
        client: &ClientConnection,
        head: &ResponseHead,
        body: Bytes,
    ) -> ShortResponse {
        let Self { plain, call, .. } = self;
        let took = call.elapsed();
        let close = plain.closes_connection() || client.state.is_draining();
        let response = ShortResponse {
            head: write_head(client, &plain, &call, head, body.len(), took, close),
            body,
            close,
        };
        // Recorded before the write: the function is done, and a slow caller must not occupy it.
        call.complete_call(head.status.as_u16(), response.body.len() as u64, took);
        response
    }
}

/// Returns the text of a refusal, which explains the error if no other node takes the call.
fn refusal_text(body: ServerBody) -> String {
    match body {
        ServerBody::Buffered(text) => String::from_utf8_lossy(&text).trim_end().to_owned(),
        ServerBody::Stream(_) => "the node refused the call".to_owned(), // refusals are short
    }
}
