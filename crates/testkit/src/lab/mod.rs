//! Machines and the wires between them, on one machine: network namespaces joined by links with delay, loss and a rate.
//!
//! [`NetworkLab::add_node`] makes a namespace, [`NetworkLab::link`] joins two by a pair of TUN devices with a thread between them that holds
//! each packet as long as [`LinkConditions`] says. The kernel's own netem would do that in fewer steps, but is not in every kernel. What
//! happens to which packet is decided by a state machine without clock (`line`) from seed and number alone, so a run repeats.
//! Links route, nothing bridges: a node with two links and [`LabNode::enable_forwarding`] is a router between them. [`nat`] has sites behind
//! routers that translate addresses.
//!
//! ```no_run
//! use std::process::Command;
//! use std::time::Duration;
//! use nearpath_testkit::lab::{Lab, Link};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut lab = Lab::new()?;
//! let (gateway, worker) = (lab.node("gateway")?, lab.node("worker")?);
//! let wire = lab.link(&gateway, &worker, &Link { delay: Duration::from_micros(500), ..Link::default() })?;
//! let there = wire.second().v4;
//! let listener = worker.enter(|| std::net::TcpListener::bind((there, 8080)))?;
//! gateway.run(Command::new("curl").arg(format!("http://{there}:8080/")))?;
//! wire.cut();
//! # Ok(())
//! # }
//! ```

mod conditions;
mod driver;
mod lab_link;
mod leftovers;
mod link_model;
pub mod nat;
mod node;
mod packet_draw;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::Once;

pub use conditions::{LinkConditions, LinkCounts};
pub use lab_link::{LabLink, LinkDirection, LinkEnd};
pub use nearpath_kernel::devices::{IpPrefix, NetworkDevices};
pub use node::LabNode;

/// How many links a lab can have: so many networks of 10.77.0.0/16 upwards.
const MAX_LINKS: u16 = 2560;

/// Nodes and links, which end with it: threads stop, programs in the nodes are killed, devices and namespaces go.
///
/// Labs do not see each other; their addresses may be the same. It needs root.
#[derive(Debug, Default)]
pub struct NetworkLab {
    nodes: Vec<LabNode>,
    links: Vec<LabLink>,
}

impl NetworkLab {
    /// A lab without nodes. The first one of a process kills the programs that labs of killed processes left.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn new() -> io::Result<Self> {
        static SWEPT: Once = Once::new();
        let mut swept = Ok(0);
        SWEPT.call_once(|| swept = leftovers::sweep_leftovers());
        swept.map(|_| Self::default())
    }

    /// A node of that name, which nothing is joined to yet.
    ///
    /// # Errors
    /// Without root.
    pub fn add_node(&mut self, name: &str) -> io::Result<LabNode> {
        let node = LabNode::create_node(name)?;
        self.nodes.push(node.clone());
        Ok(node)
    }

    /// Joins two nodes. The n-th link, from 0, has the addresses 10.77.n.1 and 10.77.n.2, fd77:0:0:n::1 and ::2, and devices
    /// called `linkN`.
    ///
    /// # Errors
    /// Without `/dev/net/tun`, and when a property is not to be had.
    pub fn connect_nodes(
        &mut self,
        first: &LabNode,
        second: &LabNode,
        link: &LinkConditions,
    ) -> io::Result<LabLink> {
        let number = u16::try_from(self.links.len())
            .ok()
            .filter(|&number| number < MAX_LINKS);
        let number = number.ok_or_else(|| io::Error::other("a lab has 2560 links at the most"))?;
        self.add_link(
            [end_node(first, number, 1), end_node(second, number, 2)],
            link,
        )
    }

    /// Joins two nodes by devices and addresses of the caller's choice.
    fn add_link(&mut self, ends: [LinkEnd; 2], link: &LinkConditions) -> io::Result<LabLink> {
        let lab_link = LabLink::create(ends, link)?;
        self.links.push(lab_link.clone());
        Ok(lab_link)
    }
}

impl Drop for NetworkLab {
    fn drop(&mut self) {
        for node in &self.nodes {
            if let Err(error) = leftovers::clear_namespace(node.as_fd()) {
                eprintln!("programs in {} may go on: {error}", node.name());
            }
        }
        self.links.iter().for_each(LabLink::end_carrier);
    }
}

fn end_node(node: &LabNode, link: u16, side: u8) -> LinkEnd {
    let [high, low] = link.to_be_bytes();
    LinkEnd {
        node: node.clone(),
        device: format!("link{link}"),
        v4: Ipv4Addr::new(10, 77 + high, low, side),
        v6: Ipv6Addr::new(0xfd77, 0, 0, link, 0, 0, 0, u16::from(side)),
    }
}
