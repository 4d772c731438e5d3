//! A client connection in the event loop: what it waits for, and what it leaves to a task.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;

use super::TaskStep;
use super::task_start::{BeginTask, TaskStart};
use crate::event_loop::{EventHandler, EventLoop, PolledSocket, Readiness, Token, or_abandon};
use crate::listen::client_connection::ClientConnection;
use crate::listen::client_transport::InlineSocket;
use crate::listen::http1::server_call::{OpenCall, ShortResponse};

/// Connection whose events the loop handles.
pub(super) struct InlineConnection {
    pub(super) client: Rc<ClientConnection>,
    state: RefCell<InlineState>,
}

/// Between two requests, `call` and `response` are `None`.
pub(super) struct InlineState {
    /// `None` once a task has it, or the connection has ended.
    pub(super) socket: Option<InlineSocket>,
    /// Received bytes that belong to no request yet.
    pub(super) buffer: BytesMut,
    pub(super) call: Option<OpenCall>,
    /// The loop's wait for the response, or for a first request.
    wait: Option<usize>,
    /// Response that is written at the end of this round of events.
    pub(super) response: Option<ShortResponse>,
    /// Next step of the task, which is awake then.
    step: Option<TaskStep>,
    task: Option<Waker>,
    /// Begins the task of a new connection, which has none.
    begin_task: Option<BeginTask>,
}

impl InlineConnection {
    /// Has the loop handle the events of a connection, whose task sleeps.
    pub(super) fn attach(
        client: &Rc<ClientConnection>,
        socket: InlineSocket,
        buffer: BytesMut,
    ) -> Rc<Self> {
        let may_be_readable = socket.may_be_readable();
        let this = Self::new(client, socket, buffer, None);
        this.run_part(|state| {
            let socket = state.socket.as_ref()?.registered()?;
            this.event_loop().attach(socket, this.clone());
            None
        });
        if may_be_readable {
            // Its event came before. No task would end the connection after a panic here.
            or_abandon(this.clone(), |this| {
                this.run_part(|state| this.read_request(state));
            });
        }
        this
    }

    pub(super) fn new(
        client: &Rc<ClientConnection>,
        socket: InlineSocket,
        buffer: BytesMut,
        begin_task: Option<BeginTask>,
    ) -> Rc<Self> {
        let state = InlineState {
            socket: Some(socket),
            buffer,
            call: None,
            wait: None,
            response: None,
            step: None,
            task: None,
            begin_task,
        };
        Rc::new(Self {
            client: client.clone(),
            state: RefCell::new(state),
        })
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
    pub(super) fn take_connection(&self) -> Option<(InlineSocket, BytesMut)> {
        self.take_from(&mut self.state.borrow_mut())
    }

    pub(super) fn take_from(&self, state: &mut InlineState) -> Option<(InlineSocket, BytesMut)> {
        let socket = state.socket.take()?;
        if let Some(socket) = socket.registered() {
            self.event_loop().detach(socket);
            mark_untried(socket);
        }
        self.end_wait(state);
        Some((socket, std::mem::take(&mut state.buffer)))
    }

    /// Ends the connection with its call, unless a task has taken them.
    pub(super) fn end(&self) {
        let connection = self.take_connection();
        let call = self.take_call(&mut self.state.borrow_mut());
        drop((connection, call)); // without the borrow
    }

    /// Hands the open call to the task.
    pub(super) fn hand_call_to_task(&self, state: &mut InlineState) -> Option<TaskStep> {
        let call = self.take_call(state)?;
        mark_untried(call.exchange.socket());
        Some(TaskStep::Await(Box::new(call)))
    }

    /// Takes the open call out of the loop.
    pub(super) fn take_call(&self, state: &mut InlineState) -> Option<OpenCall> {
        let open = state.call.take()?;
        self.event_loop().detach(open.exchange.socket());
        self.end_wait(state);
        Some(open)
    }

    /// Begins a wait, which the loop hands to a task after some time.
    pub(super) fn begin_wait(self: &Rc<Self>, state: &mut InlineState) {
        self.end_wait(state);
        state.wait = Some(self.event_loop().begin_wait(self.clone()));
    }

    fn end_wait(&self, state: &mut InlineState) {
        state
            .wait
            .take()
            .inspect(|wait| self.event_loop().end_wait(*wait));
    }

    fn handle_caller_event(
        self: &Rc<Self>,
        state: &mut InlineState,
        readiness: Readiness,
    ) -> Option<TaskStep> {
        // The response and the next request may be there in one round.
        if let Some(step) = self.write_response(state) {
            return Some(step);
        }
        match state.is_idle() {
            true if readiness.has(Readiness::END) => Some(TaskStep::Read),
            true => self.read_request(state),
            // The caller sends more, or has left.
            false => self.hand_call_to_task(state),
        }
    }

    pub(super) fn event_loop(&self) -> &EventLoop {
        &self.client.worker.event_loop
    }

    /// Does a part of the work, and wakes or begins the task for what is left to it.
    pub(super) fn run_part(&self, work: impl FnOnce(&mut InlineState) -> Option<TaskStep>) {
        let state = &mut *self.state.borrow_mut();
        if state.step.is_some() {
            return; // the task is awake
        }
        let Some(step) = work(state) else { return };
        if let Some(begin_task) = state.begin_task.take() {
            return self.begin_task_with(state, step, begin_task);
        }
        state.step = Some(step);
        if let Some(task) = state.task.take() {
            task.wake();
        }
    }

    /// Begins the task of a new connection, unless it has ended: a close without a wait needs none.
    fn begin_task_with(&self, state: &mut InlineState, step: TaskStep, begin_task: BeginTask) {
        // A connection with TLS has had a task from its handshake on.
        let Some((InlineSocket::Clear(socket), buffer)) = self.take_from(state) else {
            return;
        };
        let unread = &self.client.state.unread_input;
        let may_send_more = || !buffer.is_empty() || socket.has_unread_input(unread);
        if !matches!(step, TaskStep::Close) || may_send_more() {
            begin_task(Box::new(TaskStart {
                socket,
                buffer,
                step,
            }));
        }
    }
}

impl EventHandler for InlineConnection {
    fn handle_event(self: Rc<Self>, token: Token, readiness: Readiness) {
        if !readiness.has(Readiness::READ) {
            return; // what cannot be written at once is the task's
        }
        self.run_part(|state| match state.socket.as_ref()?.has_token(token) {
            true => self.handle_caller_event(state, readiness),
            // The event of the only call in this round: its response is written at the round's end.
            false => self.read_response(state, readiness),
        });
    }

    fn handle_overdue_wait(self: Rc<Self>) {
        self.run_part(|state| match state.call {
            Some(_) => self.hand_call_to_task(state),
            None => state.is_new().then_some(TaskStep::Read),
        });
    }

    fn abandon(&self) {
        self.run_part(|state| {
            drop((self.take_call(state), state.response.take()));
            Some(TaskStep::Close)
        });
    }

    fn flush(self: Rc<Self>) {
        self.run_part(|state| {
            self.write_response(state)
                .or_else(|| self.write_request(state))
        });
    }
}

impl InlineState {
    /// Returns whether the connection has no task yet.
    pub(super) fn is_new(&self) -> bool {
        self.begin_task.is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.call.is_none() && self.response.is_none()
    }
}

/// Has the next user of a socket try it before it waits: events went to its handler.
fn mark_untried(socket: &PolledSocket) {
    socket.note_ready(Readiness::READ);
    socket.note_ready(Readiness::WRITE);
}
