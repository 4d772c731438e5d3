//! Calls through shared memory in the event loop.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::TaskStep;
use super::connection::{InlineCall, InlineConnection, InlineState, WaitingCall};
use crate::fast_path::{PlainRequest, SentCall};
use crate::listen::http1::memory_call::MemoryCall;

impl InlineConnection {
    /// Waits for the reply to a request that was sent.
    pub(super) fn begin_memory_call(
        self: &Rc<Self>,
        state: &mut InlineState,
        plain: PlainRequest,
        sent: SentCall,
    ) -> Option<TaskStep> {
        let active = self.client.state.begin_request(true);
        let call = MemoryCall {
            plain,
            sent,
            active,
        };
        self.begin_wait(state, WaitingCall::InMemory(call));
        self.read_reply(state) // a call without a reply registers its waker
    }

    /// Ends the call if its reply has arrived. A short response is written at the end of this round of
    /// events. Any other one is the task's.
    pub(super) fn read_reply(self: &Rc<Self>, state: &mut InlineState) -> Option<TaskStep> {
        let (call, waker) = (&mut state.call, &mut state.waker);
        let Some(WaitingCall::InMemory(waiting)) = call.as_mut().map(InlineCall::call_mut) else {
            return None; // the waker was used for a call before
        };
        let waker = waker.get_or_insert_with(|| self.event_loop().add_waker(self.clone()));
        let answer = Pin::new(&mut waiting.sent.answer);
        let Poll::Ready(outcome) = answer.poll(&mut Context::from_waker(&waker.waker)) else {
            return None;
        };
        let Some(WaitingCall::InMemory(call)) = self.take_call(state) else {
            return None;
        };
        match call.into_replied(outcome).into_short(&self.client) {
            Ok(response) => {
                self.respond_later(state, response);
                None
            }
            Err(replied) => Some(TaskStep::FinishReply(replied)),
        }
    }
}
