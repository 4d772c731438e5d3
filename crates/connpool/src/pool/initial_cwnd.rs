//! What connections show of their paths, and what the next one begins with: the rim of [`crate::cwnd`].

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
    /// From now on it is learned what paths bear, and windows are opened: this thread may do so.
    pub fn enable_cwnd_cache(&self) {
        self.cwnd_cache.replace(Some(CwndCache::default()));
    }

    /// Has a connection that is handed out begin with what its path bears, and `gone` hear what it shows.
    pub(super) fn set_initial_cwnd(
        self: &Rc<Self>,
        to: &EgressDestination,
        stream: &TcpStream,
        gone: LeaseGuard,
    ) -> LeaseGuard {
        let Some(one) = self.begin_path_use(to, stream) else {
            return gone;
        };
        if let Some(window) = one.initial_window {
            match set_initial_window(stream, &window) {
                Ok(()) => DestinationCounters::increase(&self.counters_for(to).windows_opened, 1),
                Err(error) => {
                    tracing::debug!(to = to.key.host_port, %error, "its window stays as the kernel made it")
                }
            }
        }
        let one = RefCell::new(one);
        let keeper = Rc::clone(self);
        gone.with_observer(move |seen| keeper.record_flow(&mut one.borrow_mut(), seen))
    }

    /// Whether a connection would begin with more than the kernel gives it.
    pub(super) fn would_raise_cwnd(&self, to: &EgressDestination, stream: &TcpStream) -> bool {
        let windows = self.cwnd_cache.borrow();
        let Some(windows) = windows.as_ref().filter(|windows| !windows.is_empty()) else {
            return false;
        };
        let (Ok(peer), Ok(flow)) = (stream.peer_addr(), tcp_flow_info(stream)) else {
            return false;
        };
        windows.would_raise_cwnd(Instant::now(), &PathKey::new(&to.key, peer.ip()), &flow)
    }

    fn begin_path_use(&self, to: &EgressDestination, stream: &TcpStream) -> Option<PathUse> {
        let mut windows = self.cwnd_cache.borrow_mut();
        let windows = windows.as_mut()?;
        let (peer, flow) = (stream.peer_addr().ok()?, tcp_flow_info(stream).ok()?);
        Some(windows.begin_use(Instant::now(), PathKey::new(&to.key, peer.ip()), &flow))
    }

    /// What a connection shows; nothing: it has ended.
    fn record_flow(&self, one: &mut PathUse, seen: Option<&TcpFlowInfo>) {
        if let Some(windows) = self.cwnd_cache.borrow_mut().as_mut() {
            match seen {
                Some(flow) => windows.record_flow(Instant::now(), one, flow),
                None => windows.end_use(one),
            }
        }
    }
}
