//! Small NAT: forwards datagrams from a port of its own, and changes it on demand, as NATs do after
//! some silence.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use nearpath_testkit::lab::LabNode;
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

use crate::faults::caller::bind_socket;

/// A NAT on the caller's machine.
pub(crate) struct TestNat {
    node: LabNode,
    inside: Rc<UdpSocket>,
    worker: SocketAddr,
    mapping: RefCell<Option<PortMapping>>,
}

/// Port outside, and the two directions through it.
struct PortMapping {
    port: u16,
    directions: [AbortHandle; 2],
}

impl TestNat {
    pub(crate) fn new(node: &LabNode, worker: SocketAddr) -> Self {
        let inside = Rc::new(tokio_socket(node));
        let nat = Self {
            node: node.clone(),
            inside,
            worker,
            mapping: RefCell::new(None),
        };
        nat.change_port();
        nat
    }

    /// Returns the address to which the caller sends.
    pub(crate) fn addr(&self) -> SocketAddr {
        (
            Ipv4Addr::LOCALHOST,
            self.inside.local_addr().unwrap().port(),
        )
            .into()
    }

    /// The port that the worker sees.
    pub(crate) fn port(&self) -> u16 {
        self.mapping.borrow().as_ref().unwrap().port
    }

    /// From now on there is another port outside; what comes to the old one goes nowhere.
    pub(crate) fn change_port(&self) {
        let outside = Rc::new(tokio_socket(&self.node));
        let port = outside.local_addr().unwrap().port();
        let caller = Rc::new(RefCell::new(None));
        let (inside, worker) = (Rc::clone(&self.inside), self.worker);
        let (to, from, seen) = (Rc::clone(&outside), Rc::clone(&inside), Rc::clone(&caller));
        let out = tokio::task::spawn_local(async move {
            let mut datagram = [0; 2048];
            while let Ok((length, addr)) = from.recv_from(&mut datagram).await {
                *seen.borrow_mut() = Some(addr);
                let _ = to.send_to(&datagram[..length], worker).await;
            }
        });
        let back = tokio::task::spawn_local(async move {
            let mut datagram = [0; 2048];
            while let Ok(length) = outside.recv(&mut datagram).await {
                let caller = *caller.borrow();
                if let Some(caller) = caller {
                    let _ = inside.send_to(&datagram[..length], caller).await;
                }
            }
        });
        let mapping = PortMapping {
            port,
            directions: [out.abort_handle(), back.abort_handle()],
        };
        if let Some(old) = self.mapping.replace(Some(mapping)) {
            old.directions.iter().for_each(AbortHandle::abort);
        }
    }
}

fn tokio_socket(node: &LabNode) -> UdpSocket {
    let socket = bind_socket(node);
    socket.set_nonblocking(true).unwrap();
    UdpSocket::from_std(socket).unwrap()
}
