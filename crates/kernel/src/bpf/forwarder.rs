//! Forwarding between the namespaces attached to one hub: which device has which address, and which
//! pairs may communicate.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, PerCpuArray};
use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType, TestRun, TestRunOptions};
use nearpath_types::Eip;

use super::object::{self, bpf_error, load_object, sum_counter, take_map};
use crate::attached_netns::veth_macs;
use crate::namespace;
use crate::netlink::{MacAddress, RtnlSocket};

/// `struct device` of `bpf/lib/devices.h`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct AttachedDevice {
    eip: [u8; 4],
    hub_mac: MacAddress,
    device_mac: MacAddress,
}

/// `struct flow_key` of `bpf/lib/devices.h`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct FlowKey {
    device: u32,
    source: [u8; 4],
    destination: [u8; 4],
}

/// `struct flow_route` of `bpf/lib/devices.h`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct FlowRoute {
    packets: u64,
    bytes: u64,
    device: u32,
    hub_mac: MacAddress,
    device_mac: MacAddress,
    /// In network byte order.
    port: [u8; 2],
    unused: [u8; 6],
}

/// Traffic that may go from one address to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PairPermission {
    AnyTraffic,
    /// Datagrams from this port to the same port, with the number of callers that requested it.
    UdpPort(u16, u32),
}

#[expect(
    unsafe_code,
    reason = "aya's mark for what may be copied to and from maps"
)]
mod pod_impls {
    // SAFETY: octets alone, without padding; every value is valid.
    unsafe impl aya::Pod for super::AttachedDevice {}
    // SAFETY: a u32 and octets without padding; every value is valid.
    unsafe impl aya::Pod for super::FlowKey {}
    // SAFETY: two u64, a u32 and twenty octets: 40 without padding; every value is valid.
    unsafe impl aya::Pod for super::FlowRoute {}
}

/// Traffic from one address to another since both are attached and may communicate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PairCounters {
    /// Packets. An aggregate that the kernel has not segmented yet counts as one.
    pub packets: u64,
    /// Bytes of those packets, Ethernet headers included.
    pub bytes: u64,
}

/// Outcomes of the packets of all attached namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketCounters {
    /// Packets delivered to another namespace.
    pub forwarded: u64,
    /// ARP requests answered.
    pub arp_replies: u64,
    /// Packets dropped because the destination is absent or not allowed. TCP connection requests
    /// are reset instead.
    pub denied: u64,
    /// Packets dropped because the source is not the device's address.
    pub forged_source: u64,
    /// Packets dropped because they are neither IPv4 nor an ARP request, or truncated.
    pub unsupported: u64,
    /// Packets dropped because their time to live expired.
    pub ttl_expired: u64,
}

/// Moves packets between namespaces attached to one hub, bypassing its network stack, and drops all
/// others.
///
/// Dropping it, or the end of its process, removes all attachments. The hub then forwards nothing.
pub struct Forwarder {
    state: Mutex<ForwarderState>,
}

struct ForwarderState {
    loaded: Ebpf,
    devices: HashMap<MapData, u32, AttachedDevice>,
    routes: HashMap<MapData, FlowKey, FlowRoute>,
    counters: PerCpuArray<MapData, u64>,
    /// Device index, and the attached program.
    attachments: BTreeMap<Eip, (u32, SchedClassifierLinkId)>,
    /// Both directions. The namespaces need not be attached yet.
    permissions: BTreeMap<(Eip, Eip), PairPermission>,
    /// Additional addresses, and the attached address that handles each.
    aliases: BTreeMap<Eip, Eip>,
}

impl Forwarder {
    /// Loads the program.
    ///
    /// # Errors
    /// Fails if this build has no BPF programs, or without `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn load_program() -> io::Result<Self> {
        let mut loaded = load_object(object::tc_forward()?)?;
        classifier(&mut loaded)?
            .load()
            .map_err(|error| bpf_error(&error))?;
        let (devices, routes) = (
            take_map(&mut loaded, "devices")?,
            take_map(&mut loaded, "routes")?,
        );
        let counters = take_map(&mut loaded, "counters")?;
        let (attachments, permissions, aliases) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self {
            state: Mutex::new(ForwarderState {
                loaded,
                devices,
                routes,
                counters,
                attachments,
                permissions,
                aliases,
            }),
        })
    }

    /// Attaches the program to `device` of `hub`, behind which `eip` is.
    ///
    /// The device may then send only with that source, and all its packets pass the program. It
    /// must be one end of a pair made by [`crate::attached_netns`] or [`crate::sandbox`] without a
    /// forwarder. Attaching an eIP again moves it.
    ///
    /// # Errors
    /// Fails without `CAP_SYS_ADMIN`, before Linux 6.6 (no tcx), or without such a device.
    pub fn attach_device(&self, hub: impl AsFd, eip: Eip, device: &str) -> io::Result<()> {
        let mut state = self.lock_state();
        // Detached first: the routes of the old device must not outlive it.
        state.detach_device(eip);
        let at = {
            let program = classifier(&mut state.loaded)?;
            namespace::run_in_netns(hub, || attach_tcx(program, device))?
        };
        state.attachments.insert(eip, at);
        let known = state.write_device(eip);
        if known.is_err() {
            // Its packets then meet the hub's stack, which forwards nothing
            state.detach_device(eip);
        }
        known
    }

    /// Stops traffic from and to an address. Permissions stay.
    pub fn detach_device(&self, eip: Eip) {
        self.lock_state().detach_device(eip);
    }

    /// Routes packets for `address`, which no device has, to the device of `eip`. Permissions are
    /// separate ([`allow_pair`](Self::allow_pair)).
    pub fn add_alias(&self, address: Eip, eip: Eip) {
        self.lock_state().aliases.insert(address, eip);
    }

    /// Removes such an address. No pair with it may be allowed any more.
    pub fn remove_alias(&self, address: Eip) {
        self.lock_state().aliases.remove(&address);
    }

    /// Allows all traffic between two addresses.
    ///
    /// # Errors
    /// Fails when there are 16384 routes; each pair takes two.
    pub fn allow_pair(&self, one: Eip, other: Eip) -> io::Result<()> {
        self.add_permission(one, other, |_| PairPermission::AnyTraffic)
    }

    /// Allows only datagrams between two addresses, from `port` to the same port. Each call needs
    /// its own [`forbid_pair`](Self::forbid_pair).
    ///
    /// # Errors
    /// Fails like [`allow_pair`](Self::allow_pair).
    pub fn allow_udp_port(&self, one: Eip, other: Eip, port: u16) -> io::Result<()> {
        self.add_permission(one, other, |before| match before {
            Some(PairPermission::AnyTraffic) => PairPermission::AnyTraffic,
            Some(PairPermission::UdpPort(_, requests)) => {
                PairPermission::UdpPort(port, requests + 1)
            }
            None => PairPermission::UdpPort(port, 1),
        })
    }

    fn add_permission(
        &self,
        one: Eip,
        other: Eip,
        permission: impl Fn(Option<PairPermission>) -> PairPermission,
    ) -> io::Result<()> {
        let mut state = self.lock_state();
        for pair in [(one, other), (other, one)] {
            let before = state.permissions.get(&pair).copied();
            let now = permission(before);
            state.permissions.insert(pair, now);
            if before.is_none_or(|before| before.udp_port() != now.udp_port()) {
                // Rewriting an unchanged route would reset its counters
                state.write_route(pair.0, pair.1)?;
            }
        }
        Ok(())
    }

    /// Forbids traffic between two addresses, or removes one of several requests for it.
    pub fn forbid_pair(&self, one: Eip, other: Eip) {
        let mut state = self.lock_state();
        for pair in [(one, other), (other, one)] {
            match state.permissions.get_mut(&pair) {
                Some(PairPermission::UdpPort(_, requests @ 2..)) => *requests -= 1,
                _ => {
                    state.permissions.remove(&pair);
                    state.remove_route(pair.0, pair.1);
                }
            }
        }
    }

    /// Returns the traffic from one address to another.
    pub fn pair_counters(&self, from: Eip, to: Eip) -> PairCounters {
        let state = self.lock_state();
        let row = state
            .flow_key(from, to)
            .and_then(|key| state.routes.get(&key, 0).ok());
        row.map_or_else(PairCounters::default, |row| PairCounters {
            packets: row.packets,
            bytes: row.bytes,
        })
    }

    /// Returns the outcomes of all packets.
    pub fn packet_counters(&self) -> PacketCounters {
        let state = self.lock_state();
        let [forwarded, answered, denied, forged, foreign, expired] =
            [0, 1, 2, 3, 4, 5].map(|index| sum_counter(&state.counters, index));
        PacketCounters {
            forwarded,
            arp_replies: answered,
            denied,
            forged_source: forged,
            unsupported: foreign,
            ttl_expired: expired,
        }
    }

    /// Runs the program on a frame that arrives by the device with index 1, without sending
    /// (Documentation/bpf/bpf_prog_run.rst).
    ///
    /// Returns the verdict, as in `<linux/pkt_cls.h>`, and the frame as the program leaves it.
    ///
    /// # Errors
    /// Fails when the frame is shorter than an Ethernet header.
    pub fn test_run(&self, frame: &[u8]) -> io::Result<(u32, Vec<u8>)> {
        let mut state = self.lock_state();
        let mut out = vec![0; frame.len()];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::new()
        };
        let ran = classifier(&mut state.loaded)?
            .test_run(options)
            .map_err(|error| bpf_error(&error))?;
        out.truncate(ran.data_size_out as usize);
        Ok((ran.return_value, out))
    }

    fn lock_state(&self) -> MutexGuard<'_, ForwarderState> {
        // each change leaves routes whole or absent
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PairPermission {
    fn udp_port(self) -> u16 {
        match self {
            Self::AnyTraffic => 0,
            Self::UdpPort(port, _) => port,
        }
    }
}

impl ForwarderState {
    /// Writes the entry of an attached device, and the routes that are now possible.
    fn write_device(&mut self, eip: Eip) -> io::Result<()> {
        let (device, [near, far]) = (self.attachments[&eip].0, veth_macs(eip));
        let owner = AttachedDevice {
            eip: eip.0.octets(),
            hub_mac: near,
            device_mac: far,
        };
        // The device before its routes: a packet then meets either no route or a complete one.
        self.devices
            .insert(device, owner, 0)
            .map_err(|error| bpf_error(&error))?;
        let pairs: Vec<_> = self
            .permissions
            .keys()
            .copied()
            .filter(|(from, to)| *from == eip || *to == eip)
            .collect();
        pairs
            .into_iter()
            .try_for_each(|(from, to)| self.write_route(from, to))
    }

    fn detach_device(&mut self, eip: Eip) {
        let pairs: Vec<_> = self
            .permissions
            .keys()
            .copied()
            .filter(|(from, to)| *from == eip || *to == eip)
            .collect();
        // Routes first: no packet may still go to a device that is no longer attached.
        for (from, to) in pairs {
            self.remove_route(from, to);
        }
        if let Some((device, link)) = self.attachments.remove(&eip) {
            let _ = self.devices.remove(&device); // the entry may be absent
            let _ = classifier(&mut self.loaded)
                .and_then(|program| program.detach(link).map_err(|error| bpf_error(&error)));
        }
    }

    /// Writes the route from one address to another when both are attached.
    fn write_route(&mut self, from: Eip, to: Eip) -> io::Result<()> {
        let owner = self.owner_of(to);
        let (Some(key), Some((device, _))) =
            (self.flow_key(from, to), self.attachments.get(&owner))
        else {
            return Ok(());
        };
        let [near, far] = veth_macs(owner);
        let port = self
            .permissions
            .get(&(from, to))
            .map_or(0, |permission| permission.udp_port())
            .to_be_bytes();
        let row = FlowRoute {
            packets: 0,
            bytes: 0,
            device: *device,
            hub_mac: near,
            device_mac: far,
            port,
            unused: [0; 6],
        };
        self.routes
            .insert(key, row, 0)
            .map_err(|error| bpf_error(&error))
    }

    fn remove_route(&mut self, from: Eip, to: Eip) {
        if let Some(key) = self.flow_key(from, to) {
            let _ = self.routes.remove(&key); // the route may be absent
        }
    }

    /// Returns the attached address that handles `address`.
    fn owner_of(&self, address: Eip) -> Eip {
        self.aliases.get(&address).copied().unwrap_or(address)
    }

    fn flow_key(&self, from: Eip, to: Eip) -> Option<FlowKey> {
        let (device, _) = self.attachments.get(&self.owner_of(from))?;
        Some(FlowKey {
            device: *device,
            source: from.0.octets(),
            destination: to.0.octets(),
        })
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder")
            .field("attachments", &self.lock_state().attachments.keys())
            .finish_non_exhaustive()
    }
}

fn classifier(loaded: &mut Ebpf) -> io::Result<&mut SchedClassifier> {
    object::program(loaded, "forward_packet")
}

/// Attaches the program to a device of the calling thread's namespace. Uses tcx, whose links end
/// with their descriptor.
fn attach_tcx(
    program: &mut SchedClassifier,
    device: &str,
) -> io::Result<(u32, SchedClassifierLinkId)> {
    let index = RtnlSocket::open()?.device_index(device)?;
    // tcx: the program goes with its link, so a killed node leaves none behind.
    let first = TcAttachOptions::TcxOrder(LinkOrder::default());
    let link = program.attach_with_options(device, TcAttachType::Ingress, first);
    link.map(|link| (index, link))
        .map_err(|error| explain_missing_tcx(bpf_error(&error)))
}

/// Explains the error of a kernel without tcx, which reports an invalid argument.
fn explain_missing_tcx(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidInput => io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{error}; forwarding needs Linux 6.6 or later (tcx)"),
        ),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::super::btf::{assert_layout, layout};
    use super::*;

    #[test]
    fn map_entries_are_laid_out_as_in_c() {
        assert_layout(
            object::tc_forward(),
            "device",
            layout!(AttachedDevice: eip, hub_mac, device_mac),
        );
        assert_layout(
            object::tc_forward(),
            "flow_key",
            layout!(FlowKey: device, source, destination),
        );
        let route = layout!(FlowRoute: packets, bytes, device, hub_mac, device_mac, port, unused);
        assert_layout(object::tc_forward(), "flow_route", route);
    }
}
