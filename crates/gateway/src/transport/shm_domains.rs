//! Endpoints of one thread in the node's security domains, which reach instances through shared
//! memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::os::fd::OwnedFd;

use nearpath_domain::endpoint::EndpointSettings;
use nearpath_domain::endpoint::polled::AsyncEndpoint;
use nearpath_types::topic::MAX_REMOTE_EVENT_BYTES;

/// Endpoints of this thread by name of their domain.
#[derive(Default)]
pub(crate) struct ShmDomains(RefCell<HashMap<String, AsyncEndpoint>>);

impl ShmDomains {
    /// Returns the endpoint in a domain.
    pub(crate) fn endpoint_in(&self, domain: &str) -> Option<AsyncEndpoint> {
        self.0.borrow().get(domain).cloned()
    }

    fn leave_domain(&self, name: &str, endpoint: AsyncEndpoint) {
        let mut endpoints = self.0.borrow_mut();
        // A chain that was removed and added again has another domain of that name already.
        if endpoints
            .get(name)
            .is_some_and(|one| one.is_same(&endpoint))
        {
            endpoints.remove(name);
        }
    }

    /// Joins a domain until the node closes its socket. `take_events` runs as long, with the thread's
    /// endpoint.
    pub(crate) async fn join_domain<F: Future<Output = ()>>(
        &self,
        socket: OwnedFd,
        take_events: impl FnOnce(AsyncEndpoint) -> F,
    ) {
        let settings = EndpointSettings {
            stream_bodies: true,
            max_body_bytes: MAX_REMOTE_EVENT_BYTES, // of events alone: all else is streamed
            forwards_events: true,
            ..EndpointSettings::default()
        };
        match AsyncEndpoint::join(socket, settings).await {
            Ok((endpoint, mut driver)) => {
                let name = endpoint.identity().domain.clone();
                self.0.borrow_mut().insert(name.clone(), endpoint.clone());
                // Fails when the node has closed the socket, which the driver sees, too.
                let _ = endpoint.announce_ready();
                let ended = tokio::select! {
                    ended = &mut driver => Some(ended),
                    () = take_events(endpoint.clone()) => None,
                };
                self.leave_domain(&name, endpoint);
                // The driver ends with the last handle: open calls have theirs.
                let ended = match ended {
                    Some(ended) => ended,
                    None => driver.await,
                };
                tracing::debug!(domain = name, ?ended, "shared memory: left a domain");
            }
            Err(error) => {
                tracing::warn!(%error, "shared memory: cannot join a domain, calling its functions over HTTP")
            }
        }
    }
}
