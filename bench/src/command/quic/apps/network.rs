//! Three machines and their links: external callers, functions with callees, and all other
//! functions with their services.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use nearpath_testkit::lab::{LabNode, LinkConditions, NetworkLab};

use super::super::NetworkPlace;
use crate::remote::BenchError;
use crate::remote::worker::WorkerMachine;

/// A hop: the source address and the destination address of calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkHop {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
}

/// Network of the machines that run the applications.
pub(super) struct AppNetwork {
    _lab: NetworkLab,
    pub(super) caller: LabNode,
    pub(super) first: LabNode,
    pub(super) second: LabNode,
    pub(super) machines: (Rc<WorkerMachine>, Rc<WorkerMachine>),
    /// Hops from the caller, which is the gateway, to the first and to the second machine.
    pub(super) outside: [LinkHop; 2],
    /// Hop from the first machine to the second one.
    pub(super) between: LinkHop,
}

impl LinkHop {
    /// Returns the reverse hop.
    pub(super) fn reverse_hop(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
        }
    }
}

/// Hop on one machine.
pub(super) const LOOPBACK_HOP: LinkHop = LinkHop {
    from: IpAddr::V4(Ipv4Addr::LOCALHOST),
    to: IpAddr::V4(Ipv4Addr::LOCALHOST),
};

impl AppNetwork {
    /// Creates the machines with a link between every two; on loopback all are one.
    pub(super) fn new(place: NetworkPlace, awake: Duration) -> Result<Self, BenchError> {
        let mut lab = NetworkLab::new()?;
        let second = lab.add_node("second")?;
        let NetworkPlace::Link(delay) = place else {
            let machine = Rc::new(WorkerMachine::without_handler(&second, LOOPBACK_HOP.to));
            let (caller, first, machines) = (
                second.clone(),
                second.clone(),
                (Rc::clone(&machine), machine),
            );
            return Ok(Self {
                _lab: lab,
                caller,
                first,
                second,
                machines,
                outside: [LOOPBACK_HOP; 2],
                between: LOOPBACK_HOP,
            });
        };
        let (caller, first) = (lab.add_node("caller")?, lab.add_node("first")?);
        let mut hop = |from: &LabNode, to: &LabNode| -> Result<LinkHop, BenchError> {
            let link = lab.connect_nodes(
                from,
                to,
                &LinkConditions {
                    delay,
                    awake,
                    ..LinkConditions::default()
                },
            )?;
            Ok(LinkHop {
                from: link.first_end().v4.into(),
                to: link.second_end().v4.into(),
            })
        };
        let (outside, between) = (
            [hop(&caller, &first)?, hop(&caller, &second)?],
            hop(&first, &second)?,
        );
        let machines = (
            // Callers outside reach each machine by a link of its own.
            machine_at(&first, outside[0]),
            machine_at(&second, outside[1]),
        );
        Ok(Self {
            _lab: lab,
            caller,
            first,
            second,
            machines,
            outside,
            between,
        })
    }
}

fn machine_at(node: &LabNode, hop: LinkHop) -> Rc<WorkerMachine> {
    Rc::new(WorkerMachine::without_handler(node, hop.to))
}
