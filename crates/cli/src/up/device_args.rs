//! Options for device protocols.

use std::net::SocketAddr;
use std::time::Duration;

use nearpath_types::duration;

/// Smallest interval between two calls of an observed function: each of them costs a call per
/// function.
const MIN_OBSERVE_INTERVAL: Duration = Duration::from_millis(100);

/// Listeners for MQTT and CoAP.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Device protocols")]
pub struct DeviceArgs {
    /// Serve MQTT 3.1.1 and 5 at this address: a message on functions/NAME calls NAME. Except on
    /// loopback, clients need the administrator's name and password
    #[arg(long, value_name = "ADDR:PORT")]
    pub mqtt_listen: Option<SocketAddr>,

    /// Accept MQTT clients without a password on any address
    #[arg(long, requires = "mqtt_listen")]
    pub mqtt_anonymous: bool,

    /// Limit the number of MQTT clients, up to 1000000; further clients are rejected
    #[arg(long, default_value = "4096", value_parser = connection_limit, value_name = "N")]
    pub mqtt_clients: usize,

    /// Serve CoAP over UDP at this address: coap://HOST/function/NAME calls NAME. Except on
    /// loopback, it needs --coap-anonymous
    #[arg(long, value_name = "ADDR:PORT")]
    pub coap_listen: Option<SocketAddr>,

    /// Serve CoAP on addresses other than loopback: CoAP has no passwords, so every client that
    /// reaches it may call functions
    #[arg(long, requires = "coap_listen")]
    pub coap_anonymous: bool,

    /// Call a function that is observed over CoAP at this interval
    #[arg(long, default_value = "10s", value_parser = observe_interval, value_name = "DURATION")]
    pub coap_observe_interval: Duration,
}

fn observe_interval(text: &str) -> Result<Duration, String> {
    match duration::parse_duration(text) {
        Ok(interval) if interval < MIN_OBSERVE_INTERVAL => {
            Err("expected at least 100ms".to_owned())
        }
        Ok(interval) => Ok(interval),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a number of connections; more than the upper bound exceeds the file descriptors of one
/// machine.
pub(super) fn connection_limit(text: &str) -> Result<usize, String> {
    let number = text
        .trim()
        .parse()
        .ok()
        .filter(|number| (1..=1_000_000).contains(number));
    number.ok_or_else(|| "expected a number from 1 to 1000000".to_owned())
}
