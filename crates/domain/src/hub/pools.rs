//! What the slots of a domain lie in: one pool that all can write, or, in a strict domain, one of each party's own.
//!
//! A strict party makes its pool itself; the node looks only at its seals and size, hands it on with each introduction, and
//! never maps it. It lets go of it when the party is no more: the memory goes with the last peer's mapping.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_shm::geometry::Size;
use nearpath_shm::{Geometry, Party, Pool, reclaim, region};

use super::{Settings, Usage};
use crate::protocol::{Isolation, OwnPool};

/// Clones are the same pools.
#[derive(Debug, Clone)]
pub(super) enum Pools {
    /// Everybody's.
    Shared(Arc<Pool>),
    /// Each party's own.
    Own(Arc<Given>),
}

/// The pools that strict parties have given.
#[derive(Debug)]
pub(super) struct Given {
    sizes: Vec<Size>,
    bytes: u64,
    pools: Mutex<BTreeMap<Party, OwnedFd>>,
}

impl Pools {
    pub(super) fn new(settings: &Settings) -> io::Result<Self> {
        if settings.isolation != Isolation::Strict {
            return Ok(Self::Shared(Arc::new(Pool::create(&settings.sizes, settings.pages)?)));
        }
        let geometry =
            Geometry::new(&settings.sizes).map_err(|fault| io::Error::new(io::ErrorKind::InvalidInput, fault))?;
        let sizes = settings.sizes.clone();
        Ok(Self::Own(Arc::new(Given { sizes, bytes: geometry.bytes(), pools: Mutex::default() })))
    }

    /// Bytes of a region.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Shared(pool) => pool.bytes() as u64,
            Self::Own(given) => given.bytes,
        }
    }

    /// The pool that a newcomer gets, or the classes of the one that it has to make.
    pub(super) fn for_newcomer(&self) -> io::Result<(Option<OwnedFd>, Vec<[u32; 2]>)> {
        match self {
            Self::Shared(pool) => Ok((Some(pool.as_fd().try_clone_to_owned()?), Vec::new())),
            Self::Own(given) => Ok((None, given.sizes.iter().map(|size| [size.size, size.count]).collect())),
        }
    }

    /// Takes a party's own pool, after a look at it; else why it is at fault.
    pub(super) fn take(&self, party: Party, own: OwnPool, descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let Self::Own(given) = self else { return Err("a pool of its own in a shared domain".into()) };
        let mut descriptors = descriptors.into_iter();
        let (Some(pool), None) = (descriptors.next(), descriptors.next()) else {
            return Err("its pool did not come in one descriptor".into());
        };
        if own.bytes != given.bytes {
            return Err(format!("its pool has {} bytes, not {}", own.bytes, given.bytes));
        }
        let bytes = usize::try_from(given.bytes).map_err(|error| error.to_string())?;
        region::vet_read_only(&pool, bytes).map_err(|error| format!("its pool is refused: {error}"))?;
        match given.pools().insert(party, pool) {
            None => Ok(()),
            Some(_) => Err("a second pool".into()),
        }
    }

    /// A party's own pool for a peer; nothing in a shared domain, where the peer has it.
    pub(super) fn of(&self, party: Party) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Shared(_) => Ok(None),
            Self::Own(given) => given.pools().get(&party).map(OwnedFd::try_clone).transpose(),
        }
    }

    /// A party is no more.
    pub(super) fn left(&self, party: Party) {
        if let Self::Own(given) = self {
            given.pools().remove(&party);
        }
    }

    /// Whether any slot bears the number. In a strict domain nobody but its maker can say whose a slot is.
    pub(super) fn bear(&self, party: Party) -> bool {
        matches!(self, Self::Shared(pool) if reclaim::bears(pool, party))
    }

    /// What is held, as far as anybody but the parties knows: in a strict domain, the memory that has been used.
    pub(super) fn add_to(&self, usage: &mut Usage) {
        match self {
            Self::Shared(pool) => reclaim::usage(pool).values().for_each(|held| {
                usage.slots += held.slots;
                usage.bytes += held.bytes;
            }),
            Self::Own(given) => usage.bytes += given.pools().values().map(backed).sum::<u64>(),
        }
    }
}

impl Given {
    /// Bytes of all slots of one party's pool.
    pub(super) fn slots(&self) -> u64 {
        self.sizes.iter().map(|size| u64::from(size.size) * u64::from(size.count)).sum()
    }

    /// Bytes of memory behind each party's pool.
    pub(super) fn backed(&self) -> Vec<(Party, u64)> {
        self.pools().iter().map(|(&party, pool)| (party, backed(pool))).collect()
    }

    fn pools(&self) -> MutexGuard<'_, BTreeMap<Party, OwnedFd>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn backed(pool: &OwnedFd) -> u64 {
    region::backed(pool).unwrap_or(0)
}
