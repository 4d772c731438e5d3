//! The old process's side: it waits for a successor.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, listen};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::{
    HandoverRequest, InheritedSockets, UdpPort, message, new_socket, set_timeouts, socket_path,
};

/// Accepts successors on a thread of its own until one has taken over.
pub(crate) struct SuccessorListener {
    /// `None` once this process shuts down.
    sockets: Mutex<Option<InheritedSockets>>,
    /// Unlocks the data directory; blocks until that is done.
    release: Box<dyn Fn() + Send + Sync>,
    runtime: Handle,
}

impl SuccessorListener {
    /// Starts listening. The receiver resolves when a successor has taken over; never, if no socket
    /// can be made.
    pub(crate) fn start(
        data_dir: &Path,
        sockets: InheritedSockets,
        release: impl Fn() + Send + Sync + 'static,
    ) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (sockets, release) = (Mutex::new(Some(sockets)), Box::new(release));
        let this = Arc::new(Self {
            sockets,
            release,
            // Kept, because the thread below is none of the runtime.
            runtime: Handle::current(),
        });
        let (done, replaced) = oneshot::channel();
        let listener = this.clone();
        let started = open_socket(data_dir).and_then(|socket| {
            let wait = move || match listener.accept_successor(&socket) {
                // An error means that the server is shutting down anyway.
                Ok(()) => drop(done.send(())),
                Err(error) => {
                    tracing::warn!(%error, "handover: no further process can take over")
                }
            };
            std::thread::Builder::new()
                .name("successor".to_owned())
                .spawn(wait)
        });
        if let Err(error) = started {
            tracing::warn!(%error, "handover: no process can take over");
        }
        (this, replaced)
    }

    /// Closes the kept sockets. The returned UDP ports must live until their last connection has ended.
    pub(crate) fn close(&self) -> Vec<UdpPort> {
        let sockets = self.sockets().take().unwrap_or_default();
        let ports = [sockets.http3_port, sockets.node_port];
        let mut ports: Vec<_> = ports.into_iter().flatten().collect();
        ports.iter_mut().for_each(UdpPort::stop_resets);
        ports
    }

    /// Returns when a successor has taken over.
    fn accept_successor(&self, socket: &OwnedFd) -> io::Result<()> {
        loop {
            let successor =
                rustix::io::retry_on_intr(|| accept_with(socket, SocketFlags::CLOEXEC))?;
            if self.hand_over(&successor) {
                return Ok(());
            }
        }
    }

    /// Returns whether the successor has taken over; otherwise this process serves on.
    fn hand_over(&self, successor: &OwnedFd) -> bool {
        // The port's resets are tasks.
        let _runtime = self.runtime.enter();
        let taken_over = self.answer_requests(successor);
        if let Err(error) = &taken_over {
            tracing::warn!(%error, "handover: the new process failed to take over, serving continues");
            for port in self.sockets().iter_mut().flat_map(|all| all.udp_ports()) {
                // The failed successor may have steered packets to itself already.
                let steered = port.steer_to_self();
                port.reset_orphans();
                if let Err(error) = steered {
                    tracing::error!(%error, "QUIC: new connections cannot be routed to a process");
                }
            }
        }
        taken_over.is_ok()
    }

    fn answer_requests(&self, successor: &OwnedFd) -> io::Result<()> {
        set_timeouts(successor)?;
        expect(successor, HandoverRequest::Offer)?;
        self.send_sockets(successor)?;
        tracing::info!("handover: a new process takes over");
        expect(successor, HandoverRequest::Release)?;
        // Before the reply: the successor locks the data directory as soon as it has it.
        (self.release)();
        message::send(successor, &(), &[])?;
        // Starting instances takes its time, so this wait is unbounded. If the successor dies, the
        // socket reports it.
        set_socket_timeout(successor, Timeout::Recv, None)?;
        expect(successor, HandoverRequest::Go)
    }

    fn send_sockets(&self, successor: &OwnedFd) -> io::Result<()> {
        let mut sockets = self.sockets();
        let sockets = sockets
            .as_mut()
            .ok_or_else(|| io::Error::other("this process is shutting down"))?;
        // A successor may reuse the sockets of ended processes, and only one may read them.
        sockets.udp_ports().for_each(UdpPort::stop_resets);
        sockets.send(successor)
    }

    fn sockets(&self) -> MutexGuard<'_, Option<InheritedSockets>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn expect(successor: &OwnedFd, expected: HandoverRequest) -> io::Result<()> {
    match message::receive::<HandoverRequest>(successor)?.0 {
        request if request == expected => Ok(()),
        other => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("unexpected request {other:?}, not {expected:?}"),
        )),
    }
}

/// Opens the socket with access for this user only.
fn open_socket(data_dir: &Path) -> io::Result<OwnedFd> {
    let (path, hidden) = (socket_path(data_dir), data_dir.join("successor.new"));
    let _ = fs::remove_file(&hidden); // left by a process that died right here
    let socket = new_socket()?;
    // Others may have access to the folder. Under the final name the socket appears with its
    // permissions already set.
    bind(&socket, &SocketAddrUnix::new(&hidden)?)?;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600))?;
    // Successors are rare, and are served one after another.
    listen(&socket, 4)?;
    fs::rename(&hidden, &path)?;
    Ok(socket)
}
