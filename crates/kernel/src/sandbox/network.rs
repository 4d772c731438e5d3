//! The network of an instance: a namespace with `lo` and `eth0`, whose other end is in the hub.
#![expect(
    unsafe_code,
    reason = "unshare can break assumptions about shared descriptors"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nearpath_types::InstanceId;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::spec::InstanceNetwork;
use crate::attached_netns::veth_macs;
use crate::hub_netns::write_sysctls;
use crate::netlink::{Ipv4Route, LOOPBACK_INDEX, RtnlSocket, VethPair};

/// Index of `eth0`, the second device after `lo`.
const ETH0_INDEX: u32 = 2;

const INSTANCE_SYSCTLS: &[(&str, &str)] = &[
    // before a device exists, so it gets no address and no duplicate address detection
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    // a handler may listen on port 80; the namespace has no other users
    ("ipv4/ip_unprivileged_port_start", "0"),
];

/// Unshares every namespace that an instance has of its own, except the PID namespace of the fork.
pub(super) fn unshare_namespaces() -> io::Result<()> {
    let all = UnshareFlags::NEWNET
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWCGROUP;
    // SAFETY: instance-init has one thread, and CLONE_FILES is not among the flags.
    Ok(unsafe { rustix::thread::unshare_unsafe(all) }?)
}

/// Opens a netlink socket in the hub. The caller stays in that namespace until it unshares its own.
pub(super) fn open_rtnl_in(hub: impl AsFd) -> io::Result<RtnlSocket> {
    rustix::thread::move_into_link_name_space(hub.as_fd(), Some(LinkNameSpaceType::Network))?;
    RtnlSocket::open()
}

/// Configures the calling process's new network namespace, and the other end of its pair through
/// `hub`.
///
/// With a forwarder the hub has no route to the instance. Strict reverse-path filtering then drops
/// its packets until the forwarder is attached.
pub(super) fn build_network(
    instance: InstanceId,
    network: &InstanceNetwork,
    hub: &mut RtnlSocket,
    has_forwarder: bool,
) -> io::Result<()> {
    write_sysctls(INSTANCE_SYSCTLS)?;
    let here = File::open("/proc/self/ns/net")?;
    let near = device_name(instance);
    let [near_mac, far_mac] = veth_macs(network.eip);
    let veth = VethPair {
        near: &near,
        far: "eth0",
        far_index: ETH0_INDEX,
        far_namespace: here.as_fd(),
        macs: [near_mac, far_mac],
    };
    hub.create_veth_pair(&veth)?;
    let device = hub.device_index(&near)?;
    let (eip, gateway) = (network.eip.0, network.gateway);
    if !has_forwarder {
        hub.add_route(&Ipv4Route {
            destination: Some((eip, 32)),
            next_hop: None,
            device,
            source: Some(gateway),
        })?;
    }
    let mut inside = set_up_loopback()?;
    inside.add_address(ETH0_INDEX, eip)?;
    inside.set_up(ETH0_INDEX)?;
    hub.add_neighbour(device, eip, far_mac)?;
    inside.add_neighbour(ETH0_INDEX, gateway, near_mac)?;
    hub.wait_running(device);
    inside.add_route(&Ipv4Route {
        destination: Some((gateway, 32)),
        next_hop: None,
        device: ETH0_INDEX,
        source: Some(eip),
    })?;
    let via_gateway = |to| Ipv4Route {
        destination: to,
        next_hop: Some(gateway),
        device: ETH0_INDEX,
        source: Some(eip),
    };
    match has_forwarder {
        // The forwarder refuses everything not allowed
        true => inside.add_route(&via_gateway(None)),
        // The hub would drop such packets silently. Without a route the instance's own kernel
        // reports the error at once.
        false => network.destinations.iter().try_for_each(|one| {
            inside.add_route(&via_gateway(Some((one.address, one.prefix_len))))
        }),
    }
}

/// Sets `lo` up in the calling process's namespace.
pub(super) fn set_up_loopback() -> io::Result<RtnlSocket> {
    let mut rtnl = RtnlSocket::open()?;
    rtnl.set_up(LOOPBACK_INDEX)?;
    Ok(rtnl)
}

/// Returns the name of an instance's device in the hub. Names have at most 15 octets, so ids are
/// cut to 52 bits.
pub(super) fn device_name(instance: InstanceId) -> String {
    format!("np{:x}", instance.0 & ((1 << 52) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_name_fits_the_kernel() {
        assert_eq!(device_name(InstanceId(0x1f)), "np1f");
        assert_eq!(device_name(InstanceId(u64::MAX)).len(), 15);
    }
}
