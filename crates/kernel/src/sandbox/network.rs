//! The instance's network: a namespace with `lo` and `eth0`, whose other end is in the switch.
#![expect(unsafe_code, reason = "unshare can break assumptions about shared descriptors")]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use nearpath_types::InstanceId;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::spec::Network;
use crate::netlink::{LOOPBACK, Route, Rtnl, Veth};
use crate::station::macs;
use crate::switch::write_settings;

/// `eth0`: the second device, after `lo`.
const ETH0: u32 = 2;

const SETTINGS: &[(&str, &str)] = &[
    ("ipv6/conf/all/disable_ipv6", "1"), // before a device exists: no address, no duplicate address detection
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv4/ip_unprivileged_port_start", "0"), // a handler may listen on port 80; nobody else is in this namespace
];

/// Unshares every namespace that an instance has of its own; the PID namespace came with the fork.
pub(super) fn unshare() -> io::Result<()> {
    let all = UnshareFlags::NEWNET
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWCGROUP;
    // SAFETY: instance-init has one thread, and CLONE_FILES is not among the flags.
    Ok(unsafe { rustix::thread::unshare_unsafe(all) }?)
}

/// A netlink socket in the switch's namespace. The caller is in that namespace afterwards, and unshares its own next.
pub(super) fn socket_in(switch: impl AsFd) -> io::Result<Rtnl> {
    rustix::thread::move_into_link_name_space(switch.as_fd(), Some(LinkNameSpaceType::Network))?;
    Rtnl::open()
}

/// Sets up the calling process's new network namespace, and the other end through `switch`. Of an instance whose pair is
/// guarded the switch's stack knows nothing: without a route strict reverse-path filtering drops what it sends.
pub(super) fn connect(instance: InstanceId, network: &Network, switch: &mut Rtnl, guarded: bool) -> io::Result<()> {
    write_settings(SETTINGS)?;
    let here = File::open("/proc/self/ns/net")?;
    let near = device_name(instance);
    let veth = Veth { near: &near, far: "eth0", far_index: ETH0, far_namespace: here.as_fd(), macs: macs(network.eip) };
    switch.veth(&veth)?;
    let device = switch.index(&near)?;
    let (eip, gateway) = (network.eip.0, network.gateway);
    if !guarded {
        switch.route(&Route { to: Some((eip, 32)), via: None, device, source: Some(gateway) })?;
    }
    let mut inside = loopback()?;
    inside.address(ETH0, eip)?;
    inside.up(ETH0)?;
    inside.route(&Route { to: Some((gateway, 32)), via: None, device: ETH0, source: Some(eip) })?;
    let beyond = |to| Route { to, via: Some(gateway), device: ETH0, source: Some(eip) };
    match guarded {
        true => inside.route(&beyond(None)), // the forwarder refuses what is not allowed
        // The switch would drop it in silence. Without a route the instance's own kernel says at once that there is no way.
        false => network.destinations.iter().try_for_each(|one| inside.route(&beyond(Some((one.address, one.length))))),
    }
}

/// Sets `lo` up in the calling process's namespace.
pub(super) fn loopback() -> io::Result<Rtnl> {
    let mut rtnl = Rtnl::open()?;
    rtnl.up(LOOPBACK)?;
    Ok(rtnl)
}

/// The name of an instance's device in the switch: at most 15 octets, so of a longer id the low 52 bits.
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
