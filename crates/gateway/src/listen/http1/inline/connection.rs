//! A client connection in the event loop: what it waits for, and what it leaves to its task.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;

use super::TaskStep;
use crate::event_loop::{EventHandler, EventLoop, PolledSocket, Readiness, Token};
use crate::listen::client_connection::ClientConnection;
use crate::listen::http1::own_port_call::{OpenCall, ShortResponse};

/// Connection whose events the loop handles.
pub(super) struct InlineConnection {
    pub(super) client: Rc<ClientConnection>,
    state: RefCell<InlineState>,
}

/// Between two requests, `call` and `response` are `None`.
#[derive(Default)]
pub(super) struct InlineState {
    /// `None` once the task has taken it back.
    pub(super) socket: Option<PolledSocket>,
    /// Received bytes that belong to no request yet.
    pub(super) buffer: BytesMut,
    pub(super) call: Option<InlineCall>,
    /// Response that is written at the end of this round of events.
    pub(super) response: Option<ShortResponse>,
    /// Next step of the task, which is awake then.
    step: Option<TaskStep>,
    task: Option<Waker>,
}

/// A call that the loop waits for.
pub(super) struct InlineCall {
    pub(super) open: OpenCall,
    /// The loop's wait for the response.
    pub(super) wait: usize,
}

impl InlineConnection {
    /// Has the loop handle the events of the connection.
    pub(super) fn attach(
        client: &Rc<ClientConnection>,
        socket: PolledSocket,
        buffer: BytesMut,
    ) -> Rc<Self> {
        let may_be_readable = socket.may_be_readable();
        let this = Rc::new(Self {
            client: client.clone(),
            state: RefCell::default(),
        });
        this.event_loop().attach(&socket, this.clone());
        this.with_state(|state| {
            (state.socket, state.buffer) = (Some(socket), buffer);
            None
        });
        if may_be_readable {
            this.with_state(|state| this.read_request(state)); // its event came before
            this.clone().flush();
        }
        this
    }

    /// Returns what the loop leaves to the task. A drain ends the wait for a request.
    pub(super) fn poll_step(&self, cx: &mut Context<'_>) -> Poll<TaskStep> {
        let state = &mut *self.state.borrow_mut();
        if let Some(step) = state.step.take() {
            return Poll::Ready(step);
        }
        if state.is_idle() && self.client.state.is_draining() {
            return Poll::Ready(TaskStep::Read);
        }
        match &mut state.task {
            Some(task) => task.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Takes the connection out of the loop.
    pub(super) fn take_connection(&self) -> Option<(PolledSocket, BytesMut)> {
        let state = &mut *self.state.borrow_mut();
        let socket = state.socket.take()?;
        self.event_loop().detach(&socket);
        mark_untried(&socket);
        Some((socket, std::mem::take(&mut state.buffer)))
    }

    /// Ends the connection with its call, unless the task has taken them.
    pub(super) fn leave(&self) {
        let connection = self.take_connection();
        let call = self.take_call(&mut self.state.borrow_mut());
        drop((connection, call)); // without the borrow
    }

    /// Leaves the open call to the task.
    pub(super) fn leave_call(&self, state: &mut InlineState) -> Option<TaskStep> {
        let call = self.take_call(state)?;
        mark_untried(call.exchange.socket());
        Some(TaskStep::Await(Box::new(call)))
    }

    /// Takes the open call out of the loop.
    pub(super) fn take_call(&self, state: &mut InlineState) -> Option<OpenCall> {
        let InlineCall { open, wait } = state.call.take()?;
        self.event_loop().detach(open.exchange.socket());
        self.event_loop().end_wait(wait);
        Some(open)
    }

    fn handle_caller_event(
        self: &Rc<Self>,
        state: &mut InlineState,
        readiness: Readiness,
    ) -> Option<TaskStep> {
        if let Some(step) = self.write_response(state) {
            return Some(step);
        }
        match state.is_idle() {
            true if readiness.has(Readiness::END) => Some(TaskStep::Read),
            true => self.read_request(state),
            // The caller sends more, or has left.
            false => self.leave_call(state),
        }
    }

    pub(super) fn event_loop(&self) -> &EventLoop {
        &self.client.worker.event_loop
    }

    /// Does a part of the work, and wakes the task for what is left to it.
    fn with_state(&self, work: impl FnOnce(&mut InlineState) -> Option<TaskStep>) {
        let state = &mut *self.state.borrow_mut();
        if state.step.is_some() {
            return; // the task is awake
        }
        state.step = work(state);
        if state.step.is_some()
            && let Some(task) = state.task.take()
        {
            task.wake();
        }
    }
}

impl EventHandler for InlineConnection {
    fn handle_event(self: Rc<Self>, token: Token, readiness: Readiness) {
        if !readiness.has(Readiness::READ) {
            return; // what cannot be written at once is the task's
        }
        self.with_state(|state| match state.socket.as_ref()?.token() == token {
            true => self.handle_caller_event(state, readiness),
            false => self.read_response(state, readiness),
        });
    }

    fn handle_long_wait(&self) {
        self.with_state(|state| self.leave_call(state));
    }

    fn abandon(&self) {
        self.with_state(|state| {
            drop((self.take_call(state), state.response.take()));
            Some(TaskStep::Close)
        });
    }

    fn flush(self: Rc<Self>) {
        self.with_state(|state| {
            self.write_response(state)
                .or_else(|| self.write_request(state))
        });
    }
}

impl InlineState {
    fn is_idle(&self) -> bool {
        self.call.is_none() && self.response.is_none()
    }
}

/// Has the next user of a socket try it before it waits: events went to its handler.
fn mark_untried(socket: &PolledSocket) {
    socket.note_ready(Readiness::READ);
    socket.note_ready(Readiness::WRITE);
}
