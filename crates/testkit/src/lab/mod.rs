//! A network lab on one machine: network namespaces, joined by links with delay, loss and a rate.
//!
//! [`NetworkLab::add_node`] creates a namespace. [`NetworkLab::connect_nodes`] joins two by a pair
//! of TUN devices, with a thread between them that holds each packet as [`LinkConditions`] say. The
//! kernel's netem would need fewer steps, but is not in every kernel. A state machine without a
//! clock (`link_model`) decides about each packet from seed and number alone, so a run can be
//! repeated. Links are routed, not bridged: a node with two links and
//! [`LabNode::enable_forwarding`] is a router between them. [`nat`] has sites behind routers that
//! translate addresses.
//!
//! ```no_run
//! use std::process::Command;
//! use std::time::Duration;
//! use nearpath_testkit::lab::{LinkConditions, NetworkLab};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut lab = NetworkLab::new()?;
//! let (gateway, worker) = (lab.add_node("gateway")?, lab.add_node("worker")?);
//! let conditions = LinkConditions { delay: Duration::from_micros(500), ..LinkConditions::default() };
//! let link = lab.connect_nodes(&gateway, &worker, &conditions)?;
//! let there = link.second_end().v4;
//! let listener = worker.enter(|| std::net::TcpListener::bind((there, 8080)))?;
//! gateway.run_program(Command::new("curl").arg(format!("http://{there}:8080/")))?;
//! link.cut_link();
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

/// Maximum number of links of a lab: as many networks fit in 10.77.0.0/16 and above.
const MAX_LINKS: u16 = 2560;

/// Nodes and links, which end with it: threads stop, programs in the nodes are killed, devices and
/// namespaces are removed.
///
/// Labs are isolated from each other; their addresses may be the same. Needs root.
#[derive(Debug, Default)]
pub struct NetworkLab {
    nodes: Vec<LabNode>,
    links: Vec<LabLink>,
}

impl NetworkLab {
    /// Creates a lab without nodes. The first one of a process kills programs that labs of killed
    /// processes left.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn new() -> io::Result<Self> {
        static SWEPT: Once = Once::new();
        let mut swept = Ok(0);
        SWEPT.call_once(|| swept = leftovers::sweep_leftovers());
        swept.map(|_| Self::default())
    }

    /// Adds a node without links.
    ///
    /// # Errors
    /// Without root.
    pub fn add_node(&mut self, name: &str) -> io::Result<LabNode> {
        let node = LabNode::create_node(name)?;
        self.nodes.push(node.clone());
        Ok(node)
    }

    /// Connects two nodes. The n-th link, from 0, has the addresses 10.77.n.1 and 10.77.n.2,
    /// fd77:0:0:n::1 and ::2, and devices called `linkN`.
    ///
    /// # Errors
    /// Without `/dev/net/tun`, and when a condition is not supported.
    pub fn connect_nodes(
        &mut self,
        first: &LabNode,
        second: &LabNode,
        link: &LinkConditions,
    ) -> io::Result<LabLink> {
        let number = u16::try_from(self.links.len())
            .ok()
            .filter(|&number| number < MAX_LINKS);
        let number = number.ok_or_else(|| io::Error::other("a lab has at most 2560 links"))?;
        self.add_link(
            [end_node(first, number, 1), end_node(second, number, 2)],
            link,
        )
    }

    /// Connects two nodes with devices and addresses of the caller's choice.
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
