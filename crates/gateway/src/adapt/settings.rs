//! What one client of an adapter may take. The defaults are meant to be kept.

use std::time::Duration;

/// Limits of MQTT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MqttLimits {
    /// Clients at a time; more are turned away.
    pub clients: usize,
    /// Largest packet, in bytes, in either direction.
    pub packet: usize,
    /// Messages of one client that are at functions at a time. Above: the client is not read from.
    pub in_flight: usize,
    /// Subscriptions of one client.
    pub subscriptions: usize,
    /// Messages that wait for one client. Above: new ones are lost to it.
    pub queue: usize,
    /// Longest keep-alive; who asks for a longer one, or none, gets this.
    pub keep_alive: Duration,
    /// From connecting to the end of the first packet, and for a client to take what it is sent.
    pub patience: Duration,
}

impl Default for MqttLimits {
    fn default() -> Self {
        Self {
            clients: 4_096,
            packet: 256 << 10,
            in_flight: 16,
            subscriptions: 64,
            queue: 256,
            keep_alive: Duration::from_secs(600),
            patience: Duration::from_secs(10),
        }
    }
}

/// Limits of CoAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoapLimits {
    /// Requests at functions at a time, of all clients.
    pub in_flight: usize,
    /// The same of one client.
    pub in_flight_each: usize,
    /// Largest body, in bytes, in either direction: block-wise transfers are put together up to it.
    pub body: usize,
    /// Bytes of block-wise transfers and remembered answers that are kept for all clients.
    pub memory: usize,
    /// Block-wise transfers of one client at a time, in each direction.
    pub transfers: usize,
    /// Observations, of all clients.
    pub observers: usize,
    /// The same of one client.
    pub observers_each: usize,
    /// How often an observed function is called.
    pub observe_interval: Duration,
    /// Loopback addresses are believed: nobody can forge them from outside.
    pub trust_loopback: bool,
}

impl Default for CoapLimits {
    fn default() -> Self {
        Self {
            in_flight: 1_024,
            in_flight_each: 16,
            body: 1 << 20,
            memory: 16 << 20,
            transfers: 4,
            observers: 1_024,
            observers_each: 8,
            observe_interval: Duration::from_secs(10),
            trust_loopback: true,
        }
    }
}
