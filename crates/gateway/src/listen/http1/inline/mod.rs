//! Plain requests to functions' own ports, answered in the thread's event loop (decision 95).
//!
//! Between two requests, the task of a kept connection leaves its socket to the loop, and sleeps. The
//! loop answers what needs no wait: a plain request whose function has a free place and an idle
//! connection, and a short response. Anything else wakes the task, which goes on where the loop
//! stopped ([`TaskStep`]). A new connection begins in the loop, without a task. Its task begins with the
//! first step that the loop does not take (decision 99).

mod connection;
mod new_connection;
mod request;
mod response;
mod task_start;

use std::future::poll_fn;
use std::io;
use std::net::TcpStream;
use std::rc::Rc;

use bytes::Bytes;

use self::connection::InlineConnection;
pub(in crate::listen) use self::task_start::TaskStart;
use super::buffered_connection::BufferedConnection;
use super::server_call::{OpenCall, UnfinishedCall};
use crate::fast_path::PlainRequest;
use crate::listen::client_connection::ClientConnection;
use crate::listen::client_transport::ClientTransport;

/// Next step of a connection's task.
pub(in crate::listen) enum TaskStep {
    /// Read on: a part of a head, another protocol, a close, or the drain.
    Read,
    /// End: the caller sends nothing more.
    End,
    /// Leave the connection to hyper: what has arrived is not plain.
    HandOver,
    /// Answer a request of which nothing was sent.
    Answer(PlainRequest),
    /// Wait for the response to a request that was sent.
    Await(Box<OpenCall>),
    /// Write a response that streams, or an error.
    Finish(Box<UnfinishedCall>),
    /// Write the rest of a response.
    Write {
        rest: Bytes,
        /// The connection ends after it.
        close: bool,
    },
    /// Close the connection: its last response is written.
    Close,
}

/// Answers the first request of a connection, if it has arrived and needs no wait. `begin_task` begins the
/// connection's task for anything else; dropped, it ends the connection.
pub(in crate::listen) fn serve_new(
    client: &Rc<ClientConnection>,
    socket: TcpStream,
    begin_task: impl FnOnce(Box<TaskStart>) + 'static,
) {
    InlineConnection::serve_new(client, socket, Box::new(begin_task));
}

/// Leaves the connection to the event loop until it has something for the task.
///
/// # Errors
/// If the kernel cannot watch the socket.
pub(super) async fn serve_inline<T: ClientTransport>(
    client: &Rc<ClientConnection>,
    connection: &mut BufferedConnection<T>,
) -> io::Result<TaskStep> {
    let socket = connection.stream.get_mut().take_socket()?;
    let buffer = std::mem::take(connection.buffer());
    let served = ServedInline(InlineConnection::attach(client, socket, buffer));
    let step = poll_fn(|cx| served.0.poll_step(cx)).await;
    if let Some((socket, buffer)) = served.0.take_connection() {
        connection.stream.get_mut().restore_socket(socket);
        *connection.buffer() = buffer;
    }
    Ok(step)
}

/// A connection in the event loop, which leaves it when this is dropped.
struct ServedInline(Rc<InlineConnection>);

impl Drop for ServedInline {
    fn drop(&mut self) {
        self.0.end();
    }
}
