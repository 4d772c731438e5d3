//! The gateway's threads as the node knows them: each serves listeners inside instances, and may
//! follow its chains to their processor.

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_kernel::cores::OwnThread;
use nearpath_kernel::sandbox::inner_socket;
use nearpath_types::{Eip, InnerListener};
use rustix::net::Shutdown;
use tokio::sync::mpsc;

/// Listeners of a chain that are on its thread. Further ones go to all threads in turn: a large chain
/// needs more than one.
const MAX_LISTENERS_ON_CHAIN_THREAD: usize = 8;

/// Distributes listeners among the gateway's threads. Those of a small chain are on one thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct GatewayThreads(Arc<Mutex<ThreadTable>>);

#[derive(Debug, Default)]
struct ThreadTable {
    threads: Vec<GatewayThread>,
    /// Thread that gets the next chain, or the next listener without one.
    next: usize,
    /// Listeners that came before the first thread.
    waiting: Vec<ChainListener>,
    /// Threads of chains, by security domain.
    chains: HashMap<String, ChainThread>,
}

#[derive(Debug)]
struct GatewayThread {
    id: OwnThread,
    listeners: mpsc::UnboundedSender<InnerListener>,
}

/// Thread of a chain, while it has listeners.
#[derive(Debug, Default)]
struct ChainThread {
    /// `None` before the first thread.
    thread: Option<OwnThread>,
    listeners: usize,
}

#[derive(Debug)]
struct ChainListener {
    listener: InnerListener,
    domain: Option<String>,
}

/// A listener that the gateway serves until this is dropped. The listener's connections count as calls
/// of its instance's address, which the allocator gives to no other one before 65,000 starts.
#[derive(Debug)]
pub(crate) struct ServedListener {
    socket: TcpListener,
    domain: Option<String>,
    threads: GatewayThreads,
}

/// A thread, and the security domains of its chains.
#[derive(Debug)]
pub(crate) struct ThreadChains {
    pub(crate) thread: OwnThread,
    pub(crate) domains: Vec<String>,
}

impl GatewayThreads {
    /// Adds the calling thread, which is one of the gateway's. Returns its listeners.
    pub(crate) fn add_current(&self) -> mpsc::UnboundedReceiver<InnerListener> {
        self.add_thread(OwnThread::current())
    }

    fn add_thread(&self, id: OwnThread) -> mpsc::UnboundedReceiver<InnerListener> {
        let (listeners, received) = mpsc::unbounded_channel();
        let mut table = self.table();
        table.threads.push(GatewayThread { id, listeners });
        let waiting = std::mem::take(&mut table.waiting);
        waiting.into_iter().for_each(|one| table.push(one));
        received
    }

    /// Has the gateway serve the listener that an instance sends over `socket` while it starts.
    /// `domain` is that of its chain. Blocks until the listener has come; `None`: the instance ended
    /// before.
    ///
    /// # Errors
    /// When the instance could not open it.
    pub(crate) fn serve_next(
        &self,
        socket: OwnedFd,
        caller: Eip,
        domain: Option<String>,
    ) -> io::Result<Option<ServedListener>> {
        let Some((_, opened)) = inner_socket::receive_next(socket)? else {
            return Ok(None);
        };
        let socket = TcpListener::from(opened?);
        self.serve(InnerListener { socket, caller }, domain)
            .map(Some)
    }

    /// Has the gateway serve a listener until the returned value is dropped.
    pub(crate) fn serve(
        &self,
        listener: InnerListener,
        domain: Option<String>,
    ) -> io::Result<ServedListener> {
        let socket = listener.socket.try_clone()?;
        let mut table = self.table();
        if let Some(domain) = &domain {
            let chain = table.chains.entry(domain.clone()).or_default();
            chain.listeners += 1;
        }
        table.push(ChainListener {
            listener,
            domain: domain.clone(),
        });
        Ok(ServedListener {
            socket,
            domain,
            threads: self.clone(),
        })
    }

    /// Returns the threads that serve chains whose instances call others.
    pub(crate) fn list_chains(&self) -> Vec<ThreadChains> {
        let table = self.table();
        let chains_of = |thread: &GatewayThread| ThreadChains {
            thread: thread.id,
            domains: table.domains_of(thread.id),
        };
        let living = table.threads.iter();
        let living = living.filter(|thread| !thread.listeners.is_closed());
        let threads = living.map(chains_of);
        threads.filter(|one| !one.domains.is_empty()).collect()
    }

    fn table(&self) -> MutexGuard<'_, ThreadTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThreadTable {
    /// Gives the listener to the thread of its chain, or to the next one.
    fn push(&mut self, one: ChainListener) {
        self.forget_ended_threads();
        let domain = one.domain.as_ref();
        let chain = domain.and_then(|domain| self.chains.get_mut(domain));
        // The first one gets a thread even if many have waited for it.
        let stays = |chain: &&mut ChainThread| {
            chain.thread.is_none() || chain.listeners <= MAX_LISTENERS_ON_CHAIN_THREAD
        };
        let chain = chain.filter(stays);
        let chain_thread = chain.as_ref().and_then(|chain| chain.thread);
        let known = self.threads.iter().find(|one| Some(one.id) == chain_thread);
        let thread = known.or_else(|| self.threads.get(self.next % self.threads.len().max(1)));
        let Some(thread) = thread else {
            return self.waiting.push(one);
        };
        if known.is_none() {
            self.next = self.next.wrapping_add(1);
        }
        if let Some(chain) = chain {
            chain.thread = Some(thread.id);
        }
        if let Err(unserved) = thread.listeners.send(one.listener) {
            end_listener(&unserved.0.socket); // the thread has just ended
        }
    }

    /// A chain of an ended thread gets another one with its next listener.
    fn forget_ended_threads(&mut self) {
        self.threads.retain(|thread| !thread.listeners.is_closed());
        let living: Vec<_> = self.threads.iter().map(|thread| thread.id).collect();
        for chain in self.chains.values_mut() {
            chain.thread = chain.thread.filter(|id| living.contains(id));
        }
    }

    fn domains_of(&self, thread: OwnThread) -> Vec<String> {
        let chains = self.chains.iter();
        chains
            .filter(|(_, chain)| chain.thread == Some(thread))
            .map(|(domain, _)| domain.clone())
            .collect()
    }

    fn forget_listener(&mut self, domain: &str) {
        let Some(chain) = self.chains.get_mut(domain) else {
            return;
        };
        chain.listeners -= 1;
        if chain.listeners == 0 {
            self.chains.remove(domain);
        }
    }
}

impl Drop for ServedListener {
    fn drop(&mut self) {
        end_listener(&self.socket);
        if let Some(domain) = &self.domain {
            self.threads.table().forget_listener(domain);
        }
    }
}

/// Ends a listener for all its descriptors: a close of one would leave connections waiting.
fn end_listener(socket: &TcpListener) {
    let _ = rustix::net::shutdown(socket, Shutdown::Read); // it may have ended already
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::thread;

    use super::*;

    fn listener(
        threads: &GatewayThreads,
        caller: u8,
        domain: Option<&str>,
    ) -> (ServedListener, SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap();
        let caller = Eip([10, 62, 0, caller].into());
        let listener = InnerListener { socket, caller };
        let served = threads.serve(listener, domain.map(str::to_owned)).unwrap();
        (served, addr)
    }

    /// Adds a thread with an id of its own.
    fn add_thread(threads: &GatewayThreads) -> mpsc::UnboundedReceiver<InnerListener> {
        let threads = threads.clone();
        thread::spawn(move || threads.add_current()).join().unwrap()
    }

    fn callers(thread: &mut mpsc::UnboundedReceiver<InnerListener>) -> Vec<u8> {
        std::iter::from_fn(|| thread.try_recv().ok())
            .map(|one| one.caller.0.octets()[3])
            .collect()
    }

    #[test]
    fn threads_get_listeners_in_turn_and_early_ones_wait() {
        let threads = GatewayThreads::default();
        let _early = listener(&threads, 2, None);
        let mut received = [add_thread(&threads), add_thread(&threads)];
        let _later = [3, 4, 5].map(|caller| listener(&threads, caller, None));
        assert_eq!(received.each_mut().map(callers), [vec![2, 4], vec![3, 5]]);
    }

    #[test]
    fn a_chain_has_one_thread_while_it_has_listeners() {
        let threads = GatewayThreads::default();
        let mut received = [add_thread(&threads), add_thread(&threads)];
        let first = [2, 3].map(|caller| listener(&threads, caller, Some("a")));
        let _second = [4, 5].map(|caller| listener(&threads, caller, Some("b")));
        assert_eq!(received.each_mut().map(callers), [vec![2, 3], vec![4, 5]]);
        assert_eq!(threads.list_chains().len(), 2);
        drop(first);
        assert_eq!(threads.list_chains().len(), 1);
    }

    #[test]
    fn a_large_chain_has_listeners_on_all_threads() {
        let threads = GatewayThreads::default();
        let mut received = [add_thread(&threads), add_thread(&threads)];
        let _served: Vec<_> = (2..22)
            .map(|caller| listener(&threads, caller, Some("a")))
            .collect();
        let [first, second] = received.each_mut().map(callers);
        assert_eq!((first.len(), second.len()), (14, 6));
    }

    #[test]
    fn a_chain_with_many_early_listeners_has_a_thread() {
        let threads = GatewayThreads::default();
        let _early: Vec<_> = (2..14)
            .map(|caller| listener(&threads, caller, Some("a")))
            .collect();
        let _received = add_thread(&threads);
        assert_eq!(threads.list_chains().len(), 1);
    }

    #[test]
    fn a_chain_whose_thread_has_ended_gets_another_one() {
        let threads = GatewayThreads::default();
        let mut received = [add_thread(&threads), add_thread(&threads)];
        let _before = listener(&threads, 2, Some("a"));
        received[0].close();
        let _after = [3, 4].map(|caller| listener(&threads, caller, Some("a")));
        assert_eq!(callers(&mut received[1]), [3, 4]);
    }

    #[test]
    fn a_large_chain_whose_thread_has_ended_gets_another_one() {
        let threads = GatewayThreads::default();
        let mut received = [add_thread(&threads), add_thread(&threads)];
        let _before: Vec<_> = (2..14)
            .map(|caller| listener(&threads, caller, Some("a")))
            .collect();
        received[0].close();
        let _after = listener(&threads, 14, Some("a"));
        assert_eq!(threads.list_chains().len(), 1);
    }

    #[test]
    fn a_dropped_guard_ends_the_listener() {
        let threads = GatewayThreads::default();
        let mut received = add_thread(&threads);
        let (served, addr) = listener(&threads, 2, None);
        let socket = received.try_recv().unwrap().socket;
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
