//! Limits for one client of a device protocol. The defaults are meant to be kept.

use std::time::Duration;

/// Limits of MQTT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MqttLimits {
    /// Clients at a time; more are refused.
    pub max_clients: usize,
    /// Largest packet, in bytes, in either direction.
    pub max_packet_bytes: usize,
    /// Messages of one client whose functions have not answered. Above: the client is not read from.
    pub max_in_flight: usize,
    /// Subscriptions of one client.
    pub max_subscriptions: usize,
    /// Messages queued for one client. Above: new ones are dropped.
    pub max_queued: usize,
    /// Longest keep-alive; a client that asks for a longer one, or none, gets this.
    pub max_keep_alive: Duration,
    /// Longest time from connecting to the end of the first packet, and for one write to a client.
    pub io_timeout: Duration,
}

impl Default for MqttLimits {
    fn default() -> Self {
        Self {
            max_clients: 4_096,
            max_packet_bytes: 256 << 10,
            max_in_flight: 16,
            max_subscriptions: 64,
            max_queued: 256,
            max_keep_alive: Duration::from_secs(600),
            io_timeout: Duration::from_secs(10),
        }
    }
}

/// Limits of CoAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoapLimits {
    /// Requests whose functions have not answered, of all clients.
    pub max_in_flight: usize,
    /// The same, of one client.
    pub max_in_flight_per_client: usize,
    /// Largest body, in bytes, in either direction; block-wise transfers are assembled up to it.
    pub max_body_bytes: usize,
    /// Bytes of block-wise transfers and remembered responses kept for all clients.
    pub max_memory_bytes: usize,
    /// Block-wise transfers of one client at a time, in each direction.
    pub max_transfers_per_client: usize,
    /// Observations, of all clients.
    pub max_observers: usize,
    /// The same, of one client.
    pub max_observers_per_client: usize,
    /// Interval at which an observed function is called.
    pub observe_interval: Duration,
    /// Accepts loopback addresses without proof: they cannot be forged from outside.
    pub trust_loopback: bool,
}

impl Default for CoapLimits {
    fn default() -> Self {
        Self {
            max_in_flight: 1_024,
            max_in_flight_per_client: 16,
            max_body_bytes: 1 << 20,
            max_memory_bytes: 16 << 20,
            max_transfers_per_client: 4,
            max_observers: 1_024,
            max_observers_per_client: 8,
            observe_interval: Duration::from_secs(10),
            trust_loopback: true,
        }
    }
}
