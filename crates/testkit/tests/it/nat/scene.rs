//! One site, a rendezvous, and what four places there see of one port of a machine.

use std::net::{IpAddr, SocketAddr};

use nearpath_testkit::lab::nat::{Family, Filtering, Internet, Mapping, Plan, Site};
use nearpath_testkit::lab::{Link, Node};

/// The ports of the rendezvous.
pub(crate) const PORTS: [u16; 2] = [4001, 4002];

pub(crate) struct Scene {
    pub(crate) site: Site,
    pub(crate) family: Family,
    pub(crate) internet: Internet,
}

impl Scene {
    pub(crate) fn new(plan: impl Into<Plan>, family: Family) -> Self {
        let mut internet = Internet::new(&Link::default()).unwrap();
        let site = internet.site(plan).unwrap();
        Self { site, family, internet }
    }

    pub(crate) fn machine(&self) -> &Node {
        &self.site.machine().node
    }

    /// The machine's own address.
    pub(crate) fn inside(&self) -> IpAddr {
        self.site.machine().address(self.family).unwrap()
    }

    pub(crate) fn rendezvous(&self) -> &Node {
        &self.internet.rendezvous
    }

    /// The four places of the rendezvous: both ports of the first address, then those of the second.
    pub(crate) fn places(&self) -> [SocketAddr; 4] {
        let [first, second] = self.internet.addresses(self.family);
        [(first, PORTS[0]), (first, PORTS[1]), (second, PORTS[0]), (second, PORTS[1])].map(SocketAddr::from)
    }
}

/// What the four places saw of one socket at `inside`, in a word. Two random ports may be the same by chance, not all.
pub(crate) fn mapping(inside: SocketAddr, seen: [SocketAddr; 4]) -> Mapping {
    let [a, b, c, d] = seen;
    if seen == [inside; 4] {
        Mapping::Unchanged
    } else if seen == [a; 4] {
        Mapping::EndpointIndependent
    } else if a == b && c == d {
        Mapping::AddressDependent
    } else {
        Mapping::AddressAndPortDependent
    }
}

/// Who got in from the same address and another port, another address and the same port, and from another of both.
pub(crate) fn filtering(got_in: [bool; 3]) -> Filtering {
    match got_in {
        [true, true, true] => Filtering::EndpointIndependent,
        [true, false, false] => Filtering::AddressDependent,
        [false, false, false] => Filtering::AddressAndPortDependent,
        _ => panic!("no kind lets in {got_in:?}"),
    }
}
