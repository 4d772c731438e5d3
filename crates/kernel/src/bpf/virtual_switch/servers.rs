//! Functions' own HTTP servers, and the edges whose connections go straight to them
//! (`bpf/lib/server_listeners.h`).

use std::collections::HashMap as StdHashMap;
use std::io;
use std::os::fd::AsFd;

use aya::Ebpf;
use aya::maps::{HashMap, MapData};
use aya::programs::SkLookup;
use aya::programs::sk_lookup::SkLookupLink;
use nearpath_types::Eip;

use super::rows::{self, AddressPair, encode_address};
use super::{AddressEdge, VirtualSwitch, map_result};
use crate::bpf::object::{self, bpf_error, take_map};

/// Gives connections to an instance's address at port 80 to its server.
const FIND_SERVER: &str = "find_server_listener";

/// Maps of servers, and the attachments in the instances that have one.
pub(super) struct ServerMaps {
    ports: HashMap<MapData, u32, u32>,
    edges: HashMap<MapData, AddressPair, u32>,
    attachments: StdHashMap<Eip, SkLookupLink>,
}

impl VirtualSwitch {
    /// Lets connections of edges that balance them reach an instance's own HTTP server, which
    /// listens at `port` of any of its addresses. [`Self::remove_instance`] ends that.
    ///
    /// Listeners that began before the instance was admitted are not found.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`, or when the kernel has no memory. The gateway takes the
    /// connections then.
    pub fn open_server(&self, eip: Eip, netns: impl AsFd, port: u16) -> io::Result<()> {
        let attachment = {
            let mut loaded = self.lock_programs();
            let program: &mut SkLookup = object::program(&mut loaded, FIND_SERVER)?;
            let attached = program.attach(netns);
            let taken = attached.and_then(|link| program.take_link(link));
            taken.map_err(|error| bpf_error(&error))?
        };
        // Attached before its port is known: a connection never meets one without the other.
        let servers = &mut self.lock().servers;
        servers.attachments.insert(eip, attachment);
        map_result(
            servers
                .ports
                .insert(encode_address(eip.0), u32::from(port), 0),
        )
    }

    /// Sets whether HTTP by name is balanced per connection on an edge, or per request by the
    /// gateway.
    ///
    /// # Errors
    /// Fails when the kernel has no memory. Requests are balanced then.
    pub fn balance_connections(&self, edge: AddressEdge, is_balanced: bool) -> io::Result<()> {
        let (mut maps, key) = (self.lock(), rows::edge_key(edge));
        if is_balanced {
            return map_result(maps.servers.edges.insert(key, 1, 0));
        }
        maps.servers.balance_requests(key);
        Ok(())
    }
}

impl ServerMaps {
    pub(super) fn take_from(loaded: &mut Ebpf) -> io::Result<Self> {
        Ok(Self {
            ports: take_map(loaded, "server_ports")?,
            edges: take_map(loaded, "connection_edges")?,
            attachments: StdHashMap::new(),
        })
    }

    /// Leaves the requests of an edge to the gateway.
    pub(super) fn balance_requests(&mut self, edge: AddressPair) {
        let _ = self.edges.remove(&edge); // it may not exist
    }

    /// Forgets an ended instance.
    pub(super) fn remove(&mut self, eip: Eip) {
        let _ = self.ports.remove(&encode_address(eip.0)); // it may have had no server
        self.attachments.remove(&eip);
    }
}

/// Loads the program that instances with a server get.
pub(super) fn load_program(loaded: &mut Ebpf) -> io::Result<()> {
    let program: &mut SkLookup = object::program(loaded, FIND_SERVER)?;
    program.load().map_err(|error| bpf_error(&error))
}
