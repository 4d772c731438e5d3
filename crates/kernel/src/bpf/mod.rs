//! The BPF programs of `bpf/`: loading, maps and attachments.
//!
//! - [`SockmapRouter`] implements the delivery mode `sockmap` of one security domain. It makes a
//!   socket for each endpoint and stores the permitted channels. The kernel moves 32-byte records
//!   between the sockets; see `bpf/sk_msg.c`.
//! - [`LoopbackRedirect`] moves bytes between the gateway and functions' own servers past TCP; see
//!   `bpf/sock_loopback.c`.
//! - [`Forwarder`] moves packets between the namespaces attached to one hub; see
//!   `bpf/tc_forward.c`.
//! - [`SocketCgroupGuard`] confines the sockets of one thread to their destinations, whoever holds
//!   them; see `bpf/sock_guard.c`. It also lets that thread set initial windows; see
//!   `bpf/sock_window.c`. [`PeerNames`] are the peers that others see; see `bpf/sock_peer.c`.
//! - [`VirtualSwitch`] translates the virtual addresses of functions and lets instances reach their
//!   declared callees only; see `bpf/vip.c`.
//! - [`DirectSockets`] opens UDP sockets that reach permitted peers only; see `bpf/direct_peers.c`.
//!
//! Maps, programs, attachments and the sockets' namespace have no names: they end with their
//! holders.

#[cfg(test)]
mod btf;
mod direct_sockets;
mod forwarder;
mod initial_window;
mod loopback_redirect;
mod object;
mod peer_names;
mod socket_cgroup_guard;
mod sockmap_netns;
mod sockmap_router;
mod virtual_switch;

use std::io;

use nearpath_types::Eip;

use crate::attached_netns::NEXT_HOP;
use crate::hub_netns::HubNetns;

pub use direct_sockets::{DirectSocket, DirectSockets, PermittedPeers};
pub use forwarder::{Forwarder, PacketCounters, PairCounters};
pub use loopback_redirect::{LoopbackCounters, LoopbackRedirect};
pub use peer_names::PeerNames;
pub use socket_cgroup_guard::SocketCgroupGuard;
use socket_cgroup_guard::{enter_new_group, leave_group};

pub use sockmap_router::{SockmapCounters, SockmapPair, SockmapRouter};
pub use virtual_switch::{
    AbsentSockets, AddressEdge, DenialEvent, DenialEvents, EdgeTraffic, SwitchNetworks,
    SwitchRefusals, VirtualSwitch,
};

/// Checks that this build has the programs and this process may load them, by loading one. For
/// `nearpath doctor`.
///
/// # Errors
/// Names the missing facility and a remedy.
pub fn check_sockmap_support() -> io::Result<()> {
    SockmapRouter::create().map(drop)
}

/// Checks the same for forwarders, by attaching one to a device of a temporary namespace.
///
/// # Errors
/// Names the missing facility and a remedy.
pub fn check_forwarding_support() -> io::Result<()> {
    let hub = HubNetns::create(NEXT_HOP)?;
    Forwarder::load_program()?.attach_device(&hub, Eip(NEXT_HOP), "lo")
}

/// Checks the same for the virtual switch, by attaching it to the cgroup of a thread.
///
/// # Errors
/// Names the missing facility and a remedy.
pub fn check_switch_support() -> io::Result<()> {
    let folder = enter_new_group()?;
    let attached = VirtualSwitch::attach(&folder).and_then(|switch| {
        let hub = HubNetns::create(NEXT_HOP)?;
        switch.listen_for_absent(&hub).map(drop)
    });
    leave_group(&folder);
    attached
}
