//! MQTT and CoAP, adapted to the path that every request takes.
//!
//! Each protocol is a [`LocalService`] of the gateway: its task runs on one serving thread, turns
//! messages into invocations and responses into messages. Routing, admission, delivery and records
//! are the gateway's. Decisions are pure state machines ([`mqtt::session`](mqtt),
//! [`coap::endpoint`](coap)); the task around each has the sockets and the clock, and its clients
//! share state without locks. A protocol without a listener costs no thread, task or memory.
#![forbid(unsafe_code)]

mod coap;
mod filter_tree;
#[doc(hidden)]
pub mod fuzz;
mod limits;
mod metrics;
mod mqtt;
mod topic_routes;
mod url_encoding;

use std::sync::Arc;

use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_gateway::Gateway;

pub use coap::CoapListener;
pub use limits::{CoapLimits, MqttLimits};
pub use mqtt::{MqttListener, PasswordCheck, PasswordVerdict};

/// The device protocols to serve.
#[derive(Default)]
pub struct Devices {
    /// MQTT 3.1.1 and 5.
    pub mqtt: Option<MqttListener>,
    /// CoAP over UDP.
    pub coap: Option<CoapListener>,
}

impl Devices {
    /// Adds the listeners to the gateway, and their counters to `registry`. To be called before
    /// [`Gateway::serve`].
    pub fn attach(self, mut gateway: Gateway, registry: &MetricsRegistry) -> Gateway {
        if let Some(listener) = self.mqtt {
            gateway = gateway.with_service(Arc::new(mqtt::MqttService::new(listener, registry)));
        }
        if let Some(listener) = self.coap {
            gateway = gateway.with_service(Arc::new(coap::CoapService::new(listener, registry)));
        }
        gateway
    }
}
