//! One domain's records: sockets, identities, who may send where.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, MapError, PerCpuArray, SkStorage, SockHash};
use aya::programs::SkMsg;

use super::object::{self, load, refused};
use super::sockets::Yard;

/// Who sends, and on which channel: `struct way`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Way {
    from: u32,
    channel: u32,
}

/// Whom that reaches, and how many records went there: `struct row`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Row {
    records: u64,
    to: u32,
    zero: u32,
}

#[expect(unsafe_code, reason = "aya's mark for what may be copied to and from maps")]
mod plain {
    // SAFETY: two u32 without padding; every value is valid.
    unsafe impl aya::Pod for super::Way {}
    // SAFETY: a u64 and two u32 without padding; every value is valid.
    unsafe impl aya::Pod for super::Row {}
}

/// Both ends of a party's socket.
#[derive(Debug)]
pub struct Seat {
    /// For the party: what it writes is carried to others, what it reads came from them. Blocks.
    pub party: OwnedFd,
    /// For the node: what it reads is what the party may not send; a write wakes the party. Does not block. The party's
    /// socket is of no use any more when this end is closed.
    pub node: OwnedFd,
}

/// Records since the exchange began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Carried to their receiver.
    pub delivered: u64,
    /// On a channel that is none of the sender's.
    pub denied: u64,
    /// To a party that is gone.
    pub absent: u64,
    /// Less than a record.
    pub malformed: u64,
}

/// See the module. Ends with everything in it when it is dropped.
pub struct Exchange {
    yard: Yard,
    maps: Mutex<Maps>,
    /// Holds the program and its attachment.
    _loaded: Ebpf,
}

struct Maps {
    parties: SockHash<MapData, u32>,
    audits: SockHash<MapData, u32>,
    identities: SkStorage<MapData, u32>,
    access: HashMap<MapData, Way, Row>,
    counts: PerCpuArray<MapData, u64>,
}

impl Exchange {
    /// Loads the program and makes a home for the sockets.
    ///
    /// # Errors
    /// Without the programs in this build, or without `CAP_BPF`, `CAP_NET_ADMIN` and `CAP_SYS_ADMIN`.
    pub fn create() -> io::Result<Self> {
        let object = object::sk_msg()?;
        let mut loaded = load(object).map_err(|error| refused(&error))?;
        let maps = Maps::of(&mut loaded)?;
        let program: &mut SkMsg = loaded
            .program_mut("descriptors")
            .ok_or_else(|| io::Error::other("bpf/sk_msg.c has no program `descriptors`"))?
            .try_into()
            .map_err(|error| refused(&error))?;
        program.load().map_err(|error| refused(&error))?;
        program.attach(maps.parties.fd()).map_err(|error| refused(&error))?;
        Ok(Self { yard: Yard::create()?, maps: Mutex::new(maps), _loaded: loaded })
    }

    /// Makes the socket of a party. Numbers are of the caller's choosing; one that is given again is another party.
    ///
    /// # Errors
    /// When there are 1024 parties already, or the kernel has no socket left.
    pub fn seat(&self, party: u16) -> io::Result<Seat> {
        let (theirs, ours) = self.yard.pair()?;
        let (key, mut maps) = (u32::from(party), self.maps());
        // In this order: a socket without an identity sends nothing, one without an audit nothing that is not allowed.
        maps.identities.insert(&theirs, key, 0).map_err(|error| refused(&error))?;
        maps.audits.insert(key, ours.as_raw_fd(), 0).map_err(|error| refused(&error))?;
        maps.parties.insert(key, theirs.as_raw_fd(), 0).map_err(|error| refused(&error))?;
        Ok(Seat { party: theirs, node: ours })
    }

    /// Nothing is carried to or from a party any more. Its rows stay until they are revoked.
    pub fn unseat(&self, party: u16) {
        let (key, mut maps) = (u32::from(party), self.maps());
        let _ = (maps.parties.remove(&key), maps.audits.remove(&key)); // closed sockets have left by themselves
    }

    /// What `from` sends on `channel` goes to `to`.
    ///
    /// # Errors
    /// When there are 16384 rows already.
    pub fn permit(&self, from: u16, channel: u32, to: u16) -> io::Result<()> {
        let row = Row { records: 0, to: to.into(), zero: 0 };
        self.maps().access.insert(Way { from: from.into(), channel }, row, 0).map_err(|error| refused(&error))
    }

    /// What `from` sends on `channel` goes nowhere but to the node.
    pub fn revoke(&self, from: u16, channel: u32) {
        let _ = self.maps().access.remove(&Way { from: from.into(), channel }); // gone is gone
    }

    /// Records that went from a party over a channel, as the kernel counted them.
    pub fn carried(&self, from: u16, channel: u32) -> u64 {
        self.maps().access.get(&Way { from: from.into(), channel }, 0).map_or(0, |row| row.records)
    }

    /// Everything that was sent.
    pub fn counts(&self) -> Counts {
        let maps = self.maps();
        let sum = |index| maps.counts.get(&index, 0).map_or(0, |values| values.iter().sum());
        Counts { delivered: sum(0), denied: sum(1), absent: sum(2), malformed: sum(3) }
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner) // every change of a map is one step
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("yard", &self.yard).finish_non_exhaustive()
    }
}

impl Maps {
    fn of(loaded: &mut Ebpf) -> io::Result<Self> {
        let mut take = |name: &str| {
            let map = loaded.take_map(name);
            map.ok_or_else(|| io::Error::other(format!("bpf/sk_msg.c has no map `{name}`")))
        };
        let bad = |error: MapError| refused(&error);
        Ok(Self {
            parties: take("parties")?.try_into().map_err(bad)?,
            audits: take("audits")?.try_into().map_err(bad)?,
            identities: take("identities")?.try_into().map_err(bad)?,
            access: take("access")?.try_into().map_err(bad)?,
            counts: take("counts")?.try_into().map_err(bad)?,
        })
    }
}
