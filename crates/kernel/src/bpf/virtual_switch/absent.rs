//! The node's sockets in the hub for virtual addresses without a ready instance here; see `find_listener` in
//! `bpf/vip.c`.

use std::io;
use std::net::{TcpListener, UdpSocket};

use aya::programs::SkLookup;
use nearpath_types::VirtualAddress;

use super::{VirtualSwitch, map_result};
use crate::bpf::object::{self, bpf_error};
use crate::hub_netns::HubNetns;

/// `enum node_socket` of `bpf/lib/switch_tables.h`.
const CONNECTIONS: u32 = 0;
const DATAGRAMS: u32 = 1;

/// Non-blocking sockets for what instances send to virtual addresses without a ready instance here.
#[derive(Debug)]
pub struct AbsentSockets {
    /// Gets all TCP connections. The local address of an accepted socket is what the caller asked for,
    /// and its peer is the caller's instance.
    pub connections: TcpListener,
    /// Gets all datagrams but those of sockets of [`HubNetns::open_flow_socket`].
    /// [`receive_datagram`](crate::sockets::receive_datagram) reads them.
    pub datagrams: UdpSocket,
}

impl VirtualSwitch {
    /// Opens sockets in the hub that get what instances send to virtual addresses without a ready instance
    /// here.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`, or when the hub has such sockets.
    pub fn listen_for_absent(&mut self, hub: &HubNetns) -> io::Result<AbsentSockets> {
        hub.add_local_network(VirtualAddress::NETWORK, 16)?;
        let sockets = AbsentSockets {
            connections: hub.open_listener()?,
            datagrams: hub.open_datagram_socket()?,
        };
        {
            let map = &mut self.lock().node_sockets;
            map_result(map.set(CONNECTIONS, &sockets.connections, 0))?;
            map_result(map.set(DATAGRAMS, &sockets.datagrams, 0))?;
        }
        let program: &mut SkLookup = object::program(&mut self.loaded, "find_listener")?;
        program.load().map_err(|error| bpf_error(&error))?;
        let attached = program.attach(hub);
        attached.map_err(|error| bpf_error(&error))?;
        Ok(sockets)
    }
}
