//! Callees on other nodes: whether a call goes directly, and connections that no call waits for.

use std::rc::Rc;
use std::time::Instant;

use nearpath_types::FunctionId;
use tokio::task::spawn_local;

use super::{PeersState, QuicCallee, QuicPeers};

impl QuicPeers {
    /// Returns the callee of this name, if this call goes to it directly. Counts the call.
    pub(crate) fn callee_for_call(&self, name: &FunctionId) -> Option<Rc<QuicCallee>> {
        let state = self.0.get()?;
        let callee = state.callees.borrow().get(name).cloned();
        let callee = callee.filter(|callee| !callee.peers.is_empty())?;
        if callee.is_on_same_node() {
            return Some(callee);
        }
        let now = Instant::now();
        let mut heat = callee.heat.get();
        let is_hot = heat.record_call(now);
        callee.heat.set(heat);
        if !is_hot {
            return None;
        }
        state.connect_remote_peers(&callee, now);
        let is_ready = callee.peers.iter().any(|peer| peer.is_usable(now));
        is_ready.then_some(callee)
    }
}

impl PeersState {
    /// Connects to the callee's instances on other nodes, in the background.
    pub(super) fn connect_remote_peers(&self, callee: &QuicCallee, now: Instant) {
        for peer in &callee.peers {
            if peer.begin_background_dial(now) {
                let (peer, dialers) = (Rc::clone(peer), Rc::clone(&self.dialers));
                spawn_local(async move {
                    let _ = peer.connect(&dialers).await; // the peer backs off, and calls go by the nodes
                    peer.end_background_dial();
                });
            }
        }
    }
}
