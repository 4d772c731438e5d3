//! Requests in the event loop: from the caller to the function's own port.

use std::io;
use std::rc::Rc;

use bytes::BytesMut;

use super::TaskStep;
use super::connection::{InlineConnection, InlineState};
use crate::fast_path::{self, Http1Call, Http1Draft, ParseOutcome, PlainRequest};
use crate::listen::http1::server_call::OpenCall;
use crate::listen::http1::{FoundFunction, find_function, take_request};

impl InlineConnection {
    /// Reads a request and prepares its call. Returns what the loop leaves to the task.
    pub(super) fn read_request(self: &Rc<Self>, state: &mut InlineState) -> Option<TaskStep> {
        let socket = state.socket.as_mut()?;
        match socket.try_read(&mut state.buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            // The task meets the same end or error again.
            Ok(0) | Err(_) => return Some(TaskStep::Read),
            Ok(_) => self.client.state.note_read(),
        }
        let parsed = take_request(&self.client, &mut state.buffer);
        if state.buffer.is_empty() {
            state.buffer = BytesMut::new(); // an idle connection keeps no memory of its last request
        }
        match parsed {
            ParseOutcome::Plain(plain) => self.begin_request(state, plain),
            ParseOutcome::Incomplete | ParseOutcome::NotPlain => Some(TaskStep::Read),
        }
    }

    fn begin_request(
        self: &Rc<Self>,
        state: &mut InlineState,
        plain: PlainRequest,
    ) -> Option<TaskStep> {
        self.client.state.set_protocol(false);
        match self.draft_call(&plain) {
            Some(call) => {
                self.begin_call(state, plain, call);
                None
            }
            None => Some(TaskStep::Answer(plain)),
        }
    }

    /// Returns a call that needs no wait. `None`: nothing has happened, and the task answers.
    fn draft_call(&self, plain: &PlainRequest) -> Option<Http1Call> {
        let (worker, peer) = (&self.client.worker, &self.client.peer);
        let FoundFunction {
            function,
            path_offset,
        } = find_function(&self.client, plain)?;
        if fast_path::uses_shared_memory(worker, &function) {
            return None;
        }
        let draft = Http1Draft::new(worker, peer, plain, &function, path_offset)?;
        draft.connect_idle(worker, peer, plain)
    }

    /// Begins a call, which is written at the end of this round of events.
    fn begin_call(self: &Rc<Self>, state: &mut InlineState, plain: PlainRequest, call: Http1Call) {
        let active = self.client.state.begin_request(true);
        let open = OpenCall::new(plain, call, active);
        self.event_loop()
            .attach(open.exchange.socket(), self.clone());
        self.event_loop().flush_later(self.clone());
        self.begin_wait(state);
        state.call = Some(open);
    }

    /// Writes the request of the open call. Returns what the loop leaves to the task: a long one, or
    /// a connection that has failed.
    pub(super) fn write_request(&self, state: &mut InlineState) -> Option<TaskStep> {
        match state.call.as_mut()?.exchange.try_write() {
            true => None,
            false => self.hand_call_to_task(state),
        }
    }
}
