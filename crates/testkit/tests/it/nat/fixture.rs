//! One site and a rendezvous with four addresses, which observe a port of a machine.

use std::net::{IpAddr, SocketAddr};

use nearpath_testkit::lab::nat::{
    IpFamily, LabFiltering, LabInternet, LabMapping, NatPlan, NatSite,
};
use nearpath_testkit::lab::{LabNode, LinkConditions};

/// Ports of the rendezvous.
pub(crate) const PORTS: [u16; 2] = [4001, 4002];

pub(crate) struct NatFixture {
    pub(crate) site: NatSite,
    pub(crate) family: IpFamily,
    pub(crate) internet: LabInternet,
}

impl NatFixture {
    pub(crate) fn new(plan: impl Into<NatPlan>, family: IpFamily) -> Self {
        let mut internet = LabInternet::new(&LinkConditions::default()).unwrap();
        let site = internet.add_site(plan).unwrap();
        Self {
            site,
            family,
            internet,
        }
    }

    pub(crate) fn machine_node(&self) -> &LabNode {
        &self.site.first_machine().node
    }

    /// Address of the machine.
    pub(crate) fn inside(&self) -> IpAddr {
        self.site.first_machine().address_of(self.family).unwrap()
    }

    pub(crate) fn rendezvous(&self) -> &LabNode {
        &self.internet.rendezvous
    }

    /// Addresses of the rendezvous: both ports of the first IP address, then those of the second.
    pub(crate) fn observer_addresses(&self) -> [SocketAddr; 4] {
        let [first, second] = self.internet.rendezvous_addresses(self.family);
        [
            (first, PORTS[0]),
            (first, PORTS[1]),
            (second, PORTS[0]),
            (second, PORTS[1]),
        ]
        .map(SocketAddr::from)
    }
}

/// Mapping of a socket at `inside`, from the sources that the four addresses saw. Two random ports
/// may be equal by chance, but not all.
pub(crate) fn mapping(inside: SocketAddr, seen: [SocketAddr; 4]) -> LabMapping {
    let [a, b, c, d] = seen;
    if seen == [inside; 4] {
        LabMapping::Unchanged
    } else if seen == [a; 4] {
        LabMapping::EndpointIndependent
    } else if a == b && c == d {
        LabMapping::AddressDependent
    } else {
        LabMapping::AddressAndPortDependent
    }
}

/// Filtering, from the senders that were accepted: same address and another port, another address
/// and the same port, both different.
pub(crate) fn filtering(got_in: [bool; 3]) -> LabFiltering {
    match got_in {
        [true, true, true] => LabFiltering::EndpointIndependent,
        [true, false, false] => LabFiltering::AddressDependent,
        [false, false, false] => LabFiltering::AddressAndPortDependent,
        _ => panic!("no kind lets in {got_in:?}"),
    }
}
