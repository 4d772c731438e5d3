//! Limit of the events that are being sent to other nodes, for each publisher and subscriber.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use nearpath_types::FunctionId;

/// Maximum of events from one function to another that are being sent: 16 MiB with the largest bodies.
const MAX_OPEN_EVENTS: usize = 64;

/// Publisher and subscriber.
type EventEdge = (FunctionId, FunctionId);

/// Open events by publisher and subscriber.
#[derive(Debug, Default)]
pub(super) struct EventLimit(RefCell<HashMap<EventEdge, usize>>);

/// Right of one event to be sent, until it is dropped.
#[derive(Debug)]
pub(super) struct EventPermit {
    limit: Rc<EventLimit>,
    edge: EventEdge,
}

impl EventLimit {
    /// Admits an event; `None` if `publisher` has [`MAX_OPEN_EVENTS`] open ones to `subscriber`.
    pub(super) fn try_admit(
        limit: &Rc<Self>,
        publisher: &FunctionId,
        subscriber: &FunctionId,
    ) -> Option<EventPermit> {
        let edge = (publisher.clone(), subscriber.clone());
        let mut open = limit.0.borrow_mut();
        let count = open.entry(edge.clone()).or_default();
        if *count == MAX_OPEN_EVENTS {
            return None;
        }
        *count += 1;
        Some(EventPermit {
            limit: limit.clone(),
            edge,
        })
    }
}

impl Drop for EventPermit {
    fn drop(&mut self) {
        let mut open = self.limit.0.borrow_mut();
        let Some(count) = open.get_mut(&self.edge) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            open.remove(&self.edge);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_subscriber_takes_no_permit_of_another() {
        let (limit, [shop, mail, audit]) = (
            Rc::new(EventLimit::default()),
            ["shop", "mail", "audit"].map(|name| name.parse::<FunctionId>().unwrap()),
        );
        let admit = |subscriber| EventLimit::try_admit(&limit, &shop, subscriber);
        let mut admitted: Vec<_> = (0..MAX_OPEN_EVENTS)
            .map(|_| admit(&mail).unwrap())
            .collect();
        assert!(admit(&mail).is_none());
        assert!(admit(&audit).is_some());
        admitted.pop();
        let last = admit(&mail);
        assert!(last.is_some() && admit(&mail).is_none());
        drop((admitted, last));
        assert!(limit.0.borrow().is_empty());
    }
}
