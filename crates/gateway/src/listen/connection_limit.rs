//! Limit of a socket's connections, with a share for each source (ADR 73).
//!
//! A source holds at most half of the connections. The other half stays free for other callers,
//! however many connections one source opens. When several sources hold all of them, a reserve
//! still serves `/system` and `/healthz`.
//!
//! Over QUIC, an address is that of its source only when it is validated (RFC 9000 section 8). Until
//! then its connection counts for no source, and such connections get half of the limit at most.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use nearpath_types::SourceNetwork;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections for `/system` and `/healthz` on each thread, when all regular ones are in use.
const RESERVE_CONNECTIONS: usize = 16;

/// Open connections of each source.
#[derive(Debug)]
struct SourceShares {
    max_per_source: usize,
    open: RefCell<HashMap<SourceNetwork, usize>>,
}

impl SourceShares {
    fn try_add(&self, source: SourceNetwork) -> bool {
        let mut open = self.open.borrow_mut();
        let count = open.entry(source).or_insert(0);
        let has_room = *count < self.max_per_source;
        *count += usize::from(has_room);
        has_room
    }

    fn remove(&self, source: SourceNetwork) {
        let mut open = self.open.borrow_mut();
        if let Some(count) = open.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                open.remove(&source);
            }
        }
    }
}

/// Connections of one socket that have the same rights.
#[derive(Debug, Clone)]
struct ConnectionPool {
    permits: Arc<Semaphore>,
    shares: Rc<SourceShares>,
    max_connections: usize,
}

impl ConnectionPool {
    fn new(max_connections: usize, max_per_source: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(max_connections)),
            shares: Rc::new(SourceShares {
                max_per_source,
                open: RefCell::default(),
            }),
            max_connections,
        }
    }

    async fn wait_for_room(&self) -> OwnedSemaphorePermit {
        let permits = self.permits.clone();
        permits
            .acquire_owned()
            .await
            .expect("this semaphore is never closed")
    }

    fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
    }

    async fn wait_until_unused(&self) {
        let all = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        let _permits = self.permits.acquire_many(all).await;
    }
}

/// Limit of the connections of one socket.
#[derive(Debug, Clone)]
pub(super) struct ConnectionLimit {
    regular: ConnectionPool,
    reserve: ConnectionPool,
}

/// Room for a connection, whose source is not known yet.
#[derive(Debug)]
pub(super) struct ConnectionRoom {
    _permit: OwnedSemaphorePermit,
    is_reserve: bool,
}

impl ConnectionRoom {
    fn new(permit: OwnedSemaphorePermit, is_reserve: bool) -> Self {
        Self {
            _permit: permit,
            is_reserve,
        }
    }
}

impl ConnectionLimit {
    /// Creates a limit of `max_connections`, at least 1, with a reserve.
    pub(super) fn new(max_connections: usize) -> Self {
        Self::with_sources(max_connections, 2)
    }

    /// Does the same, with room for `min_sources` sources.
    pub(super) fn with_sources(max_connections: usize, min_sources: usize) -> Self {
        let max_connections = max_connections.max(1);
        Self {
            regular: ConnectionPool::new(max_connections, max_connections.div_ceil(min_sources)),
            reserve: ConnectionPool::new(RESERVE_CONNECTIONS, RESERVE_CONNECTIONS / 4),
        }
    }

    /// Waits for room for a connection of any source.
    pub(super) async fn wait_for_room(&self) -> ConnectionRoom {
        tokio::select! {
            biased;
            permit = self.regular.wait_for_room() => ConnectionRoom::new(permit, false),
            permit = self.reserve.wait_for_room() => ConnectionRoom::new(permit, true),
        }
    }

    /// Admits a connection, for which there is room; `None`: its source has its share already.
    pub(super) fn admit_source(
        &self,
        room: ConnectionRoom,
        addr: IpAddr,
    ) -> Option<ConnectionPermit> {
        let pool = if room.is_reserve {
            &self.reserve
        } else {
            &self.regular
        };
        let mut permit = ConnectionPermit {
            room,
            source: None,
            shares: pool.shares.clone(),
        };
        permit.charge_source(addr).then_some(permit)
    }

    /// Admits a connection of a validated address if there is room for it and for its source.
    pub(super) fn try_admit(&self, addr: IpAddr) -> Option<ConnectionPermit> {
        let room = match self.regular.try_acquire() {
            Some(permit) => ConnectionRoom::new(permit, false),
            None => ConnectionRoom::new(self.reserve.try_acquire()?, true),
        };
        self.admit_source(room, addr)
    }

    /// Admits a connection whose address is not validated, if less than half of the limit is in
    /// use. [`ConnectionPermit::charge_source`] follows after the validation.
    pub(super) fn try_admit_unvalidated(&self) -> Option<ConnectionPermit> {
        let in_use = self.regular.max_connections - self.regular.permits.available_permits();
        if in_use >= self.regular.max_connections.div_ceil(2) {
            return None;
        }
        Some(ConnectionPermit {
            room: ConnectionRoom::new(self.regular.try_acquire()?, false),
            source: None,
            shares: self.regular.shares.clone(),
        })
    }

    /// Returns whether there is room for a connection, of the reserve at least.
    pub(super) fn has_room(&self) -> bool {
        [&self.regular, &self.reserve]
            .iter()
            .any(|pool| pool.permits.available_permits() > 0)
    }

    /// Waits until no connection is open.
    pub(super) async fn wait_until_unused(&self) {
        self.regular.wait_until_unused().await;
        self.reserve.wait_until_unused().await;
    }
}

/// Right to one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    room: ConnectionRoom,
    /// `None` until the address is validated.
    source: Option<SourceNetwork>,
    shares: Rc<SourceShares>,
}

impl ConnectionPermit {
    /// Whether the connection serves `/system` and `/healthz` only.
    pub(super) fn is_reserve(&self) -> bool {
        self.room.is_reserve
    }

    /// Counts the connection for its source, unless it counts already. False: the source has its
    /// share, and the connection must end.
    pub(super) fn charge_source(&mut self, addr: IpAddr) -> bool {
        let source = SourceNetwork::of(addr);
        if self.source.is_none() && self.shares.try_add(source) {
            self.source = Some(source);
        }
        self.source.is_some()
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(source) = self.source {
            self.shares.remove(source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit_many(limit: &ConnectionLimit, addr: &str, count: usize) -> Vec<ConnectionPermit> {
        let addr = addr.parse().unwrap();
        let admitted = (0..count).filter_map(|_| limit.try_admit(addr));
        admitted.filter(|permit| !permit.is_reserve()).collect()
    }

    #[test]
    fn one_source_leaves_half_of_the_connections_to_others() {
        let limit = ConnectionLimit::new(9);
        let first = admit_many(&limit, "192.0.2.1", 20);
        let second = admit_many(&limit, "192.0.2.2", 20);
        assert_eq!((first.len(), second.len()), (5, 4));
        assert!(admit_many(&limit, "192.0.2.3", 1).is_empty());
        drop(first);
        assert_eq!(admit_many(&limit, "192.0.2.1", 20).len(), 5);
        drop(second);
        assert!(
            limit.regular.shares.open.borrow().is_empty(),
            "no source is kept"
        );
    }

    #[tokio::test]
    async fn a_reserve_serves_when_several_sources_hold_all_connections() {
        let limit = ConnectionLimit::new(4);
        let mut all = admit_many(&limit, "192.0.2.1", 2);
        all.extend(admit_many(&limit, "192.0.2.2", 2));
        let mut reserved = Vec::new();
        for _ in 0..RESERVE_CONNECTIONS {
            let room = limit.wait_for_room().await;
            reserved.extend(limit.admit_source(room, "192.0.2.1".parse().unwrap()));
        }
        assert_eq!(reserved.len(), RESERVE_CONNECTIONS / 4);
        assert!(reserved.iter().all(ConnectionPermit::is_reserve));
        let room = limit.wait_for_room().await;
        let other = limit.admit_source(room, "192.0.2.3".parse().unwrap());
        assert!(other.is_some_and(|permit| permit.is_reserve()));
        all.clear();
        assert!(!limit.wait_for_room().await.is_reserve);
    }

    #[test]
    fn connections_of_unvalidated_addresses_use_up_no_share() {
        let limit = ConnectionLimit::new(8);
        let addr: IpAddr = "192.0.2.1".parse().unwrap();
        let forged: Vec<_> = std::iter::from_fn(|| limit.try_admit_unvalidated()).collect();
        assert_eq!(forged.len(), 4);
        let mut proven = admit_many(&limit, "192.0.2.1", 3);
        assert_eq!(proven.len(), 3);
        drop(forged);
        let mut late: Vec<_> = std::iter::from_fn(|| limit.try_admit_unvalidated()).collect();
        assert_eq!(late.len(), 1, "three are in use");
        assert!(late[0].charge_source(addr) && late[0].charge_source(addr));
        proven.pop();
        let mut other = limit.try_admit_unvalidated().unwrap();
        assert!(other.charge_source(addr));
        drop((late, other));
        assert_eq!(admit_many(&limit, "192.0.2.1", 9).len(), 2, "of 4 in all");
    }

    #[test]
    fn the_only_connection_is_for_any_source() {
        let limit = ConnectionLimit::new(1);
        let addr = "192.0.2.1".parse().unwrap();
        let permits = [limit.try_admit(addr), limit.try_admit(addr)];
        let on_reserve = permits.map(|permit| permit.unwrap().is_reserve());
        assert_eq!(on_reserve, [false, true]);
    }
}
