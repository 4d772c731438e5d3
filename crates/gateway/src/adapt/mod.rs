//! Protocols other than HTTP, adapted to the walk that every request takes.
//!
//! An adapter is a listener of [`Adapters`] that turns what its clients say into invocations ([`invoke`]) and the answers
//! back. Everything after that is the same path: route, admit, deliver, one completion record. What an adapter decides
//! is in pure state machines ([`mqtt::session`](mqtt), [`coap::endpoint`](coap)); its rim is one task on one gateway thread,
//! so that its clients share state without locks. An adapter that is not asked for is not there: no thread, task or memory.

mod coap;
mod counts;
#[doc(hidden)]
pub mod fuzz;
mod invoke;
mod mqtt;
mod rules;
mod settings;
mod tree;

use std::io;
use std::net::{TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;

use nearpath_daemon::drain;

pub(crate) use counts::{CoapCounts, MqttCounts};
pub use settings::{CoapLimits, MqttLimits};

use crate::lane::Lane;

/// Judges a user's name and password.
pub type Doorkeeper = Arc<dyn Fn(&str, &[u8]) -> bool + Send + Sync>;

/// The adapters to serve.
#[derive(Default)]
pub struct Adapters {
    /// MQTT 3.1.1 and 5.
    pub mqtt: Option<Mqtt>,
    /// CoAP over UDP.
    pub coap: Option<Coap>,
}

/// An MQTT listener.
pub struct Mqtt {
    /// Where clients connect.
    pub socket: TcpListener,
    /// What one client may take.
    pub limits: MqttLimits,
    /// Who may connect; `None`: everybody.
    pub doorkeeper: Option<Doorkeeper>,
}

/// A CoAP listener.
pub struct Coap {
    /// Where datagrams arrive.
    pub socket: UdpSocket,
    /// What one client may take.
    pub limits: CoapLimits,
}

/// An adapter as the thread that serves it gets it.
pub(crate) enum Adapter {
    Mqtt(Mqtt, Arc<MqttCounts>),
    Coap(Coap, Arc<CoapCounts>),
}

/// Adapters that were set up, with their counters.
#[derive(Default)]
pub(crate) struct Installed {
    adapters: Adapters,
    mqtt: Arc<MqttCounts>,
    coap: Arc<CoapCounts>,
}

impl Installed {
    /// Sets them up; those that are there show their counters in `registry`.
    pub(crate) fn new(adapters: Adapters, registry: &nearpath_daemon::metrics::Registry) -> Self {
        let installed = Self { adapters, ..Self::default() };
        registry.with(|registry| {
            if installed.adapters.mqtt.is_some() {
                registry.register_collector(Box::new(counts::Shown(installed.mqtt.clone())));
            }
            if installed.adapters.coap.is_some() {
                registry.register_collector(Box::new(counts::Shown(installed.coap.clone())));
            }
        });
        installed
    }

    /// The adapters that thread `number` of `threads` serves: MQTT on the first one, CoAP on the last.
    ///
    /// # Errors
    /// When a socket cannot be shared.
    pub(crate) fn on(&self, number: usize, threads: usize) -> io::Result<Vec<Adapter>> {
        let mut mine = Vec::new();
        if let Some(mqtt) = self.adapters.mqtt.as_ref().filter(|_| number == 0) {
            let (limits, doorkeeper) = (mqtt.limits.clone(), mqtt.doorkeeper.clone());
            let mqtt = Mqtt { socket: mqtt.socket.try_clone()?, limits, doorkeeper };
            mine.push(Adapter::Mqtt(mqtt, self.mqtt.clone()));
        }
        if let Some(coap) = self.adapters.coap.as_ref().filter(|_| number + 1 == threads) {
            let coap = Coap { socket: coap.socket.try_clone()?, limits: coap.limits.clone() };
            mine.push(Adapter::Coap(coap, self.coap.clone()));
        }
        Ok(mine)
    }
}

impl Adapter {
    /// Serves on this thread until the drain begins; what is in flight then is the drain's to wait for.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub(crate) async fn serve(self, lane: Rc<Lane>, drain: drain::Watch) -> io::Result<()> {
        match self {
            Self::Mqtt(mqtt, counts) => mqtt::serve(lane, mqtt, counts, drain).await,
            Self::Coap(coap, counts) => coap::serve(lane, coap, counts, drain).await,
        }
    }
}
