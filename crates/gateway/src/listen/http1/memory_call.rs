//! A plain request through shared memory. A task and the event loop take the same steps with it.

use bytes::Bytes;
use nearpath_domain::{CallError, CallReply};

use super::fast_response::{ShortHead, is_bodiless, write_head};
use super::own_port_call::ShortResponse;
use crate::fast_path::{PlainCall, PlainRequest, SentCall};
use crate::listen::client_connection::ClientConnection;
use crate::listen::conn_state::ActiveRequest;

/// Call without a reply yet. Dropping it cancels the call.
pub(super) struct MemoryCall {
    pub(super) plain: PlainRequest,
    pub(super) sent: SentCall,
    pub(super) active: ActiveRequest,
}

/// Call whose reply has arrived, or has failed.
pub(super) struct RepliedCall {
    pub(super) plain: PlainRequest,
    pub(super) call: PlainCall,
    pub(super) active: ActiveRequest,
    pub(super) outcome: Result<CallReply, CallError>,
}

impl MemoryCall {
    /// Adds the outcome of [`SentCall::answer`].
    pub(super) fn into_replied(self, outcome: Result<CallReply, CallError>) -> RepliedCall {
        let Self {
            plain,
            sent,
            active,
        } = self;
        RepliedCall {
            plain,
            call: sent.call,
            active,
            outcome,
        }
    }
}

impl RepliedCall {
    /// Ends a call whose response only has to be written.
    ///
    /// # Errors
    /// The call itself, if its reply streams or failed, or the function did not run.
    pub(super) fn into_short(self, client: &ClientConnection) -> Result<ShortResponse, Box<Self>> {
        let Self {
            plain,
            call,
            mut active,
            outcome,
        } = self;
        let close = plain.closes_connection() || client.state.is_draining();
        let head = match &outcome {
            Ok(reply) if !reply.did_not_run() => write_head(client, &call, reply, close),
            _ => None,
        };
        let (
            ShortHead {
                status,
                bytes: head,
            },
            reply,
        ) = match (head, outcome) {
            (Some(head), Ok(reply)) => (head, reply),
            (_, outcome) => {
                return Err(Box::new(Self {
                    plain,
                    call,
                    active,
                    outcome,
                }));
            }
        };
        let body: Bytes = match is_bodiless(status) {
            true => Bytes::new(),
            false => reply.body.into(),
        };
        // Recorded before the write: the instance is done, and a slow caller must not occupy it.
        let took = call.elapsed();
        call.complete_call(status.as_u16(), body.len() as u64, took);
        active.mark_untaken();
        Ok(ShortResponse { head, body, close })
    }
}
