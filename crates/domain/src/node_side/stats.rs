//! Statistics of a domain: its pool, endpoints and channels.
//!
//! The domain's task writes when an endpoint or channel comes or goes, never per call. Readers
//! fetch the numbers from shared memory on demand, so unread statistics cost nothing. Statistics
//! outlive a domain: the next one of that name continues the counters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nearpath_shm::region::PageKind;
use nearpath_shm::{Channel, EndpointId, reclaim};
use nearpath_types::FunctionId;

use super::call_counts::{CallCounts, EdgeKey, PastCalls};
use super::edge_counters::{EdgeChannel, EdgeCounters, PastEdges};
use super::pools::DomainPools;
use crate::clock::{self, MonotonicNanos};
use crate::topology::EndpointOwner;

/// Statistics of a domain; clones share them.
#[derive(Debug, Clone, Default)]
pub struct SharedStats(Arc<Mutex<StatsState>>);

#[derive(Debug, Default)]
struct StatsState {
    runs: BTreeMap<u64, RunStats>,
    last_run: u64,
    past_edges: PastEdges,
    past_calls: PastCalls,
}

impl StatsState {
    /// Adds a channel that is being removed.
    fn add_closed(&mut self, mut line: EdgeChannel) {
        // Read before `past_edges` takes the channel.
        let last = line.read_calls();
        self.past_calls.add_closed(line.edge_key(), last);
        self.past_edges.add_closed(line, clock::monotonic_now());
    }
}

/// Statistics of one run of a domain.
#[derive(Debug)]
struct RunStats {
    pools: DomainPools,
    requested_pages: PageKind,
    max_held_bytes: u64,
    endpoints: BTreeMap<EndpointId, EndpointOwner>,
    watchdogs: BTreeSet<EndpointId>,
    channels: BTreeMap<u32, (EdgeChannel, EndpointId, EndpointId)>,
}

/// Usage of a domain's pool by function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes of all slots, without lease words and padding.
    pub total_bytes: u64,
    /// Bytes of slots in use.
    pub used_bytes: u64,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// True if huge pages were requested and not available.
    pub lacks_huge_pages: bool,
    /// Usage by function; none: the gateway.
    pub by_function: BTreeMap<Option<FunctionId>, FunctionUsage>,
    /// Bytes of slots with ids of dead endpoints; the next sweep frees them.
    pub dead_bytes: u64,
}

/// Usage of all endpoints of one function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FunctionUsage {
    /// Live endpoints.
    pub endpoints: u64,
    /// Slots that they hold or offer.
    pub slots: u64,
    /// Bytes of these slots.
    pub bytes: u64,
    /// Maximum bytes that they may hold.
    pub max_bytes: u64,
}

/// Live endpoints and their channels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DomainMembership {
    /// All live endpoints.
    pub endpoints: BTreeMap<EndpointId, EndpointOwner>,
    /// Those of them that are watchdogs.
    pub watchdogs: BTreeSet<EndpointId>,
    /// Caller and callee of every channel, including draining ones.
    pub channels: Vec<(EndpointId, EndpointId)>,
}

impl SharedStats {
    /// Returns the counters of all edges. `now` is [`clock::monotonic_now`]: long-closed edges are
    /// forgotten.
    pub fn edge_counters(&self, now: MonotonicNanos) -> Vec<EdgeCounters> {
        let StatsState {
            runs: volumes,
            past_edges: past,
            ..
        } = &mut *self.lock_state();
        past.merge_open(
            volumes
                .values_mut()
                .flat_map(|volume| volume.channels.values_mut())
                .map(|(line, ..)| line),
            now,
        )
    }

    /// Returns the call counts of a function since the first run. They never decrease while the
    /// function exists.
    pub fn call_counts(&self, callee: &FunctionId) -> CallCounts {
        // One lock for open and past channels: one that closes in between would count twice or
        // never.
        let mut book = self.lock_state();
        let lines = book
            .runs
            .values_mut()
            .flat_map(|volume| volume.channels.values_mut())
            .map(|(line, ..)| line);
        let theirs =
            lines.filter(|line| matches!(line.edge_key(), (Some(_), Some(to)) if to == callee));
        let open = theirs.fold(CallCounts::default(), |all, line| {
            all.saturating_add(line.read_calls())
        });
        open.saturating_add(book.past_calls.counts_of(callee))
    }

    /// Forgets call counts of functions that no longer exist.
    pub fn retain_functions(&self, known: impl Fn(&FunctionId) -> bool) {
        self.lock_state().past_calls.retain(known);
    }

    /// Returns the current usage of the pool. Reads every lease word: about 10⁴ words, some 10 µs.
    /// Endpoints write these words, so a hostile one can forge its share, within the size of the
    /// pool. In a strict domain the kernel reports the memory behind each pool instead.
    pub fn pool_usage(&self) -> Option<PoolUsage> {
        // The newest run: an older one is ending.
        let book = self.lock_state();
        book.runs
            .last_key_value()
            .map(|(_, volume)| volume.pool_usage())
    }

    /// Returns the live endpoints and their channels.
    pub fn membership(&self) -> DomainMembership {
        let book = self.lock_state();
        let Some((_, volume)) = book.runs.last_key_value() else {
            return DomainMembership::default();
        };
        let channels = volume
            .channels
            .values()
            .map(|(_, caller, callee)| (*caller, *callee));
        DomainMembership {
            endpoints: volume.endpoints.clone(),
            watchdogs: volume.watchdogs.clone(),
            channels: channels.collect(),
        }
    }

    /// Returns true if the statistics are empty, and no writer or other reader exists.
    pub fn is_idle(&self) -> bool {
        let book = self.lock_state();
        // A count of 1: no writer and no other reader has a clone.
        Arc::strong_count(&self.0) == 1
            && book.runs.is_empty()
            && book.past_edges.is_empty()
            && book.past_calls.is_empty()
    }

    /// Starts a run; for the domain's task.
    pub(super) fn begin_run(
        &self,
        pools: DomainPools,
        requested_pages: PageKind,
        bound: u64,
    ) -> StatsWriter {
        let mut book = self.lock_state();
        // Runs overlap for a moment when a domain is replaced: each has entries of its own.
        book.last_run += 1;
        let number = book.last_run;
        let volume = RunStats {
            pools,
            requested_pages,
            max_held_bytes: bound,
            endpoints: BTreeMap::new(),
            watchdogs: BTreeSet::new(),
            channels: BTreeMap::new(),
        };
        book.runs.insert(number, volume);
        StatsWriter {
            stats: self.clone(),
            number,
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, StatsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunStats {
    fn pool_usage(&self) -> PoolUsage {
        let mut all = self.empty_usage();
        for who in self.endpoints.values() {
            let held = all.by_function.entry(who.function().cloned()).or_default();
            held.endpoints += 1;
            held.max_bytes += self.max_held_bytes;
        }
        for (endpoint, slots, bytes) in self.usage_by_endpoint() {
            all.used_bytes += bytes;
            match self
                .endpoints
                .get(&endpoint)
                .and_then(|who| all.by_function.get_mut(&who.function().cloned()))
            {
                Some(held) => {
                    held.slots += slots;
                    held.bytes += bytes;
                }
                // Held by an id that left: the next sweep frees it.
                None => all.dead_bytes += bytes,
            }
        }
        all
    }

    fn empty_usage(&self) -> PoolUsage {
        let (page, size) = match &self.pools {
            DomainPools::Shared(pool) => {
                let slots = pool
                    .lease_tables()
                    .map(|(size, leases)| u64::from(size) * u64::from(leases.slot_count()));
                (pool.page_size(), slots.sum())
            }
            DomainPools::PerEndpoint(pools) => {
                (4096, pools.slot_bytes() * self.endpoints.len() as u64)
            }
        };
        // Strict domains never request huge pages
        let shared = matches!(self.pools, DomainPools::Shared(_));
        let missed_huge =
            shared && self.requested_pages == PageKind::HugeIfAvailable && page <= 4096;
        PoolUsage {
            page_bytes: page,
            total_bytes: size,
            lacks_huge_pages: missed_huge,
            ..PoolUsage::default()
        }
    }

    /// Returns slots and bytes by endpoint. In a strict domain the slots are private; the bytes are
    /// all memory ever used.
    fn usage_by_endpoint(&self) -> Vec<(EndpointId, u64, u64)> {
        match &self.pools {
            DomainPools::Shared(pool) => {
                let all = reclaim::slot_usage(pool).into_iter();
                all.map(|(endpoint, usage)| (endpoint, u64::from(usage.slots), usage.bytes))
                    .collect()
            }
            DomainPools::PerEndpoint(pools) => pools
                .backed_bytes()
                .into_iter()
                .map(|(endpoint, bytes)| (endpoint, 0, bytes))
                .collect(),
        }
    }
}

/// Writer of a run. Dropping it ends the run: its counters move to the past.
#[derive(Debug)]
pub(super) struct StatsWriter {
    stats: SharedStats,
    number: u64,
}

impl StatsWriter {
    pub(super) fn add_endpoint(&self, endpoint: EndpointId, who: EndpointOwner, is_watchdog: bool) {
        self.update_run(|volume| {
            volume.endpoints.insert(endpoint, who);
            if is_watchdog {
                volume.watchdogs.insert(endpoint);
            }
        });
    }

    pub(super) fn remove_endpoint(&self, endpoint: EndpointId) {
        self.update_run(|volume| {
            volume.endpoints.remove(&endpoint);
            volume.watchdogs.remove(&endpoint);
        });
    }

    pub(super) fn add_channel(
        &self,
        number: u32,
        edge: EdgeKey,
        channel: Channel,
        caller: EndpointId,
        callee: EndpointId,
    ) {
        self.update_run(|volume| {
            drop(
                volume
                    .channels
                    .insert(number, (EdgeChannel::new(edge, channel), caller, callee)),
            )
        });
    }

    pub(super) fn remove_channel(&self, number: u32) {
        let mut book = self.stats.lock_state();
        let line = book
            .runs
            .get_mut(&self.number)
            .and_then(|volume| volume.channels.remove(&number));
        line.into_iter()
            .for_each(|(line, ..)| book.add_closed(line));
    }

    pub(super) fn edge_counters(&self) -> Vec<EdgeCounters> {
        self.stats.edge_counters(clock::monotonic_now())
    }

    fn update_run(&self, change: impl FnOnce(&mut RunStats)) {
        if let Some(volume) = self.stats.lock_state().runs.get_mut(&self.number) {
            change(volume);
        }
    }
}

impl Drop for StatsWriter {
    fn drop(&mut self) {
        let mut book = self.stats.lock_state();
        let volume = book.runs.remove(&self.number);
        volume
            .into_iter()
            .flat_map(|volume| volume.channels.into_values())
            .for_each(|(line, ..)| book.add_closed(line));
    }
}
