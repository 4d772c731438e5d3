//! Packets between the stations of one switch: who hangs where, who may send to whom.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, MapError, PerCpuArray};
use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType, TestRun, TestRunOptions};
use nearpath_types::Eip;

use super::object::{self, load, refused};
use crate::namespace;
use crate::netlink::{Mac, Rtnl};
use crate::station::macs;

/// Who is behind a device: `struct station`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Owner {
    eip: [u8; 4],
    near: Mac,
    far: Mac,
}

/// Where a packet came in, and what it says: `struct way`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Way {
    device: u32,
    from: [u8; 4],
    to: [u8; 4],
}

/// Where it goes, and how much went there: `struct row`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Row {
    packets: u64,
    bytes: u64,
    device: u32,
    near: Mac,
    far: Mac,
    /// In the network's order.
    port: [u8; 2],
    unused: [u8; 6],
}

/// What may go from one station to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    Anything,
    /// Datagrams from this port to this port, for so many who asked.
    Datagrams(u16, u32),
}

#[expect(unsafe_code, reason = "aya's mark for what may be copied to and from maps")]
mod plain {
    // SAFETY: octets alone, without padding; every value is valid.
    unsafe impl aya::Pod for super::Owner {}
    // SAFETY: a u32 and octets without padding; every value is valid.
    unsafe impl aya::Pod for super::Way {}
    // SAFETY: two u64, a u32 and twenty octets: 40 without padding; every value is valid.
    unsafe impl aya::Pod for super::Row {}
}

/// What went from one station to another since both are there and may talk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// Packets; one that the kernel has not cut into segments yet is one.
    pub packets: u64,
    /// Bytes of those, Ethernet headers included.
    pub bytes: u64,
}

/// What became of the packets of all stations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Packets {
    /// Carried to another station.
    pub forwarded: u64,
    /// ARP requests, answered.
    pub answered: u64,
    /// Dropped: to a station that is not there or not allowed. A request for a TCP connection is refused instead.
    pub denied: u64,
    /// Dropped: the source is not that of the device.
    pub forged: u64,
    /// Dropped: neither IPv4 nor an ARP request, or cut short.
    pub foreign: u64,
    /// Dropped: their time to live is over.
    pub expired: u64,
}

/// Moves packets between the stations of one switch, past its network stack, and drops all others. Ends, with its
/// attachments, when it is dropped or its process dies: the switch then forwards nothing.
pub struct Forwarder {
    state: Mutex<State>,
}

struct State {
    loaded: Ebpf,
    owners: HashMap<MapData, u32, Owner>,
    rows: HashMap<MapData, Way, Row>,
    counts: PerCpuArray<MapData, u64>,
    /// Index of the device, and what holds the program there.
    stations: BTreeMap<Eip, (u32, SchedClassifierLinkId)>,
    /// Both directions; stations need not be there yet.
    allowed: BTreeMap<(Eip, Eip), Leave>,
    /// Further addresses, and the stations that answer for them.
    further: BTreeMap<Eip, Eip>,
}

impl Forwarder {
    /// Loads the program.
    ///
    /// # Errors
    /// Without the programs in this build, or without `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn load() -> io::Result<Self> {
        let mut loaded = load(object::tc_forward()?).map_err(|error| refused(&error))?;
        program(&mut loaded)?.load().map_err(|error| refused(&error))?;
        let mut take = |name: &str| {
            let map = loaded.take_map(name);
            map.ok_or_else(|| io::Error::other(format!("bpf/tc_forward.c has no map `{name}`")))
        };
        let bad = |error: MapError| refused(&error);
        let (owners, rows) = (take("stations")?.try_into().map_err(bad)?, take("rows")?.try_into().map_err(bad)?);
        let counts = take("counts")?.try_into().map_err(bad)?;
        let (stations, allowed, further) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self { state: Mutex::new(State { loaded, owners, rows, counts, stations, allowed, further }) })
    }

    /// From now on `device` of `switch` is where `eip` is: nothing else is believed of it, and nothing goes past the program.
    /// The device is one end of a pair that [`crate::station`] or [`crate::sandbox`] made, and has no forwarder yet. An eIP
    /// that is given again has moved.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`, before Linux 6.6 (no tcx), or when there is no such device.
    pub fn attach(&self, switch: impl AsFd, eip: Eip, device: &str) -> io::Result<()> {
        let mut state = self.state();
        state.detach(eip);
        let at = {
            let program = program(&mut state.loaded)?;
            namespace::within(switch, || put(program, device))?
        };
        state.stations.insert(eip, at);
        let known = state.introduce(eip);
        if known.is_err() {
            state.detach(eip); // its packets meet the switch's stack, which forwards nothing
        }
        known
    }

    /// Nothing goes to or from a station any more. Permissions stay.
    pub fn detach(&self, eip: Eip) {
        self.state().detach(eip);
    }

    /// What is for `address`, which is no station's own, goes to `station` from now on, and may come from there. Whose, is for [`allow`](Self::allow) to say.
    pub fn also(&self, address: Eip, station: Eip) {
        self.state().further.insert(address, station);
    }

    /// Takes that back. Nobody may be allowed to talk to the address any more.
    pub fn no_longer(&self, address: Eip) {
        self.state().further.remove(&address);
    }

    /// Lets two stations talk to each other.
    ///
    /// # Errors
    /// When there are 16384 rows already: two for each pair.
    pub fn allow(&self, one: Eip, other: Eip) -> io::Result<()> {
        self.permit(one, other, |_| Leave::Anything)
    }

    /// Lets datagrams go between two stations, from `port` to the same port of the other; nothing else. Each time this is asked for it has to be taken back
    /// with [`forbid`](Self::forbid).
    ///
    /// # Errors
    /// As [`allow`](Self::allow).
    pub fn allow_datagrams(&self, one: Eip, other: Eip, port: u16) -> io::Result<()> {
        self.permit(one, other, |before| match before {
            Some(Leave::Anything) => Leave::Anything,
            Some(Leave::Datagrams(_, asked)) => Leave::Datagrams(port, asked + 1),
            None => Leave::Datagrams(port, 1),
        })
    }

    fn permit(&self, one: Eip, other: Eip, leave: impl Fn(Option<Leave>) -> Leave) -> io::Result<()> {
        let mut state = self.state();
        for pair in [(one, other), (other, one)] {
            let before = state.allowed.get(&pair).copied();
            let now = leave(before);
            state.allowed.insert(pair, now);
            if before.is_none_or(|before| before.port() != now.port()) {
                state.connect(pair.0, pair.1)?; // a row that stands keeps its counts
            }
        }
        Ok(())
    }

    /// Two stations may not talk any more, or one less of those who asked wants it.
    pub fn forbid(&self, one: Eip, other: Eip) {
        let mut state = self.state();
        for pair in [(one, other), (other, one)] {
            match state.allowed.get_mut(&pair) {
                Some(Leave::Datagrams(_, asked @ 2..)) => *asked -= 1,
                _ => {
                    state.allowed.remove(&pair);
                    state.disconnect(pair.0, pair.1);
                }
            }
        }
    }

    /// What went from one station to another.
    pub fn carried(&self, from: Eip, to: Eip) -> Carried {
        let state = self.state();
        let row = state.way(from, to).and_then(|way| state.rows.get(&way, 0).ok());
        row.map_or_else(Carried::default, |row| Carried { packets: row.packets, bytes: row.bytes })
    }

    /// Everything that was sent.
    pub fn packets(&self) -> Packets {
        let state = self.state();
        let [forwarded, answered, denied, forged, foreign, expired] =
            [0, 1, 2, 3, 4, 5].map(|index| state.counts.get(&index, 0).map_or(0, |values| values.iter().sum()));
        Packets { forwarded, answered, denied, forged, foreign, expired }
    }

    /// What the program says of a frame that comes in by a device with index 1, and the frame as it leaves it: the kernel's
    /// test run (Documentation/bpf/bpf_prog_run.rst), nothing is sent. Verdicts are those of `<linux/pkt_cls.h>`.
    ///
    /// # Errors
    /// When the frame is shorter than an Ethernet header.
    pub fn judge(&self, frame: &[u8]) -> io::Result<(u32, Vec<u8>)> {
        let mut state = self.state();
        let mut out = vec![0; frame.len()];
        let options = TestRunOptions { data_in: Some(frame), data_out: Some(&mut out), ..TestRunOptions::new() };
        let ran = program(&mut state.loaded)?.test_run(options).map_err(|error| refused(&error))?;
        out.truncate(ran.data_size_out as usize);
        Ok((ran.return_value, out))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // rows are whole or absent
    }
}

impl Leave {
    fn port(self) -> u16 {
        match self {
            Self::Anything => 0,
            Self::Datagrams(port, _) => port,
        }
    }
}

impl State {
    /// Writes down who is behind a device, and the rows that this makes possible.
    fn introduce(&mut self, eip: Eip) -> io::Result<()> {
        let (device, [near, far]) = (self.stations[&eip].0, macs(eip));
        let owner = Owner { eip: eip.0.octets(), near, far };
        self.owners.insert(device, owner, 0).map_err(|error| refused(&error))?;
        let mine: Vec<_> = self.allowed.keys().copied().filter(|(from, to)| *from == eip || *to == eip).collect();
        mine.into_iter().try_for_each(|(from, to)| self.connect(from, to))
    }

    fn detach(&mut self, eip: Eip) {
        let mine: Vec<_> = self.allowed.keys().copied().filter(|(from, to)| *from == eip || *to == eip).collect();
        for (from, to) in mine {
            self.disconnect(from, to);
        }
        if let Some((device, link)) = self.stations.remove(&eip) {
            let _ = self.owners.remove(&device); // gone is gone
            let _ = program(&mut self.loaded).and_then(|program| program.detach(link).map_err(|error| refused(&error)));
        }
    }

    /// Writes the row from one station to another, when both are there.
    fn connect(&mut self, from: Eip, to: Eip) -> io::Result<()> {
        let there = self.station(to);
        let (Some(way), Some((device, _))) = (self.way(from, to), self.stations.get(&there)) else { return Ok(()) };
        let [near, far] = macs(there);
        let port = self.allowed.get(&(from, to)).map_or(0, |leave| leave.port()).to_be_bytes();
        let row = Row { packets: 0, bytes: 0, device: *device, near, far, port, unused: [0; 6] };
        self.rows.insert(way, row, 0).map_err(|error| refused(&error))
    }

    fn disconnect(&mut self, from: Eip, to: Eip) {
        if let Some(way) = self.way(from, to) {
            let _ = self.rows.remove(&way); // gone is gone
        }
    }

    /// The station that has an address.
    fn station(&self, address: Eip) -> Eip {
        self.further.get(&address).copied().unwrap_or(address)
    }

    fn way(&self, from: Eip, to: Eip) -> Option<Way> {
        let (device, _) = self.stations.get(&self.station(from))?;
        Some(Way { device: *device, from: from.0.octets(), to: to.0.octets() })
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder").field("stations", &self.state().stations.keys()).finish_non_exhaustive()
    }
}

fn program(loaded: &mut Ebpf) -> io::Result<&mut SchedClassifier> {
    let program = loaded.program_mut("packets");
    let program = program.ok_or_else(|| io::Error::other("bpf/tc_forward.c has no program `packets`"))?;
    program.try_into().map_err(|error: aya::programs::ProgramError| refused(&error))
}

/// Puts the program on a device of the calling thread's namespace. By tcx, whose links end with their descriptor.
fn put(program: &mut SchedClassifier, device: &str) -> io::Result<(u32, SchedClassifierLinkId)> {
    let index = Rtnl::open()?.index(device)?;
    let first = TcAttachOptions::TcxOrder(LinkOrder::default());
    let link = program.attach_with_options(device, TcAttachType::Ingress, first);
    link.map(|link| (index, link)).map_err(|error| too_old(refused(&error)))
}

/// A kernel that does not know tcx calls it an invalid argument.
fn too_old(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidInput => io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{error}; programs at veth pairs need Linux 6.6 or later (tcx)"),
        ),
        _ => error,
    }
}
