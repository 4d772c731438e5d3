//! Three machines and the links between them: who calls from outside, functions that call others, and all other functions with what
//! they need.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use nearpath_testkit::lab::{LabNode, LinkConditions, NetworkLab};

use super::super::Place;
use crate::remote::Error;
use crate::remote::worker::Machine;

/// From one machine to another: the address that calls come from, and the one that they go to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hop {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
}

/// See the module's text.
pub(super) struct Ground {
    _lab: NetworkLab,
    pub(super) caller: LabNode,
    pub(super) first: LabNode,
    pub(super) second: LabNode,
    pub(super) machines: (Rc<Machine>, Rc<Machine>),
    /// From the caller, who is the gateway, to the first machine, and to the second one.
    pub(super) outside: [Hop; 2],
    /// From the first machine to the second one.
    pub(super) between: Hop,
}

impl Hop {
    /// The other way round.
    pub(super) fn back(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
        }
    }
}

/// On one machine.
pub(super) const HERE: Hop = Hop {
    from: IpAddr::V4(Ipv4Addr::LOCALHOST),
    to: IpAddr::V4(Ipv4Addr::LOCALHOST),
};

impl Ground {
    /// Every two machines have a link of their own; in loopback all are one.
    pub(super) fn new(place: Place, awake: Duration) -> Result<Self, Error> {
        let mut lab = NetworkLab::new()?;
        let second = lab.add_node("second")?;
        let Place::Link(delay) = place else {
            let machine = Rc::new(Machine::without_handler(&second, HERE.to));
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
                outside: [HERE; 2],
                between: HERE,
            });
        };
        let (caller, first) = (lab.add_node("caller")?, lab.add_node("first")?);
        let mut hop = |from: &LabNode, to: &LabNode| -> Result<Hop, Error> {
            let cable = lab.connect_nodes(
                from,
                to,
                &LinkConditions {
                    delay,
                    awake,
                    ..LinkConditions::default()
                },
            )?;
            Ok(Hop {
                from: cable.first_end().v4.into(),
                to: cable.second_end().v4.into(),
            })
        };
        let (outside, between) = (
            [hop(&caller, &first)?, hop(&caller, &second)?],
            hop(&first, &second)?,
        );
        let machines = (machine(&first, outside[0]), machine(&second, outside[1]));
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

fn machine(node: &LabNode, hop: Hop) -> Rc<Machine> {
    Rc::new(Machine::without_handler(node, hop.to))
}
