//! Names that move: a connection to one server is of use as long as its name leads there.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::driver::Keeper;
use super::resolver::Home;
use crate::destination::Destination;

/// Longest wait for what a name means, where a connection may be open already.
const LOOK_UP: Duration = Duration::from_millis(200);

impl Keeper {
    /// Where a connection is at home whose destination is one server, wherever that is: a database's. What else has a name may be many.
    pub(super) fn home(&self, to: &Destination, stream: &TcpStream) -> Option<Home> {
        let name = to.name_of_one()?;
        self.names.home(name, stream.peer_addr().ok()?.ip())
    }

    pub(super) fn is_at_home(&self, to: &Destination, stream: &TcpStream) -> bool {
        self.home(to, stream).is_none_or(|home| home.is_there())
    }

    /// What lies ready was opened to where such a name led. Whether it still does is asked first, unless that takes long.
    pub(super) async fn look_up(&self, to: &Destination) {
        if let Some(name) = to.name_of_one() {
            let _ = timeout(LOOK_UP, self.names.addresses(name)).await; // who dials is told of a failure
        }
    }
}
