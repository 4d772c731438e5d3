//! Limits of the device protocols, per client and in total. Options of `nearpath up` set
//! `max_clients` and `observe_interval`; the others keep their defaults.

use std::time::Duration;

/// Limits of MQTT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MqttLimits {
    /// Clients at a time; more are refused.
    pub max_clients: usize,
    /// Largest packet, in bytes, in either direction.
    pub max_packet_bytes: usize,
    /// Messages of one client whose functions have not answered. At this number, nothing more is
    /// read from the client.
    pub max_in_flight: usize,
    /// Subscriptions of one client.
    pub max_subscriptions: usize,
    /// Messages queued for one client. Further ones are dropped.
    pub max_queued_messages: usize,
    /// Longest keep-alive; a client that asks for a longer one, or none, gets this.
    pub max_keep_alive: Duration,
    /// Longest time from the start of the connection to the CONNACK, and for one write to a client.
    pub io_timeout: Duration,
}

impl Default for MqttLimits {
    fn default() -> Self {
        Self {
            // Bounds sockets and memory. In the worst case each client has a queue of 4 MiB
            // (`MAX_QUEUED_BYTES` in mqtt/subscriptions.rs), 16 GiB in all. Subscribers of one
            // result share its payload.
            max_clients: 4_096,
            // The standard allows 256 MiB. A message is the body of one call and is in memory as a
            // whole.
            max_packet_bytes: 256 << 10,
            max_in_flight: 16,
            max_subscriptions: 64,
            max_queued_messages: 256,
            // A device that loses power sends no FIN: its connection is closed after 1.5 times this
            // interval (MQTT 5.0 section 3.1.2.10).
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
    /// Largest body, in bytes, in either direction, also of a block-wise transfer.
    pub max_body_bytes: usize,
    /// Bytes of block-wise transfers of all clients, in each direction. Responses that are kept to
    /// answer repeated requests may use another quarter.
    pub max_memory_bytes: usize,
    /// Block-wise transfers of one client at a time, in each direction.
    pub max_transfers_per_client: usize,
    /// Observations, of all clients.
    pub max_observers: usize,
    /// The same, of one client.
    pub max_observers_per_client: usize,
    /// Interval at which an observed function is called for its observers.
    pub observe_interval: Duration,
    /// Accepts clients on loopback without the proof of their address (RFC 9175): packets from
    /// outside cannot have such a source.
    pub trust_loopback: bool,
}

impl Default for CoapLimits {
    fn default() -> Self {
        Self {
            max_in_flight: 1_024,
            // A client should have 1 open request (NSTART, RFC 7252 section 4.7). A sensor gateway
            // sends the requests of many sensors from one address.
            max_in_flight_per_client: 16,
            max_body_bytes: 1 << 20,
            // With both directions and the quarter for responses: 36 MiB per CoAP task.
            max_memory_bytes: 16 << 20,
            max_transfers_per_client: 4,
            max_observers: 1_024,
            max_observers_per_client: 8,
            observe_interval: Duration::from_secs(10),
            trust_loopback: true,
        }
    }
}
