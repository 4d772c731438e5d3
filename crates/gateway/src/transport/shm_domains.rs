//! This thread's endpoints in the security domains of the node, through which it reaches instances in shared memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;

use nearpath_domain::endpoint::EndpointSettings;
use nearpath_domain::endpoint::polled::AsyncEndpoint;

/// The domains in which this thread is a party, by name.
#[derive(Default)]
pub(crate) struct ShmDomains(RefCell<HashMap<String, AsyncEndpoint>>);

impl ShmDomains {
    /// The party in a domain.
    pub(crate) fn endpoint_in(&self, domain: &str) -> Option<AsyncEndpoint> {
        self.0.borrow().get(domain).cloned()
    }

    /// Joins a domain, and leaves it when the node closes its socket.
    pub(crate) async fn join_domain(&self, socket: OwnedFd) {
        match AsyncEndpoint::join(
            socket,
            EndpointSettings {
                serves: false,
                stream_bodies: true,
                ..EndpointSettings::default()
            },
        )
        .await
        {
            Ok((endpoint, driver)) => {
                let name = endpoint.identity().domain.clone();
                self.0.borrow_mut().insert(name.clone(), endpoint);
                let ended = driver.await;
                self.0.borrow_mut().remove(&name);
                tracing::debug!(domain = name, ?ended, "left a domain");
            }
            Err(error) => {
                tracing::warn!(%error, "cannot join a domain; its functions are called over HTTP")
            }
        }
    }
}
