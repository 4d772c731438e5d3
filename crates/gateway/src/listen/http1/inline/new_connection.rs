//! A new connection in the event loop, before it has a task.

use std::rc::Rc;

use bytes::BytesMut;

use super::TaskStep;
use super::connection::{InlineConnection, InlineState};
use super::left_connection::BeginTask;
use crate::listen::caller_socket::CallerSocket;
use crate::listen::client_connection::ClientConnection;

impl InlineConnection {
    /// Answers the first request of a connection without a task, if that needs no wait.
    pub(super) fn serve_new(client: &Rc<ClientConnection>, socket: CallerSocket, begin: BeginTask) {
        let this = Self::new(client, socket, BytesMut::new(), Some(begin));
        this.with_state(|state| match this.read_request(state) {
            None if state.is_idle() => this.watch_new(state), // nothing has arrived
            step => step,
        });
    }

    /// Waits for the first request in the loop, for a short time. A task has its time limits.
    fn watch_new(self: &Rc<Self>, state: &mut InlineState) -> Option<TaskStep> {
        let socket = state.socket.take()?.register(self.event_loop().poller());
        state.socket = socket.ok();
        match state.socket.as_ref().and_then(CallerSocket::registered) {
            Some(socket) => {
                self.event_loop().attach(socket, self.clone());
                self.begin_wait(state);
                None
            }
            None => Some(TaskStep::Close),
        }
    }
}
