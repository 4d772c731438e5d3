//! The gateway's listeners inside instances, on their way from an instance's start to one of the
//! gateway's threads.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use nearpath_kernel::sandbox::inner_socket;
use nearpath_types::{Eip, InnerListener};
use rustix::net::Shutdown;
use tokio::sync::mpsc;

/// Distributes listeners among the gateway's threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct InnerListeners(Arc<Mutex<ListenerQueue>>);

#[derive(Debug, Default)]
struct ListenerQueue {
    threads: Vec<mpsc::UnboundedSender<InnerListener>>,
    /// Thread that gets the next listener.
    next: usize,
    /// Listeners that came before the first thread.
    waiting: Vec<InnerListener>,
}

/// A listener that the gateway serves until this is dropped. The listener's connections count as calls
/// of its instance's address, which the allocator gives to no other one before 65,000 starts.
#[derive(Debug)]
pub(crate) struct ServedListener(TcpListener);

impl InnerListeners {
    /// Adds a thread of the gateway.
    pub(crate) fn add_thread(&self) -> mpsc::UnboundedReceiver<InnerListener> {
        let (give, take) = mpsc::unbounded_channel();
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.threads.push(give);
        let waiting = std::mem::take(&mut queue.waiting);
        waiting.into_iter().for_each(|one| queue.push(one));
        take
    }

    /// Has the gateway serve the listener that an instance sends over `socket` while it starts.
    /// Blocks until it has come; `None`: the instance ended before.
    ///
    /// # Errors
    /// When the instance could not open it.
    pub(crate) fn serve_next(
        &self,
        socket: OwnedFd,
        caller: Eip,
    ) -> io::Result<Option<ServedListener>> {
        let Some((_, opened)) = inner_socket::receive_next(socket)? else {
            return Ok(None);
        };
        let socket = TcpListener::from(opened?);
        let served = ServedListener(socket.try_clone()?);
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push(InnerListener { socket, caller });
        Ok(Some(served))
    }
}

impl ListenerQueue {
    /// Gives the listener to the threads in turn.
    fn push(&mut self, listener: InnerListener) {
        self.threads.retain(|thread| !thread.is_closed());
        let Some(thread) = self.threads.get(self.next % self.threads.len().max(1)) else {
            return self.waiting.push(listener);
        };
        self.next = self.next.wrapping_add(1);
        if let Err(unserved) = thread.send(listener) {
            end_listener(&unserved.0.socket); // the thread has just ended
        }
    }
}

impl Drop for ServedListener {
    fn drop(&mut self) {
        end_listener(&self.0);
    }
}

/// Ends a listener for all its descriptors: a close of one would leave connections waiting.
fn end_listener(socket: &TcpListener) {
    let _ = rustix::net::shutdown(socket, Shutdown::Read); // it may have ended already
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn listener(queue: &InnerListeners, caller: u8) -> (ServedListener, SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let (served, addr) = (socket.try_clone().unwrap(), socket.local_addr().unwrap());
        let caller = Eip([10, 62, 0, caller].into());
        let mut queue = queue.0.lock().unwrap();
        queue.push(InnerListener { socket, caller });
        (ServedListener(served), addr)
    }

    #[test]
    fn threads_get_listeners_in_turn_and_early_ones_wait() {
        let queue = InnerListeners::default();
        let _early = listener(&queue, 2);
        let mut threads = [queue.add_thread(), queue.add_thread()];
        let _later = [3, 4, 5].map(|caller| listener(&queue, caller));
        let callers = threads.each_mut().map(|thread| {
            std::iter::from_fn(|| thread.try_recv().ok())
                .map(|one| one.caller.0.octets()[3])
                .collect::<Vec<_>>()
        });
        assert_eq!(callers, [vec![2, 4], vec![3, 5]]);
    }

    #[test]
    fn a_dropped_guard_ends_the_listener() {
        let queue = InnerListeners::default();
        let mut thread = queue.add_thread();
        let (served, addr) = listener(&queue, 2);
        let socket = thread.try_recv().unwrap().socket;
        let client = std::net::TcpStream::connect(addr).unwrap();
        socket.accept().unwrap();
        drop((served, client));
        assert_eq!(
            socket.accept().unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert!(std::net::TcpStream::connect(addr).is_err());
    }
}
