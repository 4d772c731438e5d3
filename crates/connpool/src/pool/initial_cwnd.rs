//! Applies [`crate::cwnd`] to sockets: samples their flows and sets initial windows.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use nearpath_kernel::sockets::{TcpFlowInfo, set_initial_window, tcp_flow_info};
use tokio::net::TcpStream;

use super::LeaseGuard;
use super::driver::ConnectionPool;
use crate::counters::DestinationCounters;
use crate::cwnd::{CwndCache, PathKey, PathUse};
use crate::destination::EgressDestination;

impl ConnectionPool {
    /// Starts to learn the capacity of paths and to set windows. Call it only if this thread has
    /// the BPF programs for that.
    pub fn enable_cwnd_cache(&self) {
        self.cwnd_cache.replace(Some(CwndCache::default()));
    }

    /// Sets the initial window of a connection that is handed out, and lets its guard report flows.
    pub(super) fn set_initial_cwnd(
        self: &Rc<Self>,
        to: &EgressDestination,
        stream: &TcpStream,
        guard: LeaseGuard,
    ) -> LeaseGuard {
        let Some(path_use) = self.begin_path_use(to, stream) else {
            return guard;
        };
        if let Some(window) = path_use.initial_window {
            match set_initial_window(stream, &window) {
                Ok(()) => DestinationCounters::increase(&self.counters_for(to).windows_opened, 1),
                // The connection works without it, so a failure is only logged.
                Err(error) => {
                    tracing::debug!(to = to.key.host_port, %error, "initial window: cannot set it, the kernel's default stays")
                }
            }
        }
        // The observer outlives this call, and a guard reports through a shared reference.
        let path_use = RefCell::new(path_use);
        let pool = Rc::clone(self);
        guard.with_observer(move |seen| pool.record_flow(&mut path_use.borrow_mut(), seen))
    }

    /// Returns true if a connection would get a larger window than the kernel's.
    pub(super) fn would_raise_cwnd(&self, to: &EgressDestination, stream: &TcpStream) -> bool {
        let cache = self.cwnd_cache.borrow();
        // An empty cache answers without the system calls below.
        let Some(cache) = cache.as_ref().filter(|cache| !cache.is_empty()) else {
            return false;
        };
        let (Ok(peer), Ok(flow)) = (stream.peer_addr(), tcp_flow_info(stream)) else {
            return false;
        };
        cache.would_raise_cwnd(Instant::now(), &PathKey::new(&to.key, peer.ip()), &flow)
    }

    fn begin_path_use(&self, to: &EgressDestination, stream: &TcpStream) -> Option<PathUse> {
        let mut cache = self.cwnd_cache.borrow_mut();
        let cache = cache.as_mut()?;
        let (peer, flow) = (stream.peer_addr().ok()?, tcp_flow_info(stream).ok()?);
        Some(cache.begin_use(Instant::now(), PathKey::new(&to.key, peer.ip()), &flow))
    }

    /// Records a flow; `None` ends the use.
    fn record_flow(&self, path_use: &mut PathUse, seen: Option<&TcpFlowInfo>) {
        if let Some(cache) = self.cwnd_cache.borrow_mut().as_mut() {
            match seen {
                Some(flow) => cache.record_flow(Instant::now(), path_use, flow),
                None => cache.end_use(path_use),
            }
        }
    }
}
