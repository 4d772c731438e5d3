//! Names that move: a connection to a single server is usable only while its name resolves to it.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::driver::ConnectionPool;
use super::resolver::NameBinding;
use crate::destination::EgressDestination;

/// Maximum wait for a lookup while a warm connection may exist. A slow name server must not cost
/// more than the connect that the pool spares.
const NAME_LOOKUP_TIMEOUT: Duration = Duration::from_millis(200);

impl ConnectionPool {
    /// Binds a connection to its name if that stands for a single server, such as a database. Other
    /// names may have many addresses at once.
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
            .is_none_or(|binding| binding.is_current())
    }

    /// Resolves such a name again before a warm connection is used, unless that takes too long.
    pub(super) async fn refresh_name(&self, to: &EgressDestination) {
        if let Some(name) = to.single_server_name() {
            // The dial reports a failed lookup.
            let _ = timeout(NAME_LOOKUP_TIMEOUT, self.resolver.resolve(name)).await;
        }
    }
}
