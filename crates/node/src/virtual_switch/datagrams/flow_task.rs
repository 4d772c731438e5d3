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

use super::drop_reason::{DropReason, add};
use super::flow_table::{FlowKey, FlowNumber};
use super::forwarder::{ForwarderContext, MAX_BATCH, MAX_DATAGRAM_BYTES};

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

/// Sockets between the caller and the instance.
struct FlowTask {
    context: Arc<ForwarderContext>,
    identity: (FlowKey, FlowNumber),
    /// Has the virtual address, and is connected to the caller's socket.
    caller: UdpSocket,
    instance: Arc<UdpSocket>,
}

/// Reason why a flow ends by itself.
struct FlowOver;

impl OpenFlow {
    /// Starts to forward once the signal is dropped.
    pub(super) fn start(
        context: &Arc<ForwarderContext>,
        identity: (FlowKey, FlowNumber),
        caller: UdpSocket,
        (instance_eip, instance): (Ipv4Addr, Arc<UdpSocket>),
    ) -> (Self, StartSignal) {
        let (signal, start) = oneshot::channel();
        let task = FlowTask {
            context: context.clone(),
            identity,
            caller,
            instance: instance.clone(),
        };
        let open = Self {
            instance_eip,
            instance,
            task: tokio::spawn(task.run(start)).abort_handle(),
        };
        (open, signal)
    }
}

impl Drop for OpenFlow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FlowTask {
    async fn run(self, start: oneshot::Receiver<()>) {
        let _ = start.await; // it is dropped, never sent
        while let Ok(Ok(())) = timeout(FLOW_IDLE_TIMEOUT, self.wait_readable()).await {
            if self.forward_available().is_err() {
                break;
            }
        }
        let (key, number) = &self.identity;
        self.context.end_flow(key, *number);
    }

    async fn wait_readable(&self) -> io::Result<()> {
        tokio::select! {
            ready = self.caller.readable() => ready,
            ready = self.instance.readable() => ready,
        }
    }

    fn forward_available(&self) -> Result<(), FlowOver> {
        // A refusal of the caller says that its socket is closed. That of the instance may be for now only.
        match self.forward(&self.caller, &self.instance) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Err(FlowOver),
            other => other.map_err(|_| FlowOver)?,
        }
        match self.forward(&self.instance, &self.caller) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            other => other.map_err(|_| FlowOver),
        }
    }

    /// Forwards the datagrams that are there, a batch at most.
    fn forward(&self, from: &UdpSocket, to: &UdpSocket) -> io::Result<()> {
        let counters = &self.context.counters;
        BUFFER.with_borrow_mut(|buffer| {
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
}

/// Sends a datagram to the peer of a socket, without waiting. Returns whether the kernel took it.
pub(super) fn send_datagram(socket: impl AsFd, content: &[u8]) -> bool {
    let send_once = || send(&socket, content, SendFlags::empty()).is_ok();
    // The first attempt may report an ICMP error of an earlier datagram instead (`ip(7)`).
    send_once() || send_once()
}
