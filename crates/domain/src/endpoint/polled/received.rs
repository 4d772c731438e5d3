//! Received calls and events, each to be answered once.

use std::rc::Rc;

use nearpath_types::Reason;

use super::shared::SharedEndpoint;
use super::writer::BodyWriter;
use crate::clock;
use crate::endpoint::body_reader::BodyReader;
use crate::endpoint::types::{CallResponse, IncomingCall};

/// A received call or event. Dropping it without a response sends status 500.
#[derive(Debug)]
pub struct ReceivedCall {
    shared: Rc<SharedEndpoint>,
    incoming: Option<IncomingCall>,
}

impl std::ops::Deref for ReceivedCall {
    type Target = IncomingCall;

    fn deref(&self) -> &IncomingCall {
        self.incoming
            .as_ref()
            .expect("taken only by answer and drop, which consume it")
    }
}

impl std::ops::DerefMut for ReceivedCall {
    fn deref_mut(&mut self) -> &mut IncomingCall {
        self.incoming
            .as_mut()
            .expect("taken only by answer and drop, which consume it")
    }
}

impl ReceivedCall {
    pub(super) fn new(shared: &Rc<SharedEndpoint>, incoming: IncomingCall) -> Self {
        Self {
            shared: Rc::clone(shared),
            incoming: Some(incoming),
        }
    }

    /// Responds. For an event nothing is sent.
    pub fn send_response(mut self, answer: CallResponse) {
        self.respond_once(answer);
    }

    /// Begins a response whose body goes through the writer, `total` bytes if known.
    pub fn begin_response(mut self, answer: CallResponse, total: Option<u64>) -> BodyWriter {
        let (channel, call) = (self.channel, self.call);
        // Taken first: `Drop` must not send an error response on top.
        let mut incoming = self.incoming.take();
        // An unread request body is dropped now, so that its sender stops.
        drop(
            incoming
                .as_mut()
                .and_then(|incoming| incoming.reader.take()),
        );
        self.shared
            .core
            .borrow_mut()
            .begin_response(channel, call, answer, total);
        self.shared.wake_driver_if_due();
        BodyWriter::new(&self.shared, channel, call)
    }

    /// Takes the reader of the remaining body, to read it while the response is written.
    pub fn take_reader(&mut self) -> Option<BodyReader> {
        self.incoming
            .as_mut()
            .and_then(|incoming| incoming.reader.take())
    }

    /// Resolves when the caller cancelled the call, or is gone.
    pub async fn given_up(&self) {
        self.shared.given_up(self.channel, self.call).await;
    }

    fn respond_once(&mut self, answer: CallResponse) {
        let Some(incoming) = self.incoming.take() else {
            return;
        };
        let (channel, call, event) = (incoming.channel, incoming.call, incoming.is_event);
        drop(incoming); // frees its slot for the response
        if !event {
            self.shared.core.borrow_mut().send_response(
                channel,
                call,
                answer,
                clock::monotonic_now(),
            );
            self.shared.wake_driver_if_due();
        }
    }
}

impl Drop for ReceivedCall {
    fn drop(&mut self) {
        self.respond_once(CallResponse::platform_error(
            Reason::FunctionFailed,
            "the handler gave no answer\n",
        ));
    }
}
