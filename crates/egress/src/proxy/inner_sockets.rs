//! The node's sockets inside an instance: the way there of what was declared by an IPv6 address, and of questions about names.

use std::io;
use std::net::{SocketAddr, UdpSocket as Plain};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use nearpath_kernel::sandbox::{InnerSocket, inner_socket};
use nearpath_types::Eip;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram};
use tokio::sync::watch;
use tokio::task::spawn_local;

use super::Exit;
use crate::EgressInstance;

impl Exit {
    /// Serves an instance's hatches, which arrive at `socket`, until it has ended.
    pub(super) fn attend(self: &Rc<Self>, eip: Eip, hatches: Vec<InnerSocket>, socket: OwnedFd) {
        let Some((caller, here)) = self.guests.borrow().here(eip) else { return };
        let exit = Rc::clone(self);
        spawn_local(async move {
            if let Err(error) = exit.open_hatches(&caller, &here, &hatches, socket).await {
                tracing::warn!(instance = %caller.caller.instance, %error, "no sockets inside this instance");
            }
        });
    }

    async fn open_hatches(
        self: &Rc<Self>,
        caller: &Rc<EgressInstance>,
        here: &watch::Receiver<()>,
        hatches: &[InnerSocket],
        socket: OwnedFd,
    ) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let socket = UnixDatagram::from_std(socket.into())?;
        while let Some((number, opened)) =
            socket.async_io(Interest::READABLE, || inner_socket::receive_next(&socket)).await?
        {
            let Some(hatch) = hatches.get(number) else { continue };
            let opened = opened.and_then(|opened| self.open_hatch(caller, here.clone(), *hatch, opened));
            if let Err(error) = opened {
                let at = hatch.address();
                self.notice(
                    &caller.caller,
                    &at.to_string(),
                    &format!("egress {at} is not reached from this instance: {error}"),
                );
            }
        }
        Ok(())
    }

    fn open_hatch(
        self: &Rc<Self>,
        caller: &Rc<EgressInstance>,
        mut here: watch::Receiver<()>,
        hatch: InnerSocket,
        opened: OwnedFd,
    ) -> io::Result<()> {
        let (exit, caller) = (Rc::clone(self), Rc::clone(caller));
        match hatch {
            InnerSocket::TcpV6(at) => {
                rustix::net::sockopt::set_tcp_nodelay(&opened, true)?; // what it accepts has it, too
                let listener = TcpListener::from_std(opened.into())?;
                let meet = move |client: TcpStream, _| exit.receive(client, caller.eip, SocketAddr::V6(at));
                spawn_local(async move {
                    tokio::select! {
                        _ = here.changed() => {}
                        () = super::accept(listener, meet) => {}
                    }
                });
            }
            InnerSocket::UdpV4(_) => {
                let socket = UdpSocket::from_std(Plain::from(opened))?;
                spawn_local(async move {
                    tokio::select! {
                        _ = here.changed() => {}
                        () = exit.answer_names(caller, socket) => {}
                    }
                });
            }
        }
        Ok(())
    }
}
