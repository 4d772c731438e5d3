//! Names that move: a connection to one server is of use as long as its name leads there.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::driver::ConnectionPool;
use super::resolver::NameBinding;
use crate::destination::EgressDestination;

/// Longest wait for what a name means, where a connection may be open already.
const NAME_LOOKUP_TIMEOUT: Duration = Duration::from_millis(200);

impl ConnectionPool {
    /// Where a connection is at home whose destination is one server, wherever that is: a database's. What else has a name may be many.
    pub(super) fn name_binding(
        &self,
        to: &EgressDestination,
        stream: &TcpStream,
    ) -> Option<NameBinding> {
        let name = to.single_server_name()?;
        self.resolver.bind_name(name, stream.peer_addr().ok()?.ip())
    }

    pub(super) fn is_binding_current(&self, to: &EgressDestination, stream: &TcpStream) -> bool {
        self.name_binding(to, stream)
            .is_none_or(|home| home.is_current())
    }

    /// What lies ready was opened to where such a name led. Whether it still does is asked first, unless that takes long.
    pub(super) async fn refresh_name(&self, to: &EgressDestination) {
        if let Some(name) = to.single_server_name() {
            let _ = timeout(NAME_LOOKUP_TIMEOUT, self.resolver.resolve(name)).await; // who dials is told of a failure
        }
    }
}
