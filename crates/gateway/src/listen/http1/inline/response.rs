//! Responses in the event loop: from the function's own port to the caller.

use std::io::IoSlice;
use std::rc::Rc;

use bytes::{Buf, Bytes};

use super::TaskStep;
use super::connection::{InlineConnection, InlineState};
use crate::event_loop::{PolledSocket, Readiness};
use crate::listen::http1::server_call::{CallResponse, ShortResponse};
use crate::transport::Arrived;

impl InlineConnection {
    /// Reads from the function's server. Returns what the loop leaves to the task.
    pub(super) fn read_response(
        self: &Rc<Self>,
        state: &mut InlineState,
        readiness: Readiness,
    ) -> Option<TaskStep> {
        let exchange = &mut state.call.as_mut()?.exchange;
        match exchange.try_read() {
            Ok(Arrived::Response) => self.take_response(state),
            // The task reads the end, too.
            Ok(_) if readiness.has(Readiness::END) => self.hand_call_to_task(state),
            Ok(Arrived::PartOfBody) => {
                exchange.acknowledge_now();
                None
            }
            Ok(Arrived::PartOfHead) => None,
            Err(error) => {
                let call = self.take_call(state)?;
                Some(TaskStep::Finish(call.fail(error)))
            }
        }
    }

    /// Ends the call with a short response, which is written at the end of this round of events. Any
    /// other one is the task's.
    fn take_response(self: &Rc<Self>, state: &mut InlineState) -> Option<TaskStep> {
        match self.take_call(state)?.take_response(&self.client) {
            CallResponse::Short(response) => state.response = Some(response),
            CallResponse::Unfinished(response) => return Some(TaskStep::Finish(response)),
        }
        self.event_loop().note_inline_call();
        self.event_loop().flush_later(self.clone());
        None
    }

    /// Writes the response. Returns what the loop leaves to the task.
    pub(super) fn write_response(&self, state: &mut InlineState) -> Option<TaskStep> {
        let ShortResponse {
            mut head,
            mut body,
            close,
        } = state.response.take()?;
        let socket = state.socket.as_mut()?;
        let written = if body.len() <= head.capacity() - head.len() {
            // One buffer costs the kernel less than two.
            head.extend_from_slice(&body);
            body = Bytes::new();
            socket.try_write(&[IoSlice::new(&head)])
        } else {
            socket.try_write(&[IoSlice::new(&head), IoSlice::new(&body)])
        };
        let mut rest = (&head[..]).chain(body);
        rest.advance(written.unwrap_or(0)); // the task meets an error again
        if rest.has_remaining() || socket.has_unsent_bytes() {
            let rest = rest.copy_to_bytes(rest.remaining());
            return Some(TaskStep::Write { rest, close });
        }
        self.client.state.note_flushed();
        let is_pipelined = !state.buffer.is_empty()
            || socket.has_ended()
            || socket
                .registered()
                .is_some_and(PolledSocket::may_be_readable);
        // A new connection that is kept has a task from now on: time limits and the drain are the task's.
        match (close, state.is_new() || is_pipelined) {
            (true, _) => Some(TaskStep::Close),
            (false, true) => Some(TaskStep::Read),
            (false, false) => None,
        }
    }
}
