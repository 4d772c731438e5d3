//! The node's sockets in the hub for virtual addresses without a ready instance here; see
//! `find_listener` in `bpf/vip.c`.

use std::io;
use std::net::{TcpListener, UdpSocket};

use aya::programs::SkLookup;
use nearpath_types::VirtualAddress;

use super::{VirtualSwitch, map_result};
use crate::bpf::object::{self, bpf_error};
use crate::hub_netns::HubNetns;

/// `enum node_socket` of `bpf/lib/switch_tables.h`.
const CONNECTIONS: u32 = 0;
const FIRST_DATAGRAMS: u32 = 1;
/// `DATAGRAM_SOCKETS` there.
const DATAGRAM_SOCKETS: u32 = 16;

/// Non-blocking sockets for what instances send to virtual addresses without a ready instance here.
#[derive(Debug)]
pub struct AbsentSockets {
    /// Gets all TCP connections. The local address of an accepted socket is what the caller asked
    /// for, and its peer is the caller's instance.
    pub connections: TcpListener,
    /// Get the datagrams of some instances each, except those for
    /// [`HubNetns::open_flow_socket`]'s. [`receive_datagram`](crate::sockets::receive_datagram)
    /// reads them.
    pub datagrams: Vec<UdpSocket>,
}

impl VirtualSwitch {
    /// Opens sockets in the hub that get what instances send to virtual addresses without a ready
    /// instance here.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`, or when the hub has such sockets.
    pub fn listen_for_absent(&self, hub: &HubNetns) -> io::Result<AbsentSockets> {
        hub.add_local_network(VirtualAddress::NETWORK, 16)?;
        let datagrams = (0..DATAGRAM_SOCKETS).map(|_| hub.open_datagram_socket());
        let sockets = AbsentSockets {
            connections: hub.open_listener()?,
            datagrams: datagrams.collect::<io::Result<_>>()?,
        };
        {
            let map = &mut self.lock().node_sockets;
            map_result(map.set(CONNECTIONS, &sockets.connections, 0))?;
            for (index, socket) in (FIRST_DATAGRAMS..).zip(&sockets.datagrams) {
                map_result(map.set(index, socket, 0))?;
            }
        }
        let mut loaded = self.lock_programs();
        let program: &mut SkLookup = object::program(&mut loaded, "find_listener")?;
        program.load().map_err(|error| bpf_error(&error))?;
        let attached = program.attach(hub);
        attached.map_err(|error| bpf_error(&error))?;
        Ok(sockets)
    }
}
