//! Endpoints of one thread in the node's security domains, which reach instances through shared
//! memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;

use nearpath_domain::endpoint::EndpointSettings;
use nearpath_domain::endpoint::polled::AsyncEndpoint;

/// Endpoints of this thread by name of their domain.
#[derive(Default)]
pub(crate) struct ShmDomains(RefCell<HashMap<String, AsyncEndpoint>>);

impl ShmDomains {
    /// Returns the endpoint in a domain.
    pub(crate) fn endpoint_in(&self, domain: &str) -> Option<AsyncEndpoint> {
        self.0.borrow().get(domain).cloned()
    }

    /// Joins a domain until the node closes its socket.
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
                tracing::debug!(domain = name, ?ended, "shared memory: left a domain");
            }
            Err(error) => {
                tracing::warn!(%error, "shared memory: cannot join a domain, calling its functions over HTTP")
            }
        }
    }
}
