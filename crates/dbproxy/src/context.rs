//! Context that an adapter gets with each client connection.

use std::rc::Rc;

use nearpath_connpool::upstream::UpstreamHandle;
use tokio::sync::watch;

use crate::client_instance::{ClientInstance, FunctionLogger};
use crate::client_stream::TlsAcceptorSource;
use crate::failed_writes::FailedWrites;

/// A connection of a function to a destination whose protocol an adapter understands.
#[derive(Clone)]
pub struct ClientContext {
    /// The instance that connected.
    pub caller: Rc<ClientInstance>,
    /// Source of connections to the destination.
    pub upstream: UpstreamHandle,
    /// The function's log.
    pub logger: FunctionLogger,
    /// Failures of writes that were acknowledged before the server executed them.
    pub failed_writes: Rc<FailedWrites>,
    /// TLS for clients that need it.
    pub tls_acceptors: TlsAcceptorSource,
    /// Closes when the client's instance has ended. `None`: the caller drops the adapter's future
    /// instead.
    pub instance_alive: Option<watch::Receiver<()>>,
}

impl ClientContext {
    /// Logs for the function's administrator that the destination refuses the node's login. Returns
    /// the text for the client, whose own login this was not.
    pub(crate) fn report_refused_login(&self, reason: &str) -> String {
        let destination = &self.upstream.destination;
        let (to, login) = (&destination.key.host_port, &destination.egress.login);
        let user = login.as_ref().map_or("", |login| &login.user);
        let text = format!(
            "{to} refuses the login of nearpath as {user:?}: {reason}; correct `user` and `password` of this destination in the function's egress"
        );
        (self.logger)(&self.caller, to, &text);
        text
    }
}
