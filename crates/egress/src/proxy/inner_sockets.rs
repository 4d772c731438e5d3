//! Sockets of the node inside an instance, for IPv6 destinations and DNS queries.

use std::io;
use std::net::{SocketAddr, UdpSocket as StdUdpSocket};
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
    /// Serves an instance's inner sockets, which arrive at `socket`, until it has ended.
    pub(super) fn serve_inner_sockets(
        self: &Rc<Self>,
        eip: Eip,
        inner_sockets: Vec<InnerSocket>,
        socket: OwnedFd,
    ) {
        let Some((instance, alive)) = self.policy.borrow().find_alive(eip) else {
            return;
        };
        let proxy = Rc::clone(self);
        spawn_local(async move {
            if let Err(error) = proxy
                .receive_inner_sockets(&instance, &alive, &inner_sockets, socket)
                .await
            {
                tracing::warn!(instance = %instance.caller.instance, %error, "egress proxy: no sockets inside the instance");
            }
        });
    }

    async fn receive_inner_sockets(
        self: &Rc<Self>,
        instance: &Rc<EgressInstance>,
        alive: &watch::Receiver<()>,
        inner_sockets: &[InnerSocket],
        socket: OwnedFd,
    ) -> io::Result<()> {
        // tokio expects a non-blocking socket and does not set the mode.
        rustix::io::ioctl_fionbio(&socket, true)?;
        let socket = UnixDatagram::from_std(socket.into())?;
        while let Some((number, received)) = socket
            .async_io(Interest::READABLE, || inner_socket::receive_next(&socket))
            .await?
        {
            let Some(inner_socket) = inner_sockets.get(number) else {
                continue;
            };
            let served = received.and_then(|received| {
                self.serve_inner_socket(instance, alive.clone(), *inner_socket, received)
            });
            // The other destinations of the instance still work.
            if let Err(error) = served {
                let address = inner_socket.address();
                self.notify_tenant(
                    &instance.caller,
                    &address.to_string(),
                    &format!("egress {address} is unreachable from this instance: {error}"),
                );
            }
        }
        Ok(())
    }

    fn serve_inner_socket(
        self: &Rc<Self>,
        instance: &Rc<EgressInstance>,
        mut alive: watch::Receiver<()>,
        inner_socket: InnerSocket,
        socket: OwnedFd,
    ) -> io::Result<()> {
        let (proxy, instance) = (Rc::clone(self), Rc::clone(instance));
        match inner_socket {
            InnerSocket::TcpV6(address) => {
                // Accepted sockets inherit it.
                rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
                let listener = TcpListener::from_std(socket.into())?;
                let serve = move |client: TcpStream, _| {
                    proxy.route_connection(client, instance.eip, SocketAddr::V6(address))
                };
                spawn_local(async move {
                    tokio::select! {
                        _ = alive.changed() => {}
                        () = super::accept_all(listener, serve) => {}
                    }
                });
            }
            InnerSocket::UdpV4(_) => {
                let socket = UdpSocket::from_std(StdUdpSocket::from(socket))?;
                spawn_local(async move {
                    tokio::select! {
                        _ = alive.changed() => {}
                        () = proxy.serve_names(instance, socket) => {}
                    }
                });
            }
        }
        Ok(())
    }
}
