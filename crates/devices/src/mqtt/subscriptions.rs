//! Subscriptions to results. Each client gets a result once, however many of its filters match; a
//! full queue drops it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use super::packet::Publish;
use crate::filter_tree::FilterTree;
use crate::metrics::MqttMetrics;

/// Bytes of payload queued for one client, beside the bound on their number.
const MAX_QUEUED_BYTES: usize = 4 << 20;

/// The subscriptions of all clients.
pub(super) struct Subscriptions {
    tree: RefCell<FilterTree<u64, (Rc<OutboundQueue>, u8)>>,
    by_client_id: RefCell<HashMap<Arc<str>, Rc<OutboundQueue>>>,
    last_key: Cell<u64>,
    max_queued: usize,
    metrics: Arc<MqttMetrics>,
}

/// Messages for one client.
pub(super) struct OutboundQueue {
    /// Unique among all connections, unlike the client's identifier.
    pub key: u64,
    client_id: Arc<str>,
    messages: RefCell<VecDeque<Publish>>,
    bytes: Cell<usize>,
    taken_over: Cell<bool>,
    wakeup: Notify,
}

impl Subscriptions {
    pub(super) fn new(max_queued: usize, metrics: Arc<MqttMetrics>) -> Self {
        let (tree, by_client_id) = (RefCell::default(), RefCell::default());
        Self {
            tree,
            by_client_id,
            last_key: Cell::new(0),
            max_queued,
            metrics,
        }
    }

    /// Registers a client. An older connection of the same identifier is taken over (MQTT 5.0
    /// section 3.1.4).
    pub(super) fn register(&self, client_id: Arc<str>) -> Rc<OutboundQueue> {
        self.last_key.set(self.last_key.get() + 1);
        let queue = Rc::new(OutboundQueue {
            key: self.last_key.get(),
            client_id: client_id.clone(),
            messages: RefCell::default(),
            bytes: Cell::new(0),
            taken_over: Cell::new(false),
            wakeup: Notify::new(),
        });
        // The old task may be waiting for its socket: the flag ends it at its next event.
        if let Some(old) = self
            .by_client_id
            .borrow_mut()
            .insert(client_id, queue.clone())
        {
            old.taken_over.set(true);
            old.wakeup.notify_one();
        }
        queue
    }

    /// Removes a client and its subscriptions.
    pub(super) fn unregister<'a>(
        &self,
        queue: &OutboundQueue,
        filters: impl Iterator<Item = &'a Arc<str>>,
    ) {
        let mut tree = self.tree.borrow_mut();
        for filter in filters {
            tree.remove(filter, &queue.key);
        }
        let mut by_client_id = self.by_client_id.borrow_mut();
        // A newer connection may own the identifier by now: its entry must stay.
        if by_client_id
            .get(&queue.client_id)
            .is_some_and(|entry| entry.key == queue.key)
        {
            by_client_id.remove(&queue.client_id);
        }
    }

    /// Adds a subscription.
    pub(super) fn subscribe(&self, queue: &Rc<OutboundQueue>, filter: &str, qos: u8) {
        self.tree
            .borrow_mut()
            .insert(filter, queue.key, (queue.clone(), qos));
    }

    /// Removes a subscription.
    pub(super) fn unsubscribe(&self, queue: &OutboundQueue, filter: &str) {
        self.tree.borrow_mut().remove(filter, &queue.key);
    }

    /// Queues a result for every subscriber. Its QoS is its call's, or the subscription's if that
    /// is lower.
    pub(super) fn publish(&self, message: &Publish) {
        let tree = self.tree.borrow();
        // One copy per client with the highest QoS that matched (MQTT 5.0 section 3.3.4).
        let mut receivers: BTreeMap<u64, (&Rc<OutboundQueue>, u8)> = BTreeMap::new();
        tree.select(&message.topic, &mut |key, (queue, qos)| {
            let entry = receivers.entry(*key).or_insert((queue, *qos));
            entry.1 = entry.1.max(*qos);
        });
        for (queue, qos) in receivers.into_values() {
            queue.push(
                Publish {
                    qos: qos.min(message.qos),
                    ..message.clone()
                },
                self,
            );
        }
    }
}

impl OutboundQueue {
    fn push(&self, message: Publish, subscriptions: &Subscriptions) {
        let mut messages = self.messages.borrow_mut();
        let bytes = self.bytes.get() + message.payload.len();
        if messages.len() >= subscriptions.max_queued
            // One message always fits, even if it alone is above the bound.
            || (bytes > MAX_QUEUED_BYTES && !messages.is_empty())
        {
            return subscriptions.metrics.lost.increment();
        }
        self.bytes.set(bytes);
        messages.push_back(message);
        self.wakeup.notify_one();
    }

    /// Takes the next message if `may_send` says that it may be sent now.
    pub(super) fn pop(&self, may_send: impl Fn(&Publish) -> bool) -> Option<Publish> {
        let mut messages = self.messages.borrow_mut();
        let next = messages
            .front()
            .is_some_and(may_send)
            .then(|| messages.pop_front())
            .flatten()?;
        self.bytes.set(self.bytes.get() - next.payload.len());
        Some(next)
    }

    /// Waits until a message is queued or the client is taken over.
    pub(super) async fn wait_changed(&self) {
        self.wakeup.notified().await;
    }

    /// Returns whether a newer connection uses the same identifier.
    pub(super) fn is_taken_over(&self) -> bool {
        self.taken_over.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(topic: &str) -> Publish {
        Publish {
            topic: topic.into(),
            qos: 1,
            payload: "x".into(),
            ..Publish::default()
        }
    }

    #[test]
    fn a_result_comes_once_with_the_highest_qos_of_the_matching_filters() {
        let subscriptions = Subscriptions::new(2, Arc::default());
        let client = subscriptions.register("a".into());
        subscriptions.subscribe(&client, "functions/+/result", 0);
        subscriptions.subscribe(&client, "#", 1);
        subscriptions.publish(&message("functions/echo/result"));
        assert_eq!(client.pop(|_| true).map(|message| message.qos), Some(1));
        assert_eq!(client.pop(|_| true), None);
    }

    #[test]
    fn a_full_queue_drops_the_newest_message() {
        let metrics = Arc::<MqttMetrics>::default();
        let subscriptions = Subscriptions::new(2, metrics.clone());
        let client = subscriptions.register("a".into());
        subscriptions.subscribe(&client, "#", 0);
        ["1", "2", "3"]
            .iter()
            .for_each(|topic| subscriptions.publish(&message(topic)));
        let taken: Vec<_> = std::iter::from_fn(|| client.pop(|_| true))
            .map(|message| message.topic.to_string())
            .collect();
        assert_eq!(taken, ["1", "2"]);
        assert!(format!("{:?}", metrics.lost).contains('1'));
    }

    #[test]
    fn the_newest_connection_owns_a_client_identifier() {
        let subscriptions = Subscriptions::new(2, Arc::default());
        let (old, new) = (
            subscriptions.register("a".into()),
            subscriptions.register("a".into()),
        );
        assert!(old.is_taken_over() && !new.is_taken_over());
        subscriptions.unregister(&old, std::iter::empty());
        subscriptions.register("a".into());
        assert!(
            new.is_taken_over(),
            "removing the old connection does not free the identifier"
        );
    }
}
