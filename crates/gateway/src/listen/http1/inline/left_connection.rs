//! A connection that the event loop leaves to a task, which begins with it.

use std::net::TcpStream;

use bytes::BytesMut;

use super::TaskStep;
use crate::listen::caller_socket::CallerSocket;

/// Begins the task of a connection. Dropping it ends the connection.
pub(super) type BeginTask = Box<dyn FnOnce(Box<LeftConnection>)>;

/// Connection that the loop leaves to a new task. In a box: the task's future holds it more than once.
pub(in crate::listen) struct LeftConnection {
    pub(in crate::listen) socket: CallerSocket,
    /// Received bytes that belong to no request yet.
    pub(in crate::listen) buffer: BytesMut,
    /// Next step of the task.
    pub(in crate::listen) step: TaskStep,
}

impl LeftConnection {
    /// Leaves a connection of which nothing was read.
    pub(in crate::listen) fn new(socket: TcpStream) -> Box<Self> {
        Box::new(Self {
            socket: CallerSocket::Unregistered(socket),
            buffer: BytesMut::new(),
            step: TaskStep::Read,
        })
    }
}
