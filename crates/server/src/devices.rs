//! Listeners for device protocols: MQTT and CoAP.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use nearpath_controller::{AdminLogins, LoginRefusal};
use nearpath_devices::{
    CoapLimits, CoapListener, Devices, MqttLimits, MqttListener, PasswordCheck, PasswordVerdict,
};
use nearpath_types::SourceNetwork;

use crate::error::StartError;
use crate::handover::{InheritedSockets, SocketName};

/// The device protocols that are served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceSettings {
    /// MQTT 3.1.1 and 5 over TCP.
    pub mqtt: Option<MqttSettings>,
    /// CoAP over UDP; it has no passwords.
    pub coap: Option<CoapSettings>,
}

/// The listener for MQTT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MqttSettings {
    /// Its address. On loopback, clients need no password.
    pub listen: SocketAddr,
    /// Clients need no password on other addresses either.
    pub anonymous: bool,
    /// Upper bound of connected clients.
    pub max_clients: usize,
}

/// The listener for CoAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoapSettings {
    /// Its address.
    pub listen: SocketAddr,
    /// Interval between two calls of an observed function.
    pub observe_interval: Duration,
}

/// Open sockets of the device protocols.
pub(crate) struct DeviceSockets {
    mqtt: Option<TcpListener>,
    coap: Option<UdpSocket>,
}

impl DeviceSettings {
    /// Opens or inherits the sockets, in the host's network namespace.
    pub(crate) fn bind(
        &self,
        inherited: &mut InheritedSockets,
        for_successor: &mut InheritedSockets,
    ) -> Result<DeviceSockets, StartError> {
        let mqtt = self.mqtt.as_ref().map(|mqtt| {
            let open = || TcpListener::bind(mqtt.listen);
            let socket =
                inherited.take_or_open_one(SocketName::Mqtt, mqtt.listen, for_successor, open);
            socket.map_err(StartError::listen("--mqtt-listen", mqtt.listen))
        });
        let coap = self.coap.as_ref().map(|coap| {
            let open = || UdpSocket::bind(coap.listen);
            let socket =
                inherited.take_or_open_one(SocketName::Coap, coap.listen, for_successor, open);
            socket.map_err(StartError::listen("--coap-listen", coap.listen))
        });
        Ok(DeviceSockets {
            mqtt: mqtt.transpose()?,
            coap: coap.transpose()?,
        })
    }

    /// The gateway's listeners for devices; `None` if there are none.
    pub(crate) fn listeners(
        &self,
        sockets: DeviceSockets,
        logins: &Arc<AdminLogins>,
    ) -> Option<Devices> {
        let mqtt = self
            .mqtt
            .as_ref()
            .zip(sockets.mqtt)
            .map(|(settings, socket)| {
                let limits = MqttLimits {
                    max_clients: settings.max_clients,
                    ..MqttLimits::default()
                };
                MqttListener {
                    socket,
                    limits,
                    password_check: settings.authenticator(logins),
                }
            });
        let coap = self
            .coap
            .as_ref()
            .zip(sockets.coap)
            .map(|(settings, socket)| {
                let limits = CoapLimits {
                    observe_interval: settings.observe_interval,
                    ..CoapLimits::default()
                };
                CoapListener { socket, limits }
            });
        (mqtt.is_some() || coap.is_some()).then_some(Devices { mqtt, coap })
    }
}

impl MqttSettings {
    /// The check of names and passwords; `None` if clients need none.
    fn authenticator(&self, logins: &Arc<AdminLogins>) -> Option<PasswordCheck> {
        // Canonical, so that `::ffff:127.0.0.1` counts as loopback too.
        if self.anonymous || self.listen.ip().to_canonical().is_loopback() {
            return None;
        }
        // The API's: a source must not get further guesses by another protocol. Without
        // credentials every password is wrong.
        let logins = logins.clone();
        let check = move |addr: IpAddr, user: &str, password: &[u8]| match logins.check(
            SourceNetwork::of(addr),
            user.as_bytes(),
            password,
        ) {
            Ok(()) => PasswordVerdict::Right,
            Err(LoginRefusal::WrongPassword) => PasswordVerdict::Wrong,
            Err(LoginRefusal::LockedOut(_)) => PasswordVerdict::LockedOut,
        };
        Some(Arc::new(check))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_controller::AdminCredentials;

    fn logins(credentials: Option<AdminCredentials>) -> Arc<AdminLogins> {
        Arc::new(AdminLogins::new(credentials))
    }

    fn admin() -> AdminCredentials {
        AdminCredentials {
            user: "admin".into(),
            password: "secret".into(),
        }
    }

    fn mqtt(addr: &str) -> MqttSettings {
        MqttSettings {
            listen: addr.parse().unwrap(),
            anonymous: false,
            max_clients: 1,
        }
    }

    #[test]
    fn mqtt_asks_for_a_password_outside_loopback_only() {
        let (known, client) = (logins(Some(admin())), IpAddr::from([192, 0, 2, 9]));
        assert!(mqtt("127.0.0.1:1").authenticator(&known).is_none());
        let check = mqtt("192.0.2.1:1").authenticator(&known).unwrap();
        for (user, password, verdict) in [
            ("admin", b"secret", PasswordVerdict::Right),
            ("admin", b"Secret", PasswordVerdict::Wrong),
            ("", b"secret", PasswordVerdict::Wrong),
        ] {
            assert_eq!(check(client, user, password), verdict, "{user}");
        }
        let nobody = mqtt("192.0.2.1:1").authenticator(&logins(None)).unwrap();
        assert_eq!(nobody(client, "admin", b"secret"), PasswordVerdict::Wrong);
    }

    #[test]
    fn mqtt_and_the_api_share_the_lock_out_of_a_source() {
        let known = logins(Some(admin()));
        let check = mqtt("192.0.2.1:1").authenticator(&known).unwrap();
        let guesser = IpAddr::from([192, 0, 2, 9]);
        // The eleventh wrong password in a row begins the lock-out.
        for _ in 0..11 {
            assert_eq!(check(guesser, "admin", b"guess"), PasswordVerdict::Wrong);
        }
        assert_eq!(
            check(guesser, "admin", b"secret"),
            PasswordVerdict::LockedOut,
            "the right one is not checked either"
        );
        let by_api = known.check(SourceNetwork::of(guesser), b"admin", b"secret");
        assert!(matches!(by_api, Err(LoginRefusal::LockedOut(_))));
        let other = IpAddr::from([192, 0, 2, 10]);
        assert_eq!(check(other, "admin", b"secret"), PasswordVerdict::Right);
    }
}
