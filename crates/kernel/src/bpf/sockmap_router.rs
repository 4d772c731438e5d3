//! Delivery of one domain's records: sockets, sender ids, and permitted channels.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, PerCpuArray, SkStorage, SockHash};
use aya::programs::SkMsg;

use super::object::{self, bpf_error, load_object, take_map};
use super::sockmap_netns::SockmapNetns;

/// `struct channel_key` of `bpf/lib/endpoints.h`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct ChannelKey {
    sender: u32,
    channel: u32,
}

/// `struct channel_route` of `bpf/lib/endpoints.h`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct ChannelRoute {
    record_count: u64,
    receiver: u32,
    padding: u32,
}

#[expect(
    unsafe_code,
    reason = "aya's mark for what may be copied to and from maps"
)]
mod pod_impls {
    // SAFETY: two u32 without padding; every value is valid.
    unsafe impl aya::Pod for super::ChannelKey {}
    // SAFETY: a u64 and two u32 without padding; every value is valid.
    unsafe impl aya::Pod for super::ChannelRoute {}
}

/// Both ends of an endpoint's socket.
#[derive(Debug)]
pub struct SockmapPair {
    /// The endpoint's end. Written records go to other endpoints, and records from them are read
    /// here. Blocking.
    pub endpoint: OwnedFd,
    /// The node's end. It receives what the endpoint may not send, and a write wakes the endpoint.
    /// Non-blocking.
    ///
    /// Closing it disables the endpoint's socket.
    pub node: OwnedFd,
}

/// Outcomes of records since the router was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SockmapCounters {
    /// Records delivered to their receiver.
    pub delivered: u64,
    /// Records on a channel that the sender does not have.
    pub denied: u64,
    /// Records to an endpoint that is gone.
    pub absent: u64,
    /// Sends shorter than a record.
    pub malformed: u64,
}

/// Delivers the records of one domain. Dropping it ends all its sockets.
pub struct SockmapRouter {
    netns: SockmapNetns,
    maps: Mutex<SockmapMaps>,
    /// Holds the program and its attachment.
    _loaded: Ebpf,
}

struct SockmapMaps {
    endpoints: SockHash<MapData, u32>,
    audit_sockets: SockHash<MapData, u32>,
    sender_ids: SkStorage<MapData, u32>,
    routes: HashMap<MapData, ChannelKey, ChannelRoute>,
    counters: PerCpuArray<MapData, u64>,
}

impl SockmapRouter {
    /// Loads the program and creates the sockets' namespace.
    ///
    /// # Errors
    /// Fails if this build has no BPF programs, or without `CAP_BPF`, `CAP_NET_ADMIN` and
    /// `CAP_SYS_ADMIN`.
    pub fn create() -> io::Result<Self> {
        let object = object::sk_msg()?;
        let mut loaded = load_object(object)?;
        // Before the program is attached: it is attached to the map `endpoints`.
        let maps = SockmapMaps::take_from(&mut loaded)?;
        let program: &mut SkMsg = object::program(&mut loaded, "redirect_record")?;
        program.load().map_err(|error| bpf_error(&error))?;
        program
            .attach(maps.endpoints.fd())
            .map_err(|error| bpf_error(&error))?;
        Ok(Self {
            netns: SockmapNetns::create()?,
            maps: Mutex::new(maps),
            _loaded: loaded,
        })
    }

    /// Creates the socket of an endpoint. The caller chooses the number; a reused number is a new
    /// endpoint.
    ///
    /// # Errors
    /// Fails when there are 1024 endpoints, or the kernel has no socket left.
    pub fn add_endpoint(&self, endpoint: u16) -> io::Result<SockmapPair> {
        let (endpoint_end, node_end) = self.netns.connect_pair()?;
        let (key, mut maps) = (u32::from(endpoint), self.lock_maps());
        // The order keeps a half-added endpoint harmless: without an id it sends nothing, without
        // an audit socket only what is allowed.
        maps.sender_ids
            .insert(&endpoint_end, key, 0)
            .map_err(|error| bpf_error(&error))?;
        maps.audit_sockets
            .insert(key, node_end.as_raw_fd(), 0)
            .map_err(|error| bpf_error(&error))?;
        maps.endpoints
            .insert(key, endpoint_end.as_raw_fd(), 0)
            .map_err(|error| bpf_error(&error))?;
        Ok(SockmapPair {
            endpoint: endpoint_end,
            node: node_end,
        })
    }

    /// Stops delivery from and to an endpoint. Its routes stay until they are revoked.
    pub fn remove_endpoint(&self, endpoint: u16) {
        let (key, mut maps) = (u32::from(endpoint), self.lock_maps());
        // closed sockets have left the maps by themselves
        let _ = (maps.endpoints.remove(&key), maps.audit_sockets.remove(&key));
    }

    /// Delivers to `to` what `from` sends on `channel`.
    ///
    /// # Errors
    /// Fails when there are 16384 routes.
    pub fn allow_channel(&self, from: u16, channel: u32, to: u16) -> io::Result<()> {
        let row = ChannelRoute {
            record_count: 0,
            receiver: to.into(),
            padding: 0,
        };
        self.lock_maps()
            .routes
            .insert(
                ChannelKey {
                    sender: from.into(),
                    channel,
                },
                row,
                0,
            )
            .map_err(|error| bpf_error(&error))
    }

    /// Redirects to the node what `from` sends on `channel`.
    pub fn revoke_channel(&self, from: u16, channel: u32) {
        // the route may be absent
        let _ = self.lock_maps().routes.remove(&ChannelKey {
            sender: from.into(),
            channel,
        });
    }

    /// Returns the number of records that the kernel delivered from an endpoint over a channel.
    pub fn delivered_records(&self, from: u16, channel: u32) -> u64 {
        self.lock_maps()
            .routes
            .get(
                &ChannelKey {
                    sender: from.into(),
                    channel,
                },
                0,
            )
            .map_or(0, |row| row.record_count)
    }

    /// Returns the outcomes of all records.
    pub fn read_counters(&self) -> SockmapCounters {
        let maps = self.lock_maps();
        let sum = |index| object::sum_counter(&maps.counters, index);
        SockmapCounters {
            delivered: sum(0),
            denied: sum(1),
            absent: sum(2),
            malformed: sum(3),
        }
    }

    fn lock_maps(&self) -> MutexGuard<'_, SockmapMaps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner) // each map operation is atomic
    }
}

impl fmt::Debug for SockmapRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SockmapRouter")
            .field("netns", &self.netns)
            .finish_non_exhaustive()
    }
}

impl SockmapMaps {
    fn take_from(loaded: &mut Ebpf) -> io::Result<Self> {
        Ok(Self {
            endpoints: take_map(loaded, "endpoints")?,
            audit_sockets: take_map(loaded, "audit_sockets")?,
            sender_ids: take_map(loaded, "sender_ids")?,
            routes: take_map(loaded, "routes")?,
            counters: take_map(loaded, "counters")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::btf::{assert_layout, layout};
    use super::*;

    #[test]
    fn map_entries_are_laid_out_as_in_c() {
        assert_layout(
            object::sk_msg(),
            "channel_key",
            layout!(ChannelKey: sender, channel),
        );
        assert_layout(
            object::sk_msg(),
            "channel_route",
            layout!(ChannelRoute: record_count, receiver, padding),
        );
    }
}
