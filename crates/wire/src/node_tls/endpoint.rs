//! Endpoints of the UDP port for other nodes.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use quinn::{Endpoint, EndpointConfig};
use ring::{hkdf, hmac};

use super::NodeTls;
use crate::h3::CidRouting;
use crate::quic::open_endpoint;

impl NodeTls {
    /// Configuration of an endpoint without its connection ids. All processes with one certificate have
    /// the same key of stateless resets (RFC 9000 section 10.3): each can reset connections of one that
    /// was killed.
    pub fn endpoint_config(&self) -> EndpointConfig {
        EndpointConfig::new(Arc::new(self.reset_key()))
    }

    /// Sends stateless resets to the peers of a process that has ended, on that process's socket, until the
    /// endpoint is dropped. New connections get no response. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub fn reset_stale_connections(
        &self,
        routing: CidRouting,
        socket: UdpSocket,
    ) -> io::Result<Endpoint> {
        let mut config = self.endpoint_config();
        // Thread 0, although no connection is accepted: quinn requires a generator.
        config.cid_generator(move || routing.cid_generator(0));
        open_endpoint(config, None, socket)
    }

    fn reset_key(&self) -> hmac::Key {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"nearpath nodes");
        let secret = salt.extract(self.credentials().private_key());
        let expanded = secret.expand(&[b"stateless reset"], hmac::HMAC_SHA256);
        expanded
            .expect("a digest's length is below the maximum of HKDF")
            .into()
    }
}
