//! Instances whose connects are asked about: the listener's way here, and who answers.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nearpath_kernel::seccomp::handover;
use nearpath_types::Eip;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::task::spawn_local;

use super::Exit;
use crate::EgressInstance;
use crate::intercept::{Given, Shelf, supervise};

impl Exit {
    /// Answers an instance's connects until it has ended. Where there is no listener in the end, the way out is all that it has, as before.
    pub(super) fn supervise(self: &Rc<Self>, eip: Eip, listener: OwnedFd) {
        let Some(caller) = self.guests.borrow().caller(eip) else { return };
        let exit = Rc::clone(self);
        spawn_local(async move {
            let instance = caller.caller.instance;
            match exit.answer(caller, listener).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {} // it ended before it was one
                Err(error) => tracing::warn!(%instance, %error, "no warm sockets in the place of this instance's own"),
                Ok(()) => {}
            }
        });
    }

    async fn answer(&self, caller: Rc<EgressInstance>, listener: OwnedFd) -> io::Result<()> {
        let given = self.given()?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        let socket = UnixDatagram::from_std(listener.into())?;
        let handed = socket.async_io(Interest::READABLE, || handover::receive_listener(&socket)).await?;
        supervise(handed, caller.destinations.clone(), Shelf::of(&self.keeper), given).await
    }

    fn given(&self) -> io::Result<Rc<Given>> {
        if let Some(given) = &*self.given.borrow() {
            return Ok(Rc::clone(given));
        }
        let given = Given::start()?;
        self.given.replace(Some(Rc::clone(&given)));
        Ok(given)
    }
}
