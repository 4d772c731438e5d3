//! Limit of a socket's connections, with a share for each source (ADR 73).
//!
//! A source holds at most half of the connections. The other half stays free for other callers,
//! however many connections one source opens. When several sources hold all of them, a reserve
//! still serves `/system` and `/healthz`.

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
        let max_connections = max_connections.max(1);
        Self {
            regular: ConnectionPool::new(max_connections, max_connections.div_ceil(2)),
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
        let source = SourceNetwork::of(addr);
        pool.shares.try_add(source).then(|| ConnectionPermit {
            room,
            source,
            shares: pool.shares.clone(),
        })
    }

    /// Admits a connection if there is room for it and for its source. Does not use the reserve.
    pub(super) fn try_admit(&self, addr: IpAddr) -> Option<ConnectionPermit> {
        let permit = self.regular.permits.clone().try_acquire_owned().ok()?;
        let room = ConnectionRoom::new(permit, false);
        self.admit_source(room, addr)
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
    source: SourceNetwork,
    shares: Rc<SourceShares>,
}

impl ConnectionPermit {
    /// Whether the connection serves `/system` and `/healthz` only.
    pub(super) fn is_reserve(&self) -> bool {
        self.room.is_reserve
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.shares.remove(self.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit_many(limit: &ConnectionLimit, addr: &str, count: usize) -> Vec<ConnectionPermit> {
        let addr = addr.parse().unwrap();
        (0..count).filter_map(|_| limit.try_admit(addr)).collect()
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
    fn the_only_connection_is_for_any_source() {
        let limit = ConnectionLimit::new(1);
        assert_eq!(admit_many(&limit, "192.0.2.1", 2).len(), 1);
    }
}
