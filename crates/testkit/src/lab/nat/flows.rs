//! Connection tracking of a router, and how to flush it.

use std::io;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// Message "delete flows" of the connection tracking subsystem
/// (linux/netfilter/nfnetlink_conntrack.h).
const DELETE_CONNTRACK: u16 = (1 << 8) | 2;
/// Flags of a request that is acknowledged (linux/netlink.h).
const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
/// Sizes in octets of the message header, and of netfilter's header behind it.
const NETLINK_HEADER_BYTES: u32 = 16;
const NETFILTER_HEADER_BYTES: u32 = 4;

/// Deletes all tracked flows of the calling thread's network namespace.
pub(super) fn forget_flows() -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags,
        Some(netlink::NETFILTER),
    )?;
    send(&socket, &delete_all_request(), SendFlags::empty())?;
    let mut answer = [0; 64];
    recv(&socket, &mut answer, RecvFlags::empty())?;
    // The header is followed by a negative error number, 0 on success.
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(()),
        error => Err(Errno::from_raw_os_error(-error).into()),
    }
}

/// Builds the request. Without attributes and family it covers every flow.
fn delete_all_request() -> Vec<u8> {
    let mut request = Vec::new();
    request.extend((NETLINK_HEADER_BYTES + NETFILTER_HEADER_BYTES).to_ne_bytes());
    request.extend(DELETE_CONNTRACK.to_ne_bytes());
    request.extend(REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
    request.extend([0; 8]); // sequence and sender: with a single request, 0 is unambiguous
    request.extend([0; NETFILTER_HEADER_BYTES as usize]);
    request
}
