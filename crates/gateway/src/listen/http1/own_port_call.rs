//! A plain request at the function's own port. A task and the event loop take the same steps with it.

use bytes::Bytes;

use super::loopback_head::write_head;
use crate::fast_path::{CallLimit, LoopbackCall, PlainCall, PlainRequest};
use crate::listen::client_connection::ClientConnection;
use crate::listen::conn_state::ActiveRequest;
use crate::transport::{
    Exchange, ExchangeError, LoopbackBody, ResponseHead, ServerBody, ServerResponse,
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
    pub(super) outcome: Result<StreamedResponse, ExchangeError>,
}

/// Head of a response, and its body as it arrives.
pub(super) struct StreamedResponse {
    pub(super) head: ResponseHead,
    pub(super) body: Box<LoopbackBody>,
}

impl OpenCall {
    pub(super) fn new(plain: PlainRequest, call: LoopbackCall, active: ActiveRequest) -> Self {
        let LoopbackCall {
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
            outcome: Err(error),
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
            Ok(ServerResponse { head, body }) => match body {
                ServerBody::Buffered(body) => {
                    return CallResponse::Short(self.end_short(client, &head, body));
                }
                ServerBody::Stream(body) => Ok(StreamedResponse { head, body }),
            },
            Err(error) => Err(error),
        };
        CallResponse::Unfinished(Box::new(UnfinishedCall {
            state: self,
            outcome,
        }))
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
