//! Calls and events that were received, each to be answered once.

use std::rc::Rc;

use nearpath_types::Reason;

use super::shared::Shared;
use super::writer::Writer;
use crate::clock;
use crate::post::rest::Rest;
use crate::post::words::{Answer, Incoming};

/// A call or event that was received. One that is dropped without an answer is answered with status 500.
#[derive(Debug)]
pub struct Received {
    shared: Rc<Shared>,
    incoming: Option<Incoming>,
}

impl std::ops::Deref for Received {
    type Target = Incoming;

    fn deref(&self) -> &Incoming {
        self.incoming.as_ref().expect("taken only by answer and drop, which consume it")
    }
}

impl std::ops::DerefMut for Received {
    fn deref_mut(&mut self) -> &mut Incoming {
        self.incoming.as_mut().expect("taken only by answer and drop, which consume it")
    }
}

impl Received {
    pub(super) fn new(shared: &Rc<Shared>, incoming: Incoming) -> Self {
        Self { shared: Rc::clone(shared), incoming: Some(incoming) }
    }

    /// Answers. An event has no answer: nothing is sent.
    pub fn answer(mut self, answer: Answer) {
        self.finish(answer);
    }

    /// Begins an answer; the rest of its body goes through the writer, `total` bytes in all, if that is known.
    pub fn begin(mut self, answer: Answer, total: Option<u64>) -> Writer {
        let (channel, call) = (self.channel, self.call);
        let mut incoming = self.incoming.take();
        drop(incoming.as_mut().and_then(|incoming| incoming.rest.take()));
        self.shared.core.borrow_mut().begin_answer(channel, call, answer, total);
        self.shared.rearm();
        Writer::new(&self.shared, channel, call)
    }

    /// What follows the first part of the body, to be read while the answer is written.
    pub fn take_rest(&mut self) -> Option<Rest> {
        self.incoming.as_mut().and_then(|incoming| incoming.rest.take())
    }

    /// Resolves when the caller has given the call up, or is gone.
    pub async fn given_up(&self) {
        self.shared.given_up(self.channel, self.call).await;
    }

    fn finish(&mut self, answer: Answer) {
        let Some(incoming) = self.incoming.take() else { return };
        let (channel, call, event) = (incoming.channel, incoming.call, incoming.event);
        drop(incoming); // its slot is free for the answer
        if !event {
            self.shared.core.borrow_mut().answer(channel, call, answer, clock::now());
            self.shared.rearm();
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.finish(Answer::platform(Reason::FunctionFailed, "the handler gave no answer\n"));
    }
}
