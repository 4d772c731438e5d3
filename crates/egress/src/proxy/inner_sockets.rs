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

use super::EgressProxy;
use crate::EgressInstance;

impl EgressProxy {
    /// Serves an instance's hatches, which arrive at `socket`, until it has ended.
    pub(super) fn serve_inner_sockets(
        self: &Rc<Self>,
        eip: Eip,
        hatches: Vec<InnerSocket>,
        socket: OwnedFd,
    ) {
        let Some((caller, here)) = self.policy.borrow().find_alive(eip) else {
            return;
        };
        let exit = Rc::clone(self);
        spawn_local(async move {
            if let Err(error) = exit
                .receive_inner_sockets(&caller, &here, &hatches, socket)
                .await
            {
                tracing::warn!(instance = %caller.caller.instance, %error, "no sockets inside this instance");
            }
        });
    }

    async fn receive_inner_sockets(
        self: &Rc<Self>,
        caller: &Rc<EgressInstance>,
        here: &watch::Receiver<()>,
        hatches: &[InnerSocket],
        socket: OwnedFd,
    ) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let socket = UnixDatagram::from_std(socket.into())?;
        while let Some((number, opened)) = socket
            .async_io(Interest::READABLE, || inner_socket::receive_next(&socket))
            .await?
        {
            let Some(hatch) = hatches.get(number) else {
                continue;
            };
            let opened = opened
                .and_then(|opened| self.serve_inner_socket(caller, here.clone(), *hatch, opened));
            if let Err(error) = opened {
                let at = hatch.address();
                self.notify_tenant(
                    &caller.caller,
                    &at.to_string(),
                    &format!("egress {at} is not reached from this instance: {error}"),
                );
            }
        }
        Ok(())
    }

    fn serve_inner_socket(
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
                let meet = move |client: TcpStream, _| {
                    exit.route_connection(client, caller.eip, SocketAddr::V6(at))
                };
                spawn_local(async move {
                    tokio::select! {
                        _ = here.changed() => {}
                        () = super::accept_all(listener, meet) => {}
                    }
                });
            }
            InnerSocket::UdpV4(_) => {
                let socket = UdpSocket::from_std(Plain::from(opened))?;
                spawn_local(async move {
                    tokio::select! {
                        _ = here.changed() => {}
                        () = exit.serve_names(caller, socket) => {}
                    }
                });
            }
        }
        Ok(())
    }
}
