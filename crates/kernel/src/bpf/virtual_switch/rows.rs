//! Keys and values of the maps in `bpf/lib/switch_tables.h`, as arrays of words. Addresses are in network
//! byte order.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use nearpath_types::Eip;

use super::{AddressEdge, EdgeTraffic, SwitchNetworks};

/// `MAX_BACKENDS`.
pub(super) const MAX_BACKENDS: usize = 256;

/// `struct networks`: virtual addresses and their mask, instances and theirs, gateway, gateway inside
/// instances with its port, three words of IPv6.
pub(super) type NetworksRow = [u32; 10];
/// `struct caller`: function, eIP, and whether the gateway listens inside.
pub(super) type CallerRow = [u32; 3];
/// `struct edge_key`: caller and callee.
pub(super) type AddressPair = [u32; 2];
/// `struct edge`: generation, connections, cold ones, ended ones, flows of datagrams, bytes sent and received,
/// nanoseconds.
pub(super) type EdgeRow = [u64; 8];
/// `struct denial_share`: rows, padding, and the two halves of the time of the last event.
pub(super) type ShareRow = [u32; 4];
/// `struct backends`: count, next draw, eIPs.
pub(super) type BackendsRow = [u32; 2 + MAX_BACKENDS];

/// Edge and destination of a connection, from its `struct flow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredFlow {
    pub(super) edge: AddressPair,
    /// Address that the socket connected to.
    pub(super) destination: u32,
}

/// Length of `struct flow`, and the positions of its words for the address asked for, the edge and the
/// instance.
pub(super) const FLOW_BYTES: usize = 48;
const FLOW_REQUESTED: usize = 3;
const FLOW_EDGE: usize = 4;
const FLOW_EIP: usize = 6;

/// Decodes a `struct flow`.
pub(super) fn decode_flow(bytes: &[u8]) -> Option<StoredFlow> {
    let bytes: &[u8; FLOW_BYTES] = bytes.try_into().ok()?;
    let (words, _) = bytes.as_chunks::<4>();
    let word = |index: usize| u32::from_ne_bytes(words[index]);
    let destination = match word(FLOW_EIP) {
        // None was ready, and the address was used as it is.
        0 => word(FLOW_REQUESTED),
        eip => eip,
    };
    Some(StoredFlow {
        edge: [word(FLOW_EDGE), word(FLOW_EDGE + 1)],
        destination,
    })
}

/// Encodes an address.
pub(super) fn encode_address(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

/// Decodes an address.
pub(super) fn decode_address(bits: u32) -> Ipv4Addr {
    bits.to_ne_bytes().into()
}

pub(super) fn networks_row(networks: &SwitchNetworks) -> NetworksRow {
    let ((of_functions, functions_len), (of_instances, instances_len)) =
        (networks.virtual_addresses, networks.instances);
    let mut row = [0; 10];
    row[..2].copy_from_slice(&network(of_functions, functions_len));
    row[2..4].copy_from_slice(&network(of_instances, instances_len));
    row[4] = encode_address(networks.gateway);
    row[5] = encode_address(*networks.local_gateway.ip());
    row[6] = networks.local_gateway.port().to_be().into();
    // The default is a multicast address, to which TCP never connects (RFC 4291 section 2.7).
    row[7..].copy_from_slice(&networks.ipv6.map_or([u32::MAX; 4], ipv6_prefix_of)[..3]);
    row
}

/// Returns the address of a network, and its mask.
fn network(any: Ipv4Addr, prefix_len: u8) -> [u32; 2] {
    let mask = u32::MAX
        .checked_shl(32 - u32::from(prefix_len))
        .unwrap_or(0);
    [
        encode_address((any.to_bits() & mask).into()),
        encode_address(mask.into()),
    ]
}

pub(super) fn ipv6_prefix_of(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    let (words, _) = octets.as_chunks::<4>();
    std::array::from_fn(|index| u32::from_ne_bytes(words[index]))
}

pub(super) fn backends_row(turn: u32, eips: &[Eip]) -> BackendsRow {
    let mut row = [0; 2 + MAX_BACKENDS];
    row[0] = eips.len() as u32; // at most MAX_BACKENDS
    row[1] = turn;
    for (to, eip) in row[2..].iter_mut().zip(eips) {
        *to = encode_address(eip.0);
    }
    row
}

pub(super) fn edge_key(edge: AddressEdge) -> AddressPair {
    [encode_address(edge.caller), encode_address(edge.callee)]
}

pub(super) fn edge([caller, callee]: AddressPair) -> AddressEdge {
    AddressEdge {
        caller: decode_address(caller),
        callee: decode_address(callee),
    }
}

pub(super) fn traffic(row: EdgeRow) -> EdgeTraffic {
    let [
        _,
        connections,
        cold,
        ended,
        datagram_flows,
        bytes_sent,
        bytes_received,
        nanoseconds,
    ] = row;
    EdgeTraffic {
        connections,
        cold,
        ended,
        datagram_flows,
        bytes_sent,
        bytes_received,
        duration: Duration::from_nanos(nanoseconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::btf::{StructLayout, assert_layout};
    use crate::bpf::object;

    #[test]
    fn rows_have_the_layout_of_the_programs() {
        let words = |count: usize, offsets: &[usize]| StructLayout {
            size: count,
            offsets: offsets.to_vec(),
        };
        for (name, size, offsets) in [
            (
                "networks",
                size_of::<NetworksRow>(),
                &[0, 8, 16, 20, 24, 28][..],
            ),
            ("network", 8, &[0, 4]),
            ("caller", size_of::<CallerRow>(), &[0, 4, 8]),
            ("edge_key", size_of::<AddressPair>(), &[0, 4]),
            (
                "edge",
                size_of::<EdgeRow>(),
                &[0, 8, 16, 24, 32, 40, 48, 56],
            ),
            ("denial_share", size_of::<ShareRow>(), &[0, 4, 8]),
            ("backends", size_of::<BackendsRow>(), &[0, 4, 8]),
            (
                "flow",
                FLOW_BYTES,
                &[0, 4 * FLOW_EDGE, 4 * FLOW_EIP, 28, 32, 40],
            ),
        ] {
            assert_layout(object::vip(), name, words(size, offsets));
        }
    }

    #[test]
    fn a_flow_without_an_instance_leads_to_the_address_asked_for() {
        let mut bytes = [0; FLOW_BYTES];
        bytes[12..16].copy_from_slice(&[10, 60, 0, 3]);
        bytes[16..24].copy_from_slice(&[10, 60, 0, 2, 10, 60, 0, 3]);
        let flow = decode_flow(&bytes).unwrap();
        let [caller, callee] = [2, 3].map(|number| encode_address([10, 60, 0, number].into()));
        assert_eq!((flow.edge, flow.destination), ([caller, callee], callee));
        bytes[24..28].copy_from_slice(&[10, 62, 0, 9]);
        let destination = decode_flow(&bytes).unwrap().destination;
        assert_eq!(destination, encode_address([10, 62, 0, 9].into()));
        assert_eq!(decode_flow(&bytes[1..]), None);
    }

    #[test]
    fn networks_are_masked() {
        let row = networks_row(&SwitchNetworks {
            virtual_addresses: ([10, 60, 3, 4].into(), 16),
            ipv6: Some("fd00:1:2::a3c:304".parse().unwrap()),
            instances: ([10, 62, 0, 1].into(), 16),
            gateway: [10, 62, 0, 1].into(),
            local_gateway: "127.0.0.2:8080".parse().unwrap(),
        });
        let bytes: Vec<[u8; 4]> = row.iter().map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes[..2], [[10, 60, 0, 0], [255, 255, 0, 0]]);
        assert_eq!(
            bytes[2..5],
            [[10, 62, 0, 0], [255, 255, 0, 0], [10, 62, 0, 1]]
        );
        assert_eq!(bytes[5..7], [[127, 0, 0, 2], [0x1f, 0x90, 0, 0]]);
        assert_eq!(bytes[7..], [[0xfd, 0, 0, 1], [0, 2, 0, 0], [0; 4]]);
        assert_eq!(network([1, 2, 3, 4].into(), 0), [0, 0], "no shift by 32");
    }
}
