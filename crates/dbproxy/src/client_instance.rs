//! The instance behind a client connection.

use std::rc::Rc;

use nearpath_types::{FunctionId, InstanceId};

/// The instance that opened a client connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInstance {
    /// Id of the instance.
    pub instance: InstanceId,
    /// Function of the instance.
    pub function: FunctionId,
    /// True if its settings ask for TLS to a database (`sslmode=require`).
    pub requires_tls: bool,
}

/// Writes a line about a destination to the log of a function, at a limited rate.
pub type FunctionLogger = Rc<dyn Fn(&ClientInstance, &str, &str)>;
