//! Machines on one switch: network namespaces, each with one address.
//!
//! Each pair of machines has a link of its own, because a switch delays a packet once, and a router
//! between two links of the lab would delay it twice. A machine's address is on its loopback device, so
//! all others reach it by the same address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use nearpath_testkit::lab::{LabLink, LabNode, LinkConditions, NetworkLab};

use crate::remote::BenchError;

/// A machine.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) node: LabNode,
    pub(crate) addr: Ipv4Addr,
}

/// All machines of a comparison. Dropping it kills the programs that still run on them.
pub(crate) struct MachineLab {
    machines: Vec<Machine>,
    _lab: NetworkLab,
}

impl Machine {
    /// Returns an address of the machine that others reach.
    pub(crate) fn socket_addr(&self, port: u16) -> SocketAddr {
        SocketAddr::from((self.addr, port))
    }
}

impl MachineLab {
    /// Creates machines with this one-way delay between every two.
    ///
    /// # Errors
    /// Without root.
    pub(crate) fn new(names: &[&str], delay: Duration) -> Result<Self, BenchError> {
        let mut lab = NetworkLab::new()?;
        let mut machines: Vec<Machine> = Vec::new();
        for (number, name) in (1..).zip(names) {
            let machine = Machine {
                node: lab.add_node(name)?,
                addr: Ipv4Addr::new(10, 78, 0, number),
            };
            add_own_address(&machine)?;
            for other in &machines {
                let link = lab.connect_nodes(&other.node, &machine.node, &conditions(delay))?;
                add_routes(&link, other, &machine)?;
            }
            machines.push(machine);
        }
        Ok(Self {
            machines,
            _lab: lab,
        })
    }

    /// Returns the machines in the order of their names.
    pub(crate) fn machines(&self) -> &[Machine] {
        &self.machines
    }
}

/// Without a delay kernel devices are the link: they cost a tenth of the CPU time of a lab's thread.
fn conditions(delay: Duration) -> LinkConditions {
    match delay.is_zero() {
        true => LinkConditions::plain(),
        false => LinkConditions {
            delay,
            ..LinkConditions::default()
        },
    }
}

fn add_own_address(machine: &Machine) -> Result<(), BenchError> {
    let mut devices = machine.node.open_devices()?;
    let loopback = devices.device_index("lo")?;
    devices.add_address(loopback, (IpAddr::V4(machine.addr), 32))?;
    Ok(())
}

fn add_routes(link: &LabLink, first: &Machine, second: &Machine) -> Result<(), BenchError> {
    let (near, far) = (link.first_end(), link.second_end());
    for (from, end, to, via) in [(first, near, second, far), (second, far, first, near)] {
        let to = (IpAddr::V4(to.addr), 32);
        from.node.add_route(to, Some(via.v4.into()), &end.device)?;
    }
    Ok(())
}
