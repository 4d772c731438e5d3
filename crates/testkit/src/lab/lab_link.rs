//! A link between two nodes: its ends, its conditions and its counters.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nearpath_kernel::cores::prefer_this_thread;
use nearpath_kernel::tun::{TunDevice, TunOffload};

use super::conditions::{LinkConditions, LinkCounts};
use super::driver::{DriverShared, LinkDriver};
use super::link_model::LinkModel;
use super::node::LabNode;
use super::packet_draw::direction_seed;

/// Packets that a device queues until the link's thread reads them. The model's own queue is
/// [`LinkConditions::queue_bytes`]; this one only has to be long enough to have no effect.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;

/// Direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkDirection {
    /// From the first node to the second.
    Forward,
    /// From the second to the first.
    Backward,
}

/// An end of a link.
#[derive(Debug, Clone)]
pub struct LinkEnd {
    /// The node.
    pub node: LabNode,
    /// Name of the device in the node.
    pub device: String,
    /// IPv4 address in a /30 network, or unspecified (`0.0.0.0`).
    pub v4: Ipv4Addr,
    /// IPv6 address in a /64 network, or unspecified (`::`).
    pub v6: Ipv6Addr,
}

/// A link between two nodes: a TUN device in each and a thread between them. Clones are the same
/// link. It is removed with its [`crate::lab::NetworkLab`].
#[derive(Clone)]
pub struct LabLink(Arc<LinkInner>);

struct LinkInner {
    ends: [LinkEnd; 2],
    /// `None`: a link of kernel devices.
    carrier: Option<PacketCarrier>,
}

/// Thread that carries packets from one TUN device to the other.
struct PacketCarrier {
    shared: Arc<DriverShared>,
    thread: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

impl LabLink {
    pub(super) fn create(ends: [LinkEnd; 2], link: &LinkConditions) -> io::Result<Self> {
        let carrier = if link.is_plain {
            create_veth(&ends).map(|()| None)?
        } else {
            Some(PacketCarrier::start(&ends, link)?)
        };
        let lab_link = Self(Arc::new(LinkInner { ends, carrier }));
        lab_link.configure_ends(link)?;
        Ok(lab_link)
    }

    /// End at the node that was named first.
    pub fn first_end(&self) -> &LinkEnd {
        &self.0.ends[0]
    }

    /// The other end.
    pub fn second_end(&self) -> &LinkEnd {
        &self.0.ends[1]
    }

    /// Sets the conditions of both directions. Packets underway arrive as before.
    ///
    /// # Errors
    /// When the devices refuse the MTU.
    pub fn set_conditions(&self, link: &LinkConditions) -> io::Result<()> {
        self.set_each_direction([Some(link), Some(link)])
    }

    /// Sets the conditions of one direction, with the MTU of its sender.
    ///
    /// # Errors
    /// When the device refuses the MTU.
    pub fn set_one_direction(
        &self,
        direction: LinkDirection,
        link: &LinkConditions,
    ) -> io::Result<()> {
        match direction {
            LinkDirection::Forward => self.set_each_direction([Some(link), None]),
            LinkDirection::Backward => self.set_each_direction([None, Some(link)]),
        }
    }

    /// # Panics
    /// On a link of kernel devices.
    fn carrier(&self) -> &PacketCarrier {
        self.0
            .carrier
            .as_ref()
            .expect("a link of kernel devices has no conditions and no counters")
    }

    /// Cuts the link: packets underway are lost, and all that are sent until it is restored. The
    /// devices stay up, so programs do not notice.
    pub fn cut_link(&self) {
        self.carrier()
            .shared
            .lock_models()
            .iter_mut()
            .for_each(|line| line.set_cut(true));
    }

    /// Restores a cut link.
    pub fn restore_link(&self) {
        self.carrier()
            .shared
            .lock_models()
            .iter_mut()
            .for_each(|line| line.set_cut(false));
    }

    /// Counters of a direction since the link was created.
    pub fn packet_counts(&self, direction: LinkDirection) -> LinkCounts {
        self.carrier().shared.lock_models()[direction as usize].counts()
    }

    /// Packets that a receiver's device refused because it was down.
    pub fn refused_packets(&self) -> u64 {
        self.carrier().shared.refused.load(Ordering::Relaxed)
    }

    /// Packets that the devices dropped because the link's thread did not fetch them in time. With
    /// any of them the machine was too slow, and measurements are invalid.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn overrun_packets(&self) -> io::Result<u64> {
        self.0
            .ends
            .iter()
            .map(|end| end.node.dropped_packets(&end.device))
            .sum()
    }

    /// CPU time of the link's thread. It includes the receiver's network stack, which runs in it as
    /// in an interrupt.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        let thread = self.carrier().shared.thread.load(Ordering::Relaxed);
        let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"))?;
        let nanoseconds = text.split(' ').next().and_then(|n| n.parse().ok());
        nanoseconds
            .map(Duration::from_nanos)
            .ok_or_else(|| io::Error::other("schedstat has no time on the processor"))
    }

    pub(super) fn end_carrier(&self) {
        let Some(carrier) = &self.0.carrier else {
            return;
        }; // its devices are removed with the nodes
        carrier.shared.stop_thread();
        let Some(thread) = carrier
            .thread
            .lock()
            .ok()
            .and_then(|mut thread| thread.take())
        else {
            return;
        };
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!(
                "the thread of {} ended early: {error}",
                self.first_end().device
            ),
            Err(_) => eprintln!("the thread of {} panicked", self.first_end().device),
        }
    }

    fn configure_ends(&self, link: &LinkConditions) -> io::Result<()> {
        for end in &self.0.ends {
            let mut devices = end.node.open_devices()?;
            let device = devices.device_index(&end.device)?;
            devices.set_mtu(device, link.mtu, DEVICE_QUEUE_PACKETS)?;
            if link.is_plain {
                devices.disable_arp(device)?;
            }
            let addresses = [(IpAddr::V4(end.v4), 30), (IpAddr::V6(end.v6), 64)];
            let mut assigned = addresses
                .into_iter()
                .filter(|(address, _)| !address.is_unspecified());
            assigned.try_for_each(|prefix| devices.add_address(device, prefix))?;
            devices.set_up(device)?;
        }
        let mut ends = self.0.ends.iter().filter(|end| !end.v6.is_unspecified());
        ends.try_for_each(|end| end.node.await_address(end.v6))
    }

    fn set_each_direction(&self, links: [Option<&LinkConditions>; 2]) -> io::Result<()> {
        for (end, link) in self.0.ends.iter().zip(links) {
            if let Some(link) = link {
                let mut devices = end.node.open_devices()?;
                let device = devices.device_index(&end.device)?;
                devices.set_mtu(device, link.mtu, DEVICE_QUEUE_PACKETS)?;
            }
        }
        let mut lines = self.carrier().shared.lock_models();
        for (direction, link) in links.into_iter().enumerate() {
            if let Some(link) = link {
                lines[direction].set_conditions(link.clone(), direction_seed(link.seed, direction));
            }
        }
        let offload = common_offload([lines[0].conditions(), lines[1].conditions()]);
        drop(lines);
        self.carrier()
            .shared
            .ends
            .iter()
            .try_for_each(|end| end.set_offload(offload))?;
        self.carrier().shared.wake_thread();
        Ok(())
    }
}

impl PacketCarrier {
    fn start(ends: &[LinkEnd; 2], link: &LinkConditions) -> io::Result<Self> {
        let offload = common_offload([link, link]);
        let device = |end: &LinkEnd| end.node.enter(|| TunDevice::create(&end.device, offload));
        let tuns = [device(&ends[0])?, device(&ends[1])?];
        let model = |direction| LinkModel::new(link.clone(), direction_seed(link.seed, direction));
        let shared = Arc::new(DriverShared::new([model(0), model(1)], tuns)?);
        let thread = Mutex::new(Some(start_thread(&shared, &ends[0].device)?));
        Ok(Self { shared, thread })
    }
}

/// Creates both devices of a link of kernel devices.
fn create_veth([near, far]: &[LinkEnd; 2]) -> io::Result<()> {
    near.node
        .open_devices()?
        .create_veth_pair(&near.device, (&far.device, far.node.as_fd()))
}

impl std::fmt::Debug for LabLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cable")
            .field("ends", &self.0.ends)
            .finish_non_exhaustive()
    }
}

fn common_offload(links: [&LinkConditions; 2]) -> TunOffload {
    if links.iter().all(|link| link.treats_all_alike()) {
        TunOffload::Segments
    } else {
        TunOffload::Checksums
    }
}

/// Starts the link's thread and waits until it is ready.
fn start_thread(
    shared: &Arc<DriverShared>,
    device: &str,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let (shared, (ready, started)) = (Arc::clone(shared), mpsc::channel());
    let thread = thread::Builder::new()
        .name(device.to_owned())
        .spawn(move || {
            let thread = rustix::thread::gettid();
            shared.thread.store(
                u64::from(thread.as_raw_nonzero().get().unsigned_abs()),
                Ordering::Relaxed,
            );
            // Like an interrupt, so that other work does not delay packets. Without the permission
            // it may.
            let _ = prefer_this_thread();
            let driver = LinkDriver::new(&shared)?;
            let _ = ready.send(());
            driver.run()
        })?;
    if started.recv().is_ok() {
        return Ok(thread);
    }
    let ended = thread
        .join()
        .map_err(|_| io::Error::other("the link's thread panicked"))?;
    ended.and(Err(io::Error::other(
        "the link's thread ended before it began",
    )))
}
