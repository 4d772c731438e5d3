//! Ethernet frames as an attached namespace sends them.

use std::net::Ipv4Addr;

use nearpath_types::Eip;

const MAC_ADDRESSES: [u8; 12] = [2, 2, 2, 2, 2, 2, 6, 6, 6, 6, 6, 6];

/// Builds an IPv4 packet with 20 zero octets of payload and a valid checksum.
pub(crate) fn ipv4_packet(from: Eip, to: Eip, ttl: u8) -> Vec<u8> {
    let mut frame = [
        &MAC_ADDRESSES[..],
        &[
            0x08, 0x00, 0x45, 0, 0, 40, 0x12, 0x34, 0x40, 0, ttl, 6, 0, 0,
        ],
    ]
    .concat();
    frame.extend([from.0.octets(), to.0.octets()].concat());
    frame.extend([0; 20]);
    write_checksum(&mut frame);
    frame
}

/// Writes the checksum of the IPv4 header.
pub(crate) fn write_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Computes a checksum (RFC 1071); 0 for a header with a valid one.
pub(crate) fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Builds an ARP message of `from` (1: request, 2: reply).
pub(crate) fn arp_message(operation: u8, from: Eip, about: Ipv4Addr) -> Vec<u8> {
    let mut frame = [
        &MAC_ADDRESSES[..],
        &[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, operation],
    ]
    .concat();
    frame.extend([6; 6]);
    frame.extend(from.0.octets());
    frame.extend([0; 6]);
    frame.extend(about.octets());
    frame
}

/// Builds a TCP segment from port 0x1111 to 0x2222 with sequence number 0x01020304 and 20 octets of
/// options.
pub(crate) fn tcp_segment(from: Eip, to: Eip, flags: u8) -> Vec<u8> {
    let mut frame = ipv4_packet(from, to, 64);
    let header = [
        0x11, 0x11, 0x22, 0x22, 1, 2, 3, 4, 0, 0, 0, 0, 0xa0, flags, 0xff, 0xff, 0, 0, 0, 0,
    ];
    frame[34..].copy_from_slice(&header);
    frame.extend([1; 20]);
    frame[16..18].copy_from_slice(&60_u16.to_be_bytes());
    write_checksum(&mut frame);
    frame
}

/// Builds a UDP datagram between two ports.
pub(crate) fn udp_datagram(from: Eip, to: Eip, ports: (u16, u16)) -> Vec<u8> {
    let mut frame = ipv4_packet(from, to, 64);
    frame[23] = 17;
    frame[34..38].copy_from_slice(&[ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat());
    frame[38..40].copy_from_slice(&20_u16.to_be_bytes());
    write_checksum(&mut frame);
    frame
}

/// Computes the checksum of a TCP segment with its pseudo header; 0 if it is valid.
pub(crate) fn tcp_checksum(frame: &[u8]) -> u16 {
    let length = u16::try_from(frame.len() - 34).unwrap().to_be_bytes();
    checksum(&[&frame[26..34], &[0, 6], &length, &frame[34..]].concat())
}
