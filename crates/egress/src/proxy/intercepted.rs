//! Instances with intercepted connects: receives their seccomp listener and supervises it.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nearpath_kernel::seccomp::handover;
use nearpath_types::Eip;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::task::spawn_local;

use super::EgressProxy;
use crate::EgressInstance;
use crate::intercept::{HandedSockets, PoolWarmSource, supervise_connects};

impl EgressProxy {
    /// Answers an instance's connects until it has ended. Without a listener the egress proxy
    /// carries all its connections.
    pub(super) fn supervise_connects(self: &Rc<Self>, eip: Eip, listener: OwnedFd) {
        let Some(instance) = self.policy.borrow().instance_at(eip) else {
            return;
        };
        let proxy = Rc::clone(self);
        spawn_local(async move {
            let id = instance.caller.instance;
            match proxy.run_supervision(instance, listener).await {
                // The instance ended before the filter was installed.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                Err(error) => {
                    tracing::warn!(instance = %id, %error, "interception stopped, the egress proxy carries this instance's connections")
                }
                Ok(()) => {}
            }
        });
    }

    async fn run_supervision(
        &self,
        instance: Rc<EgressInstance>,
        listener: OwnedFd,
    ) -> io::Result<()> {
        let handed_sockets = self.handed_sockets()?;
        // tokio expects a non-blocking socket and does not set the mode.
        rustix::io::ioctl_fionbio(&listener, true)?;
        let socket = UnixDatagram::from_std(listener.into())?;
        let handover = socket
            .async_io(Interest::READABLE, || handover::receive_listener(&socket))
            .await?;
        supervise_connects(
            handover,
            instance.destinations.clone(),
            PoolWarmSource::new(&self.pool, instance.caller.function.clone()),
            handed_sockets,
        )
        .await
    }

    fn handed_sockets(&self) -> io::Result<Rc<HandedSockets>> {
        // Created at the first use: without interception the kernel's events are not needed.
        if let Some(handed_sockets) = &*self.handed_sockets.borrow() {
            return Ok(Rc::clone(handed_sockets));
        }
        let handed_sockets = HandedSockets::start()?;
        self.handed_sockets
            .replace(Some(Rc::clone(&handed_sockets)));
        Ok(handed_sockets)
    }
}
