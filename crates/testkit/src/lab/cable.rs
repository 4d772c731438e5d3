//! A link in use: what its user can see and change while packets pass.

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

use super::chance::directed;
use super::driver::{Driver, Shared};
use super::line::Line;
use super::link::{Counts, Link};
use super::node::Node;

/// How many packets wait in a device until the link's thread reads them. The queue of the model is [`Link::queue`]; this one
/// only has to be long enough never to show.
const WAITING: u32 = 10_000;

/// One of a cable's two directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the first node to the second.
    There,
    /// From the second to the first.
    Back,
}

/// One end of a cable.
#[derive(Debug, Clone)]
pub struct End {
    /// The node.
    pub node: Node,
    /// The device's name there.
    pub device: String,
    /// Its IPv4 address, one of a network of 30 bits; unspecified (`0.0.0.0`) where it has none.
    pub v4: Ipv4Addr,
    /// Its IPv6 address, one of a network of 64 bits; unspecified (`::`) where it has none.
    pub v6: Ipv6Addr,
}

/// A link between two nodes: a TUN device in each and a thread between them. Clones are the same cable; it is taken away
/// with its [`crate::lab::Lab`].
#[derive(Clone)]
pub struct Cable(Arc<Inner>);

struct Inner {
    ends: [End; 2],
    /// `None`: a plain one.
    carried: Option<Carried>,
}

/// What carries packets from one TUN device to the other.
struct Carried {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

impl Cable {
    pub(super) fn lay(ends: [End; 2], link: &Link) -> io::Result<Self> {
        let carried = if link.plain { pair(&ends).map(|()| None)? } else { Some(Carried::begin(&ends, link)?) };
        let cable = Self(Arc::new(Inner { ends, carried }));
        cable.connect(link)?;
        Ok(cable)
    }

    /// The end at the node that was named first.
    pub fn first(&self) -> &End {
        &self.0.ends[0]
    }

    /// The other end.
    pub fn second(&self) -> &End {
        &self.0.ends[1]
    }

    /// Gives both directions other properties. What is underway arrives as it would have.
    ///
    /// # Errors
    /// When the devices do not take the MTU.
    pub fn change(&self, link: &Link) -> io::Result<()> {
        self.change_each([Some(link), Some(link)])
    }

    /// Gives one direction other properties, the MTU of its sender among them.
    ///
    /// # Errors
    /// When the device does not take the MTU.
    pub fn change_one(&self, direction: Direction, link: &Link) -> io::Result<()> {
        match direction {
            Direction::There => self.change_each([Some(link), None]),
            Direction::Back => self.change_each([None, Some(link)]),
        }
    }

    /// # Panics
    /// On a plain cable.
    fn carried(&self) -> &Carried {
        self.0.carried.as_ref().expect("a plain cable has nothing to change or to count")
    }

    /// Cuts the cable: what is underway is lost, and so is all that is sent until it is mended. The devices stay up: nobody is told.
    pub fn cut(&self) {
        self.carried().shared.lines().iter_mut().for_each(|line| line.cut(true));
    }

    /// Mends a cut cable.
    pub fn mend(&self) {
        self.carried().shared.lines().iter_mut().for_each(|line| line.cut(false));
    }

    /// What became of the packets of one direction since the cable was laid.
    pub fn counts(&self, direction: Direction) -> Counts {
        self.carried().shared.lines()[direction as usize].counts()
    }

    /// Packets that a receiver's device did not take, because it was set down.
    pub fn refused(&self) -> u64 {
        self.carried().shared.refused.load(Ordering::Relaxed)
    }

    /// Packets that the devices dropped because the link's thread did not fetch them in time. Where there are any, the
    /// machine was too slow for what was asked of it, and what was measured is of no use.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn overrun(&self) -> io::Result<u64> {
        self.0.ends.iter().map(|end| end.node.dropped(&end.device)).sum()
    }

    /// The CPU time of the link's thread. The receiver's stack works in it, too: its share is that of an interrupt.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        let thread = self.carried().shared.thread.load(Ordering::Relaxed);
        let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"))?;
        let nanoseconds = text.split(' ').next().and_then(|n| n.parse().ok());
        nanoseconds.map(Duration::from_nanos).ok_or_else(|| io::Error::other("schedstat has no time on the processor"))
    }

    pub(super) fn end(&self) {
        let Some(carried) = &self.0.carried else { return }; // its devices go with the nodes
        carried.shared.stop();
        let Some(thread) = carried.thread.lock().ok().and_then(|mut thread| thread.take()) else { return };
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("the thread of {} ended early: {error}", self.first().device),
            Err(_) => eprintln!("the thread of {} panicked", self.first().device),
        }
    }

    fn connect(&self, link: &Link) -> io::Result<()> {
        for end in &self.0.ends {
            let mut devices = end.node.devices()?;
            let device = devices.device_index(&end.device)?;
            devices.set_mtu(device, link.mtu, WAITING)?;
            if link.plain {
                devices.disable_arp(device)?;
            }
            let addresses = [(IpAddr::V4(end.v4), 30), (IpAddr::V6(end.v6), 64)];
            let mut given = addresses.into_iter().filter(|(address, _)| !address.is_unspecified());
            given.try_for_each(|prefix| devices.add_address(device, prefix))?;
            devices.set_up(device)?;
        }
        let mut ends = self.0.ends.iter().filter(|end| !end.v6.is_unspecified());
        ends.try_for_each(|end| end.node.await_address(end.v6))
    }

    fn change_each(&self, links: [Option<&Link>; 2]) -> io::Result<()> {
        for (end, link) in self.0.ends.iter().zip(links) {
            if let Some(link) = link {
                let mut devices = end.node.devices()?;
                let device = devices.device_index(&end.device)?;
                devices.set_mtu(device, link.mtu, WAITING)?;
            }
        }
        let mut lines = self.carried().shared.lines();
        for (direction, link) in links.into_iter().enumerate() {
            if let Some(link) = link {
                lines[direction].change(link.clone(), directed(link.seed, direction));
            }
        }
        let offload = offload([lines[0].link(), lines[1].link()]);
        drop(lines);
        self.carried().shared.ends.iter().try_for_each(|end| end.set_offload(offload))?;
        self.carried().shared.ring();
        Ok(())
    }
}

impl Carried {
    fn begin(ends: &[End; 2], link: &Link) -> io::Result<Self> {
        let offload = offload([link, link]);
        let device = |end: &End| end.node.enter(|| TunDevice::create(&end.device, offload));
        let tuns = [device(&ends[0])?, device(&ends[1])?];
        let line = |direction| Line::new(link.clone(), directed(link.seed, direction));
        let shared = Arc::new(Shared::new([line(0), line(1)], tuns)?);
        let thread = Mutex::new(Some(start(&shared, &ends[0].device)?));
        Ok(Self { shared, thread })
    }
}

/// Makes both devices of a plain cable.
fn pair([near, far]: &[End; 2]) -> io::Result<()> {
    near.node.devices()?.create_veth_pair(&near.device, (&far.device, far.node.as_fd()))
}

impl std::fmt::Debug for Cable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cable").field("ends", &self.0.ends).finish_non_exhaustive()
    }
}

fn offload(links: [&Link; 2]) -> TunOffload {
    if links.iter().all(|link| link.treats_all_alike()) { TunOffload::Segments } else { TunOffload::Checksums }
}

/// Starts the link's thread and waits until it is ready.
fn start(shared: &Arc<Shared>, device: &str) -> io::Result<JoinHandle<io::Result<()>>> {
    let (shared, (ready, started)) = (Arc::clone(shared), mpsc::channel());
    let thread = thread::Builder::new().name(device.to_owned()).spawn(move || {
        let thread = rustix::thread::gettid();
        shared.thread.store(u64::from(thread.as_raw_nonzero().get().unsigned_abs()), Ordering::Relaxed);
        // As an interrupt would: what else the machine does must not hold packets up. Without the right to it, it does.
        let _ = prefer_this_thread();
        let driver = Driver::new(&shared)?;
        let _ = ready.send(());
        driver.run()
    })?;
    if started.recv().is_ok() {
        return Ok(thread);
    }
    let ended = thread.join().map_err(|_| io::Error::other("the link's thread panicked"))?;
    ended.and(Err(io::Error::other("the link's thread ended before it began")))
}
