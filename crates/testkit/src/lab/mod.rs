//! Machines and the wires between them, on one machine: network namespaces joined by links with delay, loss and a rate.
//!
//! [`Lab::node`] makes a namespace, [`Lab::link`] joins two by a pair of TUN devices with a thread between them that holds
//! each packet as long as [`Link`] says. The kernel's own netem would do that in fewer steps, but is not in every kernel. What
//! happens to which packet is decided by a state machine without clock (`line`) from seed and number alone, so a run repeats.
//! Links route, nothing bridges: a node with two links and [`Node::forward`] is a router between them. [`nat`] has sites behind
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

mod cable;
mod chance;
mod driver;
mod leftovers;
mod line;
mod link;
pub mod nat;
mod node;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::Once;

pub use cable::{Cable, Direction, End};
pub use link::{Counts, Link};
pub use nearpath_kernel::devices::{IpPrefix, NetworkDevices};
pub use node::Node;

/// How many links a lab can have: so many networks of 10.77.0.0/16 upwards.
const LINKS: u16 = 2560;

/// Nodes and links, which end with it: threads stop, programs in the nodes are killed, devices and namespaces go.
///
/// Labs do not see each other; their addresses may be the same. It needs root.
#[derive(Debug, Default)]
pub struct Lab {
    nodes: Vec<Node>,
    cables: Vec<Cable>,
}

impl Lab {
    /// A lab without nodes. The first one of a process kills the programs that labs of killed processes left.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn new() -> io::Result<Self> {
        static SWEPT: Once = Once::new();
        let mut swept = Ok(0);
        SWEPT.call_once(|| swept = leftovers::sweep());
        swept.map(|_| Self::default())
    }

    /// A node of that name, which nothing is joined to yet.
    ///
    /// # Errors
    /// Without root.
    pub fn node(&mut self, name: &str) -> io::Result<Node> {
        let node = Node::create(name)?;
        self.nodes.push(node.clone());
        Ok(node)
    }

    /// Joins two nodes. The n-th link, from 0, has the addresses 10.77.n.1 and 10.77.n.2, fd77:0:0:n::1 and ::2, and devices
    /// called `linkN`.
    ///
    /// # Errors
    /// Without `/dev/net/tun`, and when a property is not to be had.
    pub fn link(&mut self, first: &Node, second: &Node, link: &Link) -> io::Result<Cable> {
        let number = u16::try_from(self.cables.len()).ok().filter(|&number| number < LINKS);
        let number = number.ok_or_else(|| io::Error::other("a lab has 2560 links at the most"))?;
        self.lay([end(first, number, 1), end(second, number, 2)], link)
    }

    /// Joins two nodes by devices and addresses of the caller's choice.
    fn lay(&mut self, ends: [End; 2], link: &Link) -> io::Result<Cable> {
        let cable = Cable::lay(ends, link)?;
        self.cables.push(cable.clone());
        Ok(cable)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for node in &self.nodes {
            if let Err(error) = leftovers::clear(node.as_fd()) {
                eprintln!("programs in {} may go on: {error}", node.name());
            }
        }
        self.cables.iter().for_each(Cable::end);
    }
}

fn end(node: &Node, link: u16, side: u8) -> End {
    let [high, low] = link.to_be_bytes();
    End {
        node: node.clone(),
        device: format!("link{link}"),
        v4: Ipv4Addr::new(10, 77 + high, low, side),
        v6: Ipv6Addr::new(0xfd77, 0, 0, link, 0, 0, 0, u16::from(side)),
    }
}
