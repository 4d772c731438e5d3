//! Connections to near destinations, opened while the function's connect() waits.
//!
//! A function that connects more often than warm connections are opened would be carried by the
//! egress proxy, which costs its bytes two more sockets. A destination on the same machine or in its
//! LAN answers within a moment. So the function's call waits for it, and gets the connection itself.

use std::rc::Rc;
use std::time::{Duration, Instant};

use nearpath_types::FunctionId;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::ConnectionLease;
use super::driver::ConnectionPool;
use crate::destination::EgressDestination;

/// Maximum delay of the last connect to a destination that counts as near. An event loop that calls
/// connect() is blocked as long.
const NEAR_CONNECT_DELAY: Duration = Duration::from_millis(2);
/// Maximum wait for a connection to a near destination, which may be slower this time.
const NEAR_CONNECT_TIMEOUT: Duration = Duration::from_millis(5);

impl ConnectionPool {
    /// Opens an unused connection for handover, or takes one that became free. `None` if the
    /// destination is not near, has no free slot or does not answer in time.
    pub async fn connect_near(
        self: &Rc<Self>,
        function: &FunctionId,
        to: &EgressDestination,
    ) -> Option<ConnectionLease> {
        let connect_time = self.counters_for(to).connect_time.get()?;
        if connect_time > NEAR_CONNECT_DELAY {
            return None;
        }
        let requester = self.declared_keys.borrow_mut().requester_for(function);
        let deadline = Instant::now() + NEAR_CONNECT_TIMEOUT;
        let opened = self.request_lease(*requester, to, deadline);
        // Without a connection the egress proxy carries the bytes, and reports the reason.
        timeout(NEAR_CONNECT_TIMEOUT, opened).await.ok()?.ok()
    }

    /// Records how long a connect took, if its socket may replace one of the function's.
    pub(super) fn record_connect_time(
        &self,
        to: &EgressDestination,
        stream: &TcpStream,
        taken: Duration,
    ) {
        let is_ipv4 = to.visible_ip.is_ipv4() && !to.uses_v6_sockets();
        let fits = stream
            .local_addr()
            .is_ok_and(|own| own.is_ipv4() == is_ipv4);
        let connect_time = &self.counters_for(to).connect_time;
        connect_time.set(fits.then_some(taken));
    }
}
