//! Listeners for other protocols than HTTP: what was typed, and who may use them.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use nearpath_controller::Credentials;
use nearpath_gateway::adapt::{Adapters, Coap, CoapLimits, Doorkeeper, Mqtt, MqttLimits};
use nearpath_types::duration;

use super::plan::UpError;
use super::succession::{Estate, Name};

/// Options of the adapters.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Other protocols")]
pub struct AdapterArgs {
    /// Address for MQTT 3.1.1 and 5: a message on functions/NAME calls NAME. Elsewhere than on loopback clients need the
    /// administrator's name and password
    #[arg(long, value_name = "ADDR:PORT")]
    pub mqtt_listen: Option<SocketAddr>,

    /// MQTT without a password, wherever it listens
    #[arg(long, requires = "mqtt_listen")]
    pub mqtt_anonymous: bool,

    /// MQTT clients at a time, up to 1000000; more are turned away
    #[arg(long, default_value = "4096", value_parser = super::args::connections, value_name = "N")]
    pub mqtt_clients: usize,

    /// Address for CoAP over UDP: coap://HOST/function/NAME calls NAME. Elsewhere than on loopback it needs --coap-anonymous
    #[arg(long, value_name = "ADDR:PORT")]
    pub coap_listen: Option<SocketAddr>,

    /// CoAP elsewhere than on loopback: it has no passwords, so everybody who reaches it may call functions
    #[arg(long, requires = "coap_listen")]
    pub coap_anonymous: bool,

    /// How often a function that is observed over CoAP is called
    #[arg(long, default_value = "10s", value_parser = interval, value_name = "DURATION")]
    pub coap_observe_interval: Duration,
}

/// Each observer costs a call each time.
fn interval(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Ok(interval) if interval < Duration::from_millis(100) => Err("the shortest interval is 100ms".to_owned()),
        Ok(interval) => Ok(interval),
        Err(error) => Err(error.to_string()),
    }
}

/// The sockets that were asked for.
pub(super) struct Sockets {
    mqtt: Option<TcpListener>,
    coap: Option<UdpSocket>,
}

impl AdapterArgs {
    /// Refuses what would be open without having been asked to be.
    pub(super) fn check(&self, insecure: bool) -> Result<(), UpError> {
        let outside = |addr: &SocketAddr| !addr.ip().to_canonical().is_loopback();
        match (self.mqtt_listen.filter(outside), self.coap_listen.filter(outside)) {
            (Some(addr), _) if insecure && !self.mqtt_anonymous => Err(UpError::OpenMqtt(addr)),
            (_, Some(addr)) if !self.coap_anonymous => Err(UpError::OpenCoap(addr)),
            _ => Ok(()),
        }
    }

    /// Opens the sockets, in the host's network namespace, or takes over those that are open.
    pub(super) fn bind(&self, inherited: &mut Estate, kept: &mut Estate) -> Result<Sockets, UpError> {
        let mqtt = self.mqtt_listen.map(|addr| {
            let open = || TcpListener::bind(addr);
            inherited.one(Name::Mqtt, addr, kept, open).map_err(UpError::listen("--mqtt-listen", addr))
        });
        let coap = self.coap_listen.map(|addr| {
            let open = || UdpSocket::bind(addr);
            inherited.one(Name::Coap, addr, kept, open).map_err(UpError::listen("--coap-listen", addr))
        });
        Ok(Sockets { mqtt: mqtt.transpose()?, coap: coap.transpose()? })
    }

    /// The adapters for the gateway. `None`: none was asked for.
    pub(super) fn adapters(&self, sockets: Sockets, credentials: Option<&Credentials>) -> Option<Adapters> {
        let limits = MqttLimits { clients: self.mqtt_clients, ..MqttLimits::default() };
        let doorkeeper = self.doorkeeper(credentials);
        let mqtt = sockets.mqtt.map(|socket| Mqtt { socket, limits, doorkeeper });
        let limits = CoapLimits { observe_interval: self.coap_observe_interval, ..CoapLimits::default() };
        let coap = sockets.coap.map(|socket| Coap { socket, limits });
        (mqtt.is_some() || coap.is_some()).then_some(Adapters { mqtt, coap })
    }

    fn doorkeeper(&self, credentials: Option<&Credentials>) -> Option<Doorkeeper> {
        let inside = self.mqtt_listen.is_none_or(|addr| addr.ip().to_canonical().is_loopback());
        if self.mqtt_anonymous || inside {
            return None;
        }
        let credentials = credentials.cloned();
        // Without credentials nobody is let in; `check` has refused to start that way already.
        let judge = move |user: &str, password: &[u8]| {
            credentials.as_ref().is_some_and(|known| known.matches(user.as_bytes(), password))
        };
        Some(Arc::new(judge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(mqtt: Option<&str>, coap: Option<&str>) -> AdapterArgs {
        AdapterArgs {
            mqtt_listen: mqtt.map(|addr| addr.parse().unwrap()),
            mqtt_anonymous: false,
            mqtt_clients: 1,
            coap_listen: coap.map(|addr| addr.parse().unwrap()),
            coap_anonymous: false,
            coap_observe_interval: Duration::from_secs(1),
        }
    }

    #[test]
    fn nothing_is_open_by_accident() {
        let (inside, outside) = (Some("127.0.0.1:1"), Some("0.0.0.0:1"));
        assert!(args(inside, inside).check(true).is_ok());
        assert!(args(outside, None).check(false).is_ok(), "it has a password");
        assert!(args(outside, None).check(true).is_err());
        assert!(args(None, outside).check(false).is_err());
        assert!(AdapterArgs { coap_anonymous: true, ..args(None, outside) }.check(false).is_ok());
        assert!(AdapterArgs { mqtt_anonymous: true, ..args(outside, None) }.check(true).is_ok());
    }

    #[test]
    fn a_password_is_asked_for_outside_only() {
        let known = Credentials { user: "admin".into(), password: "secret".into() };
        assert!(args(Some("127.0.0.1:1"), None).doorkeeper(Some(&known)).is_none());
        let keeper = args(Some("192.0.2.1:1"), None).doorkeeper(Some(&known)).unwrap();
        assert!(keeper("admin", b"secret") && !keeper("admin", b"Secret") && !keeper("", b""));
        assert!(!args(Some("192.0.2.1:1"), None).doorkeeper(None).unwrap()("admin", b"secret"));
    }
}
