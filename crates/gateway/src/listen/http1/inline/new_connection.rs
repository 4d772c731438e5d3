//! A new connection in the event loop, before it has a task.

use std::net::TcpStream;
use std::rc::Rc;

use bytes::BytesMut;

use super::TaskStep;
use super::connection::{InlineConnection, InlineState};
use super::task_start::BeginTask;
use crate::event_loop::or_abandon;
use crate::listen::accepted_socket::AcceptedSocket;
use crate::listen::client_connection::ClientConnection;
use crate::listen::client_transport::InlineSocket;

impl InlineConnection {
    /// Answers the first request of a connection without a task, if that needs no wait.
    pub(super) fn serve_new(client: &Rc<ClientConnection>, socket: TcpStream, begin: BeginTask) {
        let socket = InlineSocket::Clear(AcceptedSocket::Unregistered(socket));
        let this = Self::new(client, socket, BytesMut::new(), Some(begin));
        or_abandon(this, |this| {
            this.run_part(|state| match this.read_request(state) {
                None if state.is_idle() => this.watch_new(state), // nothing has arrived
                step => step,
            });
        });
    }

    /// Waits for the first request in the loop, for a short time. Time limits, cuts and the drain end a
    /// connection when its task has begun.
    fn watch_new(self: &Rc<Self>, state: &mut InlineState) -> Option<TaskStep> {
        let socket = state.socket.take()?.register(self.event_loop().poller());
        let socket = socket.inspect_err(|error| {
            tracing::debug!(%error, "a connection cannot be watched, and ends");
        });
        state.socket = socket.ok();
        match state.socket.as_ref().and_then(InlineSocket::registered) {
            Some(socket) => {
                self.event_loop().attach(socket, self.clone());
                self.begin_wait(state);
                None
            }
            // Without its socket, the connection ends.
            None => Some(TaskStep::Close),
        }
    }
}
