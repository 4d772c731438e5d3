//! The gateway's listener inside an instance.

use std::net::TcpListener;

use crate::addr::Eip;

/// Non-blocking listener of the gateway in an instance's own network namespace. Only that instance
/// reaches it, so all its connections are the instance's calls. Shutting it down ends it: `accept`
/// then fails with `EINVAL` (accept(2)).
#[derive(Debug)]
pub struct InnerListener {
    /// The listener.
    pub socket: TcpListener,
    /// Address of the instance, which identifies its calls.
    pub caller: Eip,
}
