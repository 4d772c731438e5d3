//! The instance behind a client connection.

use nearpath_types::{FunctionId, InstanceId};

/// The instance that opened a client connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInstance {
    /// Id of the instance.
    pub instance: InstanceId,
    /// Function of the instance.
    pub function: FunctionId,
}
