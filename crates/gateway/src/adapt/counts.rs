//! What the adapters count, shown as metrics only where an adapter is served.

use std::fmt::{Debug, Error};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

type NoExemplar<'a> = Option<&'a Exemplar<[(&'static str, &'static str); 0], u64>>;

/// A counter, or a gauge with [`Count::less`].
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn less(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Of MQTT.
#[derive(Debug, Default)]
pub(crate) struct MqttCounts {
    /// Clients that are connected.
    pub clients: Count,
    /// Messages that came.
    pub messages: Count,
    /// Messages that called nobody.
    pub unmatched: Count,
    /// Results and responses sent to subscribers.
    pub sent: Count,
    /// Those lost because a subscriber was slow, or they were larger than it takes.
    pub lost: Count,
    ends: Mutex<Vec<(&'static str, u64)>>,
}

impl MqttCounts {
    /// A connection that the gateway ended or did not let begin. Rare, hence the lock.
    pub(crate) fn ended(&self, why: &'static str) {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        match ends.iter_mut().find(|(known, _)| *known == why) {
            Some((_, count)) => *count += 1,
            None => ends.push((why, 1)),
        }
    }
}

/// Of CoAP.
#[derive(Debug, Default)]
pub(crate) struct CoapCounts {
    /// Datagrams that came.
    pub datagrams: Count,
    /// Datagrams that are not CoAP, or that nobody asked for.
    pub malformed: Count,
    /// Requests that came again, answered from memory.
    pub duplicates: Count,
    /// Messages that were sent again.
    pub retransmissions: Count,
    /// Answers made smaller, or refused, because the client's address was not proven.
    pub challenged: Count,
    /// Requests refused because of a limit.
    pub refused: Count,
    /// Notifications sent to observers.
    pub notifications: Count,
    /// Observations.
    pub observers: Count,
}

/// Shows an adapter's counts at each scrape.
#[derive(Debug)]
pub(super) struct Shown<T>(pub(super) Arc<T>);

fn counter(to: &mut DescriptorEncoder, name: &str, help: &str, value: &Count) -> Result<(), Error> {
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    metric.encode_counter(&value.get(), None as NoExemplar)
}

fn gauge(to: &mut DescriptorEncoder, name: &str, help: &str, value: &Count) -> Result<(), Error> {
    to.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value.get())
}

impl Collector for Shown<MqttCounts> {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        let counts = &*self.0;
        gauge(&mut to, "nearpath_mqtt_clients", "MQTT clients that are connected", &counts.clients)?;
        counter(&mut to, "nearpath_mqtt_messages", "MQTT messages that came", &counts.messages)?;
        counter(&mut to, "nearpath_mqtt_unmatched", "MQTT messages that called nobody", &counts.unmatched)?;
        counter(&mut to, "nearpath_mqtt_sent", "Results sent to MQTT subscribers", &counts.sent)?;
        counter(&mut to, "nearpath_mqtt_lost", "Results lost: subscriber too slow, or too large for it", &counts.lost)?;
        let help = "MQTT connections that the gateway ended or refused";
        let mut metric = to.encode_descriptor("nearpath_mqtt_ended", help, None, MetricType::Counter)?;
        for (why, count) in counts.ends.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            metric.encode_family(&[("reason", *why)])?.encode_counter(count, None as NoExemplar)?;
        }
        Ok(())
    }
}

impl Collector for Shown<CoapCounts> {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        let counts = &*self.0;
        for (name, help, value) in [
            ("nearpath_coap_datagrams", "CoAP datagrams that came", &counts.datagrams),
            ("nearpath_coap_malformed", "Datagrams that are not CoAP", &counts.malformed),
            ("nearpath_coap_duplicates", "CoAP requests that came again", &counts.duplicates),
            ("nearpath_coap_retransmissions", "CoAP messages that were sent again", &counts.retransmissions),
            ("nearpath_coap_challenged", "CoAP answers cut short: address not proven", &counts.challenged),
            ("nearpath_coap_refused", "CoAP requests refused because of a limit", &counts.refused),
            ("nearpath_coap_notifications", "CoAP notifications sent to observers", &counts.notifications),
        ] {
            counter(&mut to, name, help, value)?;
        }
        gauge(&mut to, "nearpath_coap_observers", "CoAP observations", &counts.observers)
    }
}
