//! What connections show of their paths, and what the next one begins with: the rim of [`crate::cwnd`].

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use nearpath_kernel::sockets::{TcpFlowInfo, set_initial_window, tcp_flow_info};
use tokio::net::TcpStream;

use super::Gone;
use super::driver::Keeper;
use crate::counters::Ledger;
use crate::cwnd::{Use, Way, Windows};
use crate::destination::Destination;

impl Keeper {
    /// From now on it is learned what paths bear, and windows are opened: this thread may do so.
    pub fn open_windows(&self) {
        self.windows.replace(Some(Windows::default()));
    }

    /// Has a connection that is handed out begin with what its path bears, and `gone` hear what it shows.
    pub(super) fn follow(self: &Rc<Self>, to: &Destination, stream: &TcpStream, gone: Gone) -> Gone {
        let Some(one) = self.begin(to, stream) else { return gone };
        if let Some(window) = one.window {
            match set_initial_window(stream, &window) {
                Ok(()) => Ledger::count(&self.ledger(to).opened, 1),
                Err(error) => tracing::debug!(to = to.key.to, %error, "its window stays as the kernel made it"),
            }
        }
        let one = RefCell::new(one);
        let keeper = Rc::clone(self);
        gone.follow(move |seen| keeper.hear(&mut one.borrow_mut(), seen))
    }

    /// Whether a connection would begin with more than the kernel gives it.
    pub(super) fn would_open(&self, to: &Destination, stream: &TcpStream) -> bool {
        let windows = self.windows.borrow();
        let Some(windows) = windows.as_ref().filter(|windows| !windows.is_empty()) else { return false };
        let (Ok(peer), Ok(flow)) = (stream.peer_addr(), tcp_flow_info(stream)) else { return false };
        windows.would_open(Instant::now(), &Way::new(&to.key, peer.ip()), &flow)
    }

    fn begin(&self, to: &Destination, stream: &TcpStream) -> Option<Use> {
        let mut windows = self.windows.borrow_mut();
        let windows = windows.as_mut()?;
        let (peer, flow) = (stream.peer_addr().ok()?, tcp_flow_info(stream).ok()?);
        Some(windows.begin(Instant::now(), Way::new(&to.key, peer.ip()), &flow))
    }

    /// What a connection shows; nothing: it has ended.
    fn hear(&self, one: &mut Use, seen: Option<&TcpFlowInfo>) {
        if let Some(windows) = self.windows.borrow_mut().as_mut() {
            match seen {
                Some(flow) => windows.learn(Instant::now(), one, flow),
                None => windows.end(one),
            }
        }
    }
}
