//! Who wants which results. A result is handed to each client once, whatever number of its subscriptions selects it, and
//! lost to clients whose queue is full.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use super::packet::Publish;
use crate::adapt::MqttCounts;
use crate::adapt::tree::Tree;

/// Bytes of payload that may wait for one client, beside their number.
const WAITING_BYTES: usize = 4 << 20;

/// All subscriptions.
pub(super) struct Hub {
    tree: RefCell<Tree<u64, (Rc<Mailbox>, u8)>>,
    names: RefCell<HashMap<Arc<str>, Rc<Mailbox>>>,
    last: Cell<u64>,
    queue: usize,
    counts: Arc<MqttCounts>,
}

/// What waits for one client.
pub(super) struct Mailbox {
    /// Differs from all other connections'.
    pub key: u64,
    name: Arc<str>,
    waiting: RefCell<VecDeque<Publish>>,
    bytes: Cell<usize>,
    taken_over: Cell<bool>,
    news: Notify,
}

impl Hub {
    pub(super) fn new(queue: usize, counts: Arc<MqttCounts>) -> Self {
        let (tree, names) = (RefCell::default(), RefCell::default());
        Self { tree, names, last: Cell::new(0), queue, counts }
    }

    /// A client of that name is there; an older one of the same name has to go.
    pub(super) fn enter(&self, name: Arc<str>) -> Rc<Mailbox> {
        self.last.set(self.last.get() + 1);
        let mailbox = Rc::new(Mailbox {
            key: self.last.get(),
            name: name.clone(),
            waiting: RefCell::default(),
            bytes: Cell::new(0),
            taken_over: Cell::new(false),
            news: Notify::new(),
        });
        if let Some(old) = self.names.borrow_mut().insert(name, mailbox.clone()) {
            old.taken_over.set(true);
            old.news.notify_one();
        }
        mailbox
    }

    /// A client goes, with its subscriptions.
    pub(super) fn leave<'a>(&self, mailbox: &Mailbox, filters: impl Iterator<Item = &'a Arc<str>>) {
        let mut tree = self.tree.borrow_mut();
        for filter in filters {
            tree.remove(filter, &mailbox.key);
        }
        let mut names = self.names.borrow_mut();
        if names.get(&mailbox.name).is_some_and(|known| known.key == mailbox.key) {
            names.remove(&mailbox.name);
        }
    }

    /// Hangs a subscription up.
    pub(super) fn subscribe(&self, mailbox: &Rc<Mailbox>, filter: &str, qos: u8) {
        self.tree.borrow_mut().insert(filter, mailbox.key, (mailbox.clone(), qos));
    }

    /// Takes a subscription down.
    pub(super) fn unsubscribe(&self, mailbox: &Mailbox, filter: &str) {
        self.tree.borrow_mut().remove(filter, &mailbox.key);
    }

    /// Hands a result, which bears QoS 1 when its call did, to everybody who wants it.
    pub(super) fn publish(&self, result: &Publish) {
        let tree = self.tree.borrow();
        let mut wanted: BTreeMap<u64, (&Rc<Mailbox>, u8)> = BTreeMap::new();
        tree.select(&result.topic, &mut |key, (mailbox, qos)| {
            let known = wanted.entry(*key).or_insert((mailbox, *qos));
            known.1 = known.1.max(*qos);
        });
        for (mailbox, qos) in wanted.into_values() {
            mailbox.put(Publish { qos: qos.min(result.qos), ..result.clone() }, self);
        }
    }
}

impl Mailbox {
    fn put(&self, result: Publish, hub: &Hub) {
        let mut waiting = self.waiting.borrow_mut();
        let bytes = self.bytes.get() + result.payload.len();
        if waiting.len() >= hub.queue || (bytes > WAITING_BYTES && !waiting.is_empty()) {
            return hub.counts.lost.more();
        }
        self.bytes.set(bytes);
        waiting.push_back(result);
        self.news.notify_one();
    }

    /// The next message, if `room` says that it may be sent now.
    pub(super) fn take(&self, room: impl Fn(&Publish) -> bool) -> Option<Publish> {
        let mut waiting = self.waiting.borrow_mut();
        let next = waiting.front().is_some_and(room).then(|| waiting.pop_front()).flatten()?;
        self.bytes.set(self.bytes.get() - next.payload.len());
        Some(next)
    }

    /// Waits for a message, or for the end.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    /// Whether another client took the name.
    pub(super) fn is_taken_over(&self) -> bool {
        self.taken_over.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(topic: &str) -> Publish {
        Publish { topic: topic.into(), qos: 1, payload: "x".into(), ..Publish::default() }
    }

    #[test]
    fn a_result_comes_once_with_the_best_quality_that_was_asked_for() {
        let hub = Hub::new(2, Arc::default());
        let client = hub.enter("a".into());
        hub.subscribe(&client, "functions/+/result", 0);
        hub.subscribe(&client, "#", 1);
        hub.publish(&result("functions/echo/result"));
        assert_eq!(client.take(|_| true).map(|result| result.qos), Some(1));
        assert_eq!(client.take(|_| true), None);
    }

    #[test]
    fn a_full_queue_loses_the_newest() {
        let counts = Arc::<MqttCounts>::default();
        let hub = Hub::new(2, counts.clone());
        let client = hub.enter("a".into());
        hub.subscribe(&client, "#", 0);
        ["1", "2", "3"].iter().for_each(|topic| hub.publish(&result(topic)));
        let taken: Vec<_> =
            std::iter::from_fn(|| client.take(|_| true)).map(|result| result.topic.to_string()).collect();
        assert_eq!(taken, ["1", "2"]);
        assert!(format!("{:?}", counts.lost).contains('1'));
    }

    #[test]
    fn a_name_belongs_to_the_last_who_took_it() {
        let hub = Hub::new(2, Arc::default());
        let (old, new) = (hub.enter("a".into()), hub.enter("a".into()));
        assert!(old.is_taken_over() && !new.is_taken_over());
        hub.leave(&old, std::iter::empty());
        hub.enter("a".into());
        assert!(new.is_taken_over(), "the old one's leaving does not free the name");
    }
}
