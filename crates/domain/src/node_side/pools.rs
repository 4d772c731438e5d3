//! Memory of a domain's slots: one shared pool, or in a strict domain one pool per endpoint.
//!
//! A strict endpoint creates its own pool. The node checks only its seals and size, passes it on
//! with each introduction, and never maps it. It drops the pool with the endpoint; the memory is
//! freed with the last peer's mapping.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::{EndpointId, PoolGeometry, SlotPool, reclaim, region};

use super::{DomainSettings, DomainUsage};
use crate::protocol::{DomainIsolation, OwnPoolMessage};

/// Pools of a domain; clones share them.
#[derive(Debug, Clone)]
pub(super) enum DomainPools {
    /// A pool for all endpoints.
    Shared(Arc<SlotPool>),
    /// A pool per endpoint.
    PerEndpoint(Arc<EndpointPools>),
}

/// Pools that strict endpoints have provided.
#[derive(Debug)]
pub(super) struct EndpointPools {
    classes: Vec<ClassSpec>,
    region_bytes: u64,
    pools: Mutex<BTreeMap<EndpointId, OwnedFd>>,
}

impl DomainPools {
    pub(super) fn new(settings: &DomainSettings) -> io::Result<Self> {
        if settings.isolation != DomainIsolation::Strict {
            return Ok(Self::Shared(Arc::new(SlotPool::create(
                &settings.classes,
                settings.pages,
            )?)));
        }
        let geometry = PoolGeometry::new(&settings.classes)
            .map_err(|fault| io::Error::new(io::ErrorKind::InvalidInput, fault))?;
        let sizes = settings.classes.clone();
        Ok(Self::PerEndpoint(Arc::new(EndpointPools {
            classes: sizes,
            region_bytes: geometry.total_bytes(),
            pools: Mutex::default(),
        })))
    }

    /// Returns the bytes of a region.
    pub(super) fn region_bytes(&self) -> u64 {
        match self {
            Self::Shared(pool) => pool.region_bytes() as u64,
            Self::PerEndpoint(pools) => pools.region_bytes,
        }
    }

    /// Returns the pool for a new endpoint, or the classes of the pool that it must create.
    pub(super) fn for_new_endpoint(&self) -> io::Result<(Option<OwnedFd>, Vec<[u32; 2]>)> {
        match self {
            Self::Shared(pool) => Ok((Some(pool.as_fd().try_clone_to_owned()?), Vec::new())),
            Self::PerEndpoint(pools) => Ok((
                None,
                pools
                    .classes
                    .iter()
                    .map(|size| [size.size, size.count])
                    .collect(),
            )),
        }
    }

    /// Accepts an endpoint's own pool after checking it; otherwise returns the violation.
    pub(super) fn accept_pool(
        &self,
        endpoint: EndpointId,
        own: OwnPoolMessage,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let Self::PerEndpoint(pools) = self else {
            return Err("a pool of its own in a shared domain".into());
        };
        let mut descriptors = descriptors.into_iter();
        let (Some(pool), None) = (descriptors.next(), descriptors.next()) else {
            return Err("its pool did not come in one descriptor".into());
        };
        // All pools of a domain have one layout: the node tells each peer only one size.
        if own.bytes != pools.region_bytes {
            return Err(format!(
                "its pool has {} bytes, not {}",
                own.bytes, pools.region_bytes
            ));
        }
        let bytes = usize::try_from(pools.region_bytes).map_err(|error| error.to_string())?;
        // The peers check again: this check names the faulty endpoint before any peer maps its
        // pool.
        region::check_read_only(&pool, bytes)
            .map_err(|error| format!("its pool is refused: {error}"))?;
        match pools.lock_pools().insert(endpoint, pool) {
            None => Ok(()),
            Some(_) => Err("a second pool".into()),
        }
    }

    /// Returns an endpoint's own pool for a peer; none in a shared domain.
    pub(super) fn pool_for_peer(&self, endpoint: EndpointId) -> io::Result<Option<OwnedFd>> {
        match self {
            Self::Shared(_) => Ok(None),
            Self::PerEndpoint(pools) => pools
                .lock_pools()
                .get(&endpoint)
                .map(OwnedFd::try_clone)
                .transpose(),
        }
    }

    /// Removes the pool of a dead endpoint.
    pub(super) fn remove_pool(&self, endpoint: EndpointId) {
        if let Self::PerEndpoint(pools) = self {
            pools.lock_pools().remove(&endpoint);
        }
    }

    /// Returns true if a slot contains the id. In a strict domain only the owner knows its slots.
    pub(super) fn is_id_in_use(&self, endpoint: EndpointId) -> bool {
        matches!(self, Self::Shared(pool) if reclaim::is_id_in_use(pool, endpoint))
    }

    /// Adds the current usage: in a strict domain, the memory behind the pools.
    pub(super) fn add_to_usage(&self, usage: &mut DomainUsage) {
        match self {
            Self::Shared(pool) => reclaim::slot_usage(pool).values().for_each(|held| {
                usage.slots += held.slots;
                usage.bytes += held.bytes;
            }),
            Self::PerEndpoint(pools) => {
                usage.bytes += pools.lock_pools().values().map(backed_or_zero).sum::<u64>()
            }
        }
    }
}

impl EndpointPools {
    /// Returns the bytes of all slots of one endpoint's pool.
    pub(super) fn slot_bytes(&self) -> u64 {
        self.classes
            .iter()
            .map(|size| u64::from(size.size) * u64::from(size.count))
            .sum()
    }

    /// Returns the memory behind each endpoint's pool.
    pub(super) fn backed_bytes(&self) -> Vec<(EndpointId, u64)> {
        self.lock_pools()
            .iter()
            .map(|(&endpoint, pool)| (endpoint, backed_or_zero(pool)))
            .collect()
    }

    fn lock_pools(&self) -> MutexGuard<'_, BTreeMap<EndpointId, OwnedFd>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn backed_or_zero(pool: &OwnedFd) -> u64 {
    region::backed_bytes(pool).unwrap_or(0)
}
