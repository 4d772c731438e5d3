//! Places of events that a thread sends to other nodes. Each publisher has its share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use nearpath_types::FunctionId;

/// Events of one function that a thread sends at a time. With bodies of the maximum size they hold 64 MiB.
const MAX_OPEN_EVENTS: usize = 64;

/// Open events by publisher.
#[derive(Debug, Default)]
pub(super) struct EventPlaces(RefCell<HashMap<FunctionId, usize>>);

/// The place of an event until it is dropped.
#[derive(Debug)]
pub(super) struct EventPlace {
    places: Rc<EventPlaces>,
    publisher: FunctionId,
}

impl EventPlaces {
    /// Takes a place for an event of a function; `None`: all of its places are taken.
    pub(super) fn take(places: &Rc<Self>, publisher: &FunctionId) -> Option<EventPlace> {
        let mut open = places.0.borrow_mut();
        let count = open.entry(publisher.clone()).or_default();
        if *count == MAX_OPEN_EVENTS {
            return None;
        }
        *count += 1;
        Some(EventPlace {
            places: places.clone(),
            publisher: publisher.clone(),
        })
    }
}

impl Drop for EventPlace {
    fn drop(&mut self) {
        let mut open = self.places.0.borrow_mut();
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
    fn a_publisher_takes_no_place_of_another() {
        let (places, [shop, stock]) = (
            Rc::new(EventPlaces::default()),
            ["shop", "stock"].map(|name| name.parse::<FunctionId>().unwrap()),
        );
        let take = |publisher| EventPlaces::take(&places, publisher);
        let mut taken: Vec<_> = (0..MAX_OPEN_EVENTS).map(|_| take(&shop).unwrap()).collect();
        assert!(take(&shop).is_none());
        assert!(take(&stock).is_some());
        taken.pop();
        let last = take(&shop);
        assert!(last.is_some() && take(&shop).is_none());
        drop((taken, last));
        assert!(places.0.borrow().is_empty());
    }
}
