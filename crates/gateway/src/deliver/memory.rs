//! The path `shm`: a request goes to an instance through the memory of its chain, and its answer comes back there.
//!
//! This thread is a party of every domain of the node ([`Domains`]). The request's head and body are written once, into
//! slots; the answer's body is sent to the caller out of the slots in which the function wrote it. See [`super::exchange`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nearpath_domain::post::Settings;
use nearpath_domain::post::polled::Post;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::call::Call;
use crate::lane::Lane;

/// The domains in which this thread is a party, by name.
#[derive(Default)]
pub(crate) struct Domains(RefCell<HashMap<String, Post>>);

impl Domains {
    /// The party that may call an instance of the call's function.
    pub(super) fn post(&self, call: &Call) -> Option<Post> {
        self.of(call.route.domain.as_deref()?)
    }

    /// The party in a domain.
    pub(super) fn of(&self, domain: &str) -> Option<Post> {
        self.0.borrow().get(domain).cloned()
    }
}

/// Joins each domain whose socket comes, for as long as the node gives any.
pub(crate) async fn join_all(lane: Rc<Lane>, mut sockets: UnboundedReceiver<OwnedFd>) {
    while let Some(socket) = sockets.recv().await {
        tokio::task::spawn_local(join(lane.clone(), socket));
    }
}

async fn join(lane: Rc<Lane>, socket: OwnedFd) {
    match Post::join(socket, Settings { serves: false, streams: true, ..Settings::default() }).await {
        Ok((post, driver)) => {
            let name = post.place().domain.clone();
            lane.domains.0.borrow_mut().insert(name.clone(), post);
            let ended = driver.await;
            lane.domains.0.borrow_mut().remove(&name);
            tracing::debug!(domain = name, ?ended, "left a domain");
        }
        Err(error) => tracing::warn!(%error, "cannot join a domain; its functions are called over HTTP"),
    }
}
