//! Byte streams between nodes: connections of functions to functions that run on other nodes only.

use crate::name::FunctionId;

/// Request of one node to another for a stream of bytes to a function there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStreamRequest {
    /// Function that connects, on the node that asks.
    pub caller: FunctionId,
    /// Function to connect to, on the node that is asked.
    pub callee: FunctionId,
    /// TCP port of the callee.
    pub port: u16,
}
