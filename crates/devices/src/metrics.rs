//! Counters of the device protocols, registered only for protocols that are served.

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

/// A counter, or a gauge where the value can also fall.
#[derive(Debug, Default)]
pub(crate) struct MetricCell(AtomicU64);

impl MetricCell {
    pub(crate) fn increment(&self) {
        // Relaxed, here and below: a cell is read alone by a scrape and guards no other data.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of MQTT.
#[derive(Debug, Default)]
pub(crate) struct MqttMetrics {
    /// Connected clients.
    pub clients: MetricCell,
    /// Messages received.
    pub messages: MetricCell,
    /// Messages whose topic matched no function.
    pub unmatched: MetricCell,
    /// Results and responses sent to subscribers.
    pub sent: MetricCell,
    /// Results dropped: the subscriber was slow, or accepts only smaller packets.
    pub lost: MetricCell,
    disconnects: Mutex<Vec<(&'static str, u64)>>,
}

impl MqttMetrics {
    /// Counts a connection that the gateway ended or refused. Rare, so a lock is cheap enough.
    pub(crate) fn count_disconnect(&self, reason: &'static str) {
        let mut disconnects = self
            .disconnects
            .lock()
            // A counter is valid after any panic, and metrics must not spread it.
            .unwrap_or_else(PoisonError::into_inner);
        // Scanned: `DisconnectReason` has 18 names, fewer than hashing would pay for.
        match disconnects.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => disconnects.push((reason, 1)),
        }
    }
}

/// Counters of CoAP.
#[derive(Debug, Default)]
pub(crate) struct CoapMetrics {
    /// Datagrams received.
    pub datagrams: MetricCell,
    /// Datagrams that are not CoAP, or answer no request.
    pub malformed: MetricCell,
    /// Repeated requests, answered from memory.
    pub duplicates: MetricCell,
    /// Messages sent again.
    pub retransmissions: MetricCell,
    /// Responses shortened or refused because the client's address was not proven.
    pub challenged: MetricCell,
    /// Requests refused by a limit.
    pub refused: MetricCell,
    /// Notifications sent to observers.
    pub notifications: MetricCell,
    /// Active observations.
    pub observers: MetricCell,
}

/// Encodes a protocol's counters at each scrape.
#[derive(Debug)]
pub(super) struct MetricsCollector<T>(pub(super) Arc<T>);

fn encode_counter(
    to: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    value: &MetricCell,
) -> Result<(), Error> {
    let mut metric = to.encode_descriptor(name, help, None, MetricType::Counter)?;
    metric.encode_counter(&value.get(), None as NoExemplar)
}

fn encode_gauge(
    to: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    value: &MetricCell,
) -> Result<(), Error> {
    to.encode_descriptor(name, help, None, MetricType::Gauge)?
        .encode_gauge(&value.get())
}

impl Collector for MetricsCollector<MqttMetrics> {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        let metrics = &*self.0;
        encode_gauge(
            &mut to,
            "nearpath_mqtt_clients",
            "Connected MQTT clients",
            &metrics.clients,
        )?;
        encode_counter(
            &mut to,
            "nearpath_mqtt_messages",
            "MQTT messages received",
            &metrics.messages,
        )?;
        encode_counter(
            &mut to,
            "nearpath_mqtt_unmatched",
            "MQTT messages whose topic matched no function",
            &metrics.unmatched,
        )?;
        encode_counter(
            &mut to,
            "nearpath_mqtt_sent",
            "Results sent to MQTT subscribers",
            &metrics.sent,
        )?;
        encode_counter(
            &mut to,
            "nearpath_mqtt_lost",
            "Results dropped: subscriber too slow, or packet too large for it",
            &metrics.lost,
        )?;
        let help = "MQTT connections that the gateway ended or refused";
        let mut metric =
            to.encode_descriptor("nearpath_mqtt_ended", help, None, MetricType::Counter)?;
        for (reason, count) in metrics
            .disconnects
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            metric
                .encode_family(&[("reason", *reason)])?
                .encode_counter(count, None as NoExemplar)?;
        }
        Ok(())
    }
}

impl Collector for MetricsCollector<CoapMetrics> {
    fn encode(&self, mut to: DescriptorEncoder) -> Result<(), Error> {
        let metrics = &*self.0;
        for (name, help, value) in [
            (
                "nearpath_coap_datagrams",
                "CoAP datagrams received",
                &metrics.datagrams,
            ),
            (
                "nearpath_coap_malformed",
                "Datagrams that are not CoAP",
                &metrics.malformed,
            ),
            (
                "nearpath_coap_duplicates",
                "Repeated CoAP requests",
                &metrics.duplicates,
            ),
            (
                "nearpath_coap_retransmissions",
                "CoAP messages sent again",
                &metrics.retransmissions,
            ),
            (
                "nearpath_coap_challenged",
                "CoAP responses shortened: address not proven",
                &metrics.challenged,
            ),
            (
                "nearpath_coap_refused",
                "CoAP requests refused by a limit",
                &metrics.refused,
            ),
            (
                "nearpath_coap_notifications",
                "CoAP notifications sent to observers",
                &metrics.notifications,
            ),
        ] {
            encode_counter(&mut to, name, help, value)?;
        }
        encode_gauge(
            &mut to,
            "nearpath_coap_observers",
            "CoAP observations",
            &metrics.observers,
        )
    }
}
