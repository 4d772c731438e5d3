//! Forwards the datagrams of one flow, as long as it is used.

use std::cell::RefCell;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use tokio::net::UdpSocket;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::drop_reason::{DatagramCounters, DropReason, add};
use super::receive_queue::{MAX_BATCH, MAX_DATAGRAM_BYTES};

/// Time after the last datagram of both directions, until a flow ends. The next datagram begins a new one.
const FLOW_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

thread_local! {
    /// Shared by the flows of a thread: none keeps a datagram while it waits.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; MAX_DATAGRAM_BYTES].into());
}

/// Lets a flow read its own sockets, when it is dropped.
pub(super) type StartSignal = oneshot::Sender<()>;

/// A flow that is forwarded. Ends when dropped.
pub(super) struct OpenFlow {
    pub(super) instance_eip: Ipv4Addr,
    /// Connected to the instance.
    pub(super) instance: Arc<UdpSocket>,
    task: AbortHandle,
}

/// Sockets between a caller and an instance.
pub(super) struct FlowSockets {
    /// Has the virtual address, and is connected to the caller's socket.
    pub(super) caller: UdpSocket,
    pub(super) instance: Arc<UdpSocket>,
}

/// Reason why a flow ends by itself.
struct FlowOver;

impl OpenFlow {
    /// Starts to forward once the signal is dropped. Calls `end` when the flow ends by itself.
    pub(super) fn start(
        instance_eip: Ipv4Addr,
        sockets: FlowSockets,
        counters: Arc<DatagramCounters>,
        end: impl FnOnce() + Send + 'static,
    ) -> (Self, StartSignal) {
        let (signal, start) = oneshot::channel();
        // The forwarder sends to it, too: what is held, and what came before the flow had its socket.
        let instance = sockets.instance.clone();
        let forwarding = async move {
            let _ = start.await; // it is dropped, never sent
            sockets.forward_until_over(&counters).await;
            end();
        };
        let task = tokio::spawn(forwarding).abort_handle();
        let open = Self {
            instance_eip,
            instance,
            task,
        };
        (open, signal)
    }
}

impl Drop for OpenFlow {
    fn drop(&mut self) {
        self.task.abort(); // closes the sockets
    }
}

impl FlowSockets {
    async fn forward_until_over(&self, counters: &DatagramCounters) {
        while let Ok(Ok(())) = timeout(FLOW_IDLE_TIMEOUT, self.wait_readable()).await {
            if self.forward_available(counters).is_err() {
                return;
            }
        }
    }

    async fn wait_readable(&self) -> io::Result<()> {
        tokio::select! {
            ready = self.caller.readable() => ready,
            ready = self.instance.readable() => ready,
        }
    }

    fn forward_available(&self, counters: &DatagramCounters) -> Result<(), FlowOver> {
        // A refusal of the caller says that its socket is closed, so answers have no reader.
        forward(&self.caller, &self.instance, counters).map_err(|_| FlowOver)?;
        match forward(&self.instance, &self.caller, counters) {
            // The instance may open its port later.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            other => other.map_err(|_| FlowOver),
        }
    }
}

/// Forwards the datagrams that are there, a batch at most.
fn forward(from: &UdpSocket, to: &UdpSocket, counters: &DatagramCounters) -> io::Result<()> {
    BUFFER.with_borrow_mut(|buffer| {
        // Bounded, so that answers get their turn while a caller floods.
        for _ in 0..MAX_BATCH {
            match from.try_recv(buffer) {
                Ok(len) if send_datagram(to, &buffer[..len]) => add(&counters.forwarded, 1),
                Ok(_) => counters.count_dropped(DropReason::Unreachable, 1),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    })
}

/// Sends a datagram to the peer of a socket, without waiting. Returns whether the kernel took it.
pub(super) fn send_datagram(socket: impl AsFd, content: &[u8]) -> bool {
    // Not by the runtime: it takes a new socket for one that is not writable yet.
    let send_once = || send(&socket, content, SendFlags::empty()).is_ok();
    // The first attempt may report an ICMP error of an earlier datagram instead (`ip(7)`).
    send_once() || send_once()
}
