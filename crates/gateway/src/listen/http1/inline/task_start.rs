//! What the task of a connection begins with.

use std::net::TcpStream;

use bytes::BytesMut;

use super::TaskStep;
use crate::listen::accepted_socket::AcceptedSocket;

/// Begins the task of a connection. Dropping it ends the connection.
pub(super) type BeginTask = Box<dyn FnOnce(Box<TaskStart>)>;

/// Connection that the loop hands to a new task. In a box: the task's future holds it more than once.
pub(in crate::listen) struct TaskStart {
    pub(in crate::listen) socket: AcceptedSocket,
    /// Received bytes that belong to no request yet.
    pub(in crate::listen) buffer: BytesMut,
    /// Next step of the task.
    pub(in crate::listen) step: TaskStep,
}

impl TaskStart {
    /// Begins with a connection of which nothing was read.
    pub(in crate::listen) fn new(socket: TcpStream) -> Box<Self> {
        Box::new(Self {
            socket: AcceptedSocket::Unregistered(socket),
            buffer: BytesMut::new(),
            step: TaskStep::Read,
        })
    }
}
