//! Instances whose connects are asked about: the listener's way here, and who answers.

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
    /// Answers an instance's connects until it has ended. Where there is no listener in the end, the way out is all that it has, as before.
    pub(super) fn supervise_connects(self: &Rc<Self>, eip: Eip, listener: OwnedFd) {
        let Some(caller) = self.policy.borrow().instance_at(eip) else {
            return;
        };
        let exit = Rc::clone(self);
        spawn_local(async move {
            let instance = caller.caller.instance;
            match exit.run_supervision(caller, listener).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {} // it ended before it was one
                Err(error) => {
                    tracing::warn!(%instance, %error, "no warm sockets in the place of this instance's own")
                }
                Ok(()) => {}
            }
        });
    }

    async fn run_supervision(
        &self,
        caller: Rc<EgressInstance>,
        listener: OwnedFd,
    ) -> io::Result<()> {
        let given = self.handed_sockets()?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        let socket = UnixDatagram::from_std(listener.into())?;
        let handed = socket
            .async_io(Interest::READABLE, || handover::receive_listener(&socket))
            .await?;
        supervise_connects(
            handed,
            caller.destinations.clone(),
            PoolWarmSource::for_pool(&self.pool),
            given,
        )
        .await
    }

    fn handed_sockets(&self) -> io::Result<Rc<HandedSockets>> {
        if let Some(given) = &*self.handed_sockets.borrow() {
            return Ok(Rc::clone(given));
        }
        let given = HandedSockets::start()?;
        self.handed_sockets.replace(Some(Rc::clone(&given)));
        Ok(given)
    }
}
