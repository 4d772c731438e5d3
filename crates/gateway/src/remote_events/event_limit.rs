//! Limit of the events that are being sent to other nodes, for each publisher.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use nearpath_types::FunctionId;

/// Maximum of events of one function that are being sent: 64 MiB with the largest bodies.
const MAX_OPEN_EVENTS: usize = 64;

/// Open events by publisher.
#[derive(Debug, Default)]
pub(super) struct EventLimit(RefCell<HashMap<FunctionId, usize>>);

/// Right of one event to be sent, until it is dropped.
#[derive(Debug)]
pub(super) struct EventPermit {
    limit: Rc<EventLimit>,
    publisher: FunctionId,
}

impl EventLimit {
    /// Admits an event of `publisher`; `None` if it has [`MAX_OPEN_EVENTS`] open ones.
    pub(super) fn try_admit(limit: &Rc<Self>, publisher: &FunctionId) -> Option<EventPermit> {
        let mut open = limit.0.borrow_mut();
        let count = open.entry(publisher.clone()).or_default();
        if *count == MAX_OPEN_EVENTS {
            return None;
        }
        *count += 1;
        Some(EventPermit {
            limit: limit.clone(),
            publisher: publisher.clone(),
        })
    }
}

impl Drop for EventPermit {
    fn drop(&mut self) {
        let mut open = self.limit.0.borrow_mut();
        let Some(count) = open.get_mut(&self.publisher) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            open.remove(&self.publisher);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publisher_takes_no_permit_of_another() {
        let (limit, [shop, stock]) = (
            Rc::new(EventLimit::default()),
            ["shop", "stock"].map(|name| name.parse::<FunctionId>().unwrap()),
        );
        let admit = |publisher| EventLimit::try_admit(&limit, publisher);
        let mut admitted: Vec<_> = (0..MAX_OPEN_EVENTS)
            .map(|_| admit(&shop).unwrap())
            .collect();
        assert!(admit(&shop).is_none());
        assert!(admit(&stock).is_some());
        admitted.pop();
        let last = admit(&shop);
        assert!(last.is_some() && admit(&shop).is_none());
        drop((admitted, last));
        assert!(limit.0.borrow().is_empty());
    }
}
