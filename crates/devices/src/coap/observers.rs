//! Observations (RFC 7641). An observed function is called at an interval, and at once after a CoAP
//! request changed its path. Observers are notified when the response differs from the last one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::message::{BlockOption, ResourceRequest};

/// The key of an observation: a client and its token.
pub(super) type ObserverKey = (SocketAddr, Vec<u8>);

/// Interval at which an unchanged response is sent again, to learn whether the observer is still
/// there.
const CONFIRM_INTERVAL: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
struct Observer {
    resource: ResourceRequest,
    block2: Option<BlockOption>,
    etag: Vec<u8>,
    sequence: u32,
    due: Instant,
    notified_at: Instant,
    /// A call is out, or the last notification is unacknowledged.
    busy: bool,
}

/// All observations.
#[derive(Debug)]
pub(super) struct Observers {
    all: HashMap<ObserverKey, Observer>,
    max_total: usize,
    max_per_client: usize,
    interval: Duration,
}

impl Observers {
    pub(super) fn new(max_total: usize, max_per_client: usize, interval: Duration) -> Self {
        Self {
            all: HashMap::new(),
            max_total,
            max_per_client,
            interval,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Begins an observation, or replaces the one of the same key; `None` at a limit.
    pub(super) fn add(
        &mut self,
        observer_key: ObserverKey,
        resource: ResourceRequest,
        block2: Option<BlockOption>,
        etag: Vec<u8>,
        now: Instant,
    ) -> Option<u32> {
        let sequence = self
            .all
            .remove(&observer_key)
            // Goes on from the old number: clients drop older ones as reordered (RFC 7641 section
            // 3.4).
            .map_or(1, |old| next_number(old.sequence));
        let of_client = self
            .all
            .keys()
            .filter(|(from, _)| *from == observer_key.0)
            .count();
        if self.all.len() >= self.max_total || of_client >= self.max_per_client {
            return None;
        }
        let observer = Observer {
            resource,
            block2,
            etag,
            sequence,
            due: now + self.interval,
            notified_at: now,
            busy: false,
        };
        self.all.insert(observer_key, observer);
        Some(sequence)
    }

    pub(super) fn remove(&mut self, observer_key: &ObserverKey) {
        self.all.remove(observer_key);
    }

    /// Handles the acknowledgement of the last notification.
    pub(super) fn acknowledged(&mut self, observer_key: &ObserverKey) {
        self.all
            .get_mut(observer_key)
            .into_iter()
            .for_each(|observer| observer.busy = false);
    }

    /// Makes the calls of a path's observers due.
    pub(super) fn mark_changed(&mut self, path: &[String], now: Instant) {
        self.all
            .values_mut()
            .filter(|observer| observer.resource.path == path)
            .for_each(|observer| observer.due = now);
    }

    /// Takes the calls that are due.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(ObserverKey, ResourceRequest)> {
        let due = self
            .all
            .iter_mut()
            .filter(|(_, observer)| !observer.busy && now >= observer.due);
        let called = due.map(|(observer_key, observer)| {
            // Due again an interval after the call began: slow functions are not called faster.
            (observer.busy, observer.due) = (true, now + self.interval);
            (observer_key.clone(), observer.resource.clone())
        });
        called.collect()
    }

    /// Postpones a call for which there was no capacity.
    pub(super) fn postpone(&mut self, observer_key: &ObserverKey, now: Instant) {
        if let Some(observer) = self.all.get_mut(observer_key) {
            (observer.busy, observer.due) = (false, now + self.interval);
        }
    }

    /// Handles a call's response; returns the notification to send, if any. An error ends the
    /// observation.
    pub(super) fn notification_for(
        &mut self,
        observer_key: &ObserverKey,
        etag: Vec<u8>,
        success: bool,
        now: Instant,
    ) -> Option<(u32, ResourceRequest, Option<BlockOption>)> {
        let observer = self.all.get_mut(observer_key)?;
        let (resource, block2) = (observer.resource.clone(), observer.block2);
        if !success {
            self.all.remove(observer_key);
            return Some((0, resource, block2));
        }
        // The hourly notification is sent although unchanged: its acknowledgement shows a live
        // client.
        if observer.etag == etag && now < observer.notified_at + CONFIRM_INTERVAL {
            observer.busy = false;
            return None;
        }
        (observer.etag, observer.notified_at, observer.sequence) =
            (etag, now, next_number(observer.sequence));
        Some((observer.sequence, resource, block2))
    }

    /// Returns the time at which the next call is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.all
            .values()
            .filter(|observer| !observer.busy)
            .map(|observer| observer.due)
            .min()
    }
}

/// Sequence numbers have 24 bits (RFC 7641 section 4.4).
fn next_number(sequence: u32) -> u32 {
    (sequence + 1) & 0xff_ffff
}
