//! Configuration of an HTTP/3 port. All threads share TLS, limits, keys and sessions; each has its
//! own endpoint.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Endpoint, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt};
use quinn_proto::ValidationTokenConfig;
use quinn_proto::crypto::rustls::{NoInitialCipherSuite, QuicServerConfig};
use ring::{hkdf, hmac};
use rustls::server::StoresServerSessions;

use super::{ALPN, CidRouting};
use crate::quic::{config, open_endpoint};
use crate::server::HttpLimits;
use crate::tls::CertifiedKeyPair;
use crate::zero_rtt::{UsedTokens, WorkerSessions};

/// Sessions and address tokens that a client gets after a handshake.
const TICKETS_PER_HANDSHAKE: u32 = 2;
/// Streams beside requests that a client may open: control, two of QPACK, and reserved types (RFC
/// 9114 section 6.2).
const MAX_UNI_STREAMS: u32 = 8;
/// Receive windows of a stream and of a connection in bytes, the same as for HTTP/2.
const RECEIVE_WINDOWS_BYTES: (u32, u32) = (1 << 20, 4 << 20);
/// Response bytes that a connection buffers until the client has acknowledged them.
const SEND_WINDOW_BYTES: u64 = 1 << 20;
/// Requested size of the receive buffer in bytes: a burst of first packets arrives before the
/// reading thread runs.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Reasons why HTTP/3 cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Http3ConfigError {
    /// Certificate and key do not match.
    #[error("the certificate cannot be used: {0}")]
    Certificate(#[from] rustls::Error),
    /// The cryptography provider lacks AES-128-GCM, which QUIC requires.
    #[error("QUIC needs AES-128-GCM: {0}")]
    CipherSuite(#[from] NoInitialCipherSuite),
    /// The system's random number generator failed.
    #[error("the system's random number generator failed")]
    Randomness,
}

/// TLS, keys and packet routing of a port. Clones share them.
#[derive(Clone)]
pub struct Http3ServerConfig {
    server: ServerConfig,
    reset_key: Arc<hmac::Key>,
    routing: CidRouting,
}

impl Http3ServerConfig {
    /// Creates the configuration for a number of threads.
    ///
    /// # Errors
    /// See [`Http3ConfigError`].
    pub fn new(
        pair: &CertifiedKeyPair,
        limits: &HttpLimits,
        threads: usize,
    ) -> Result<Self, Http3ConfigError> {
        Self::with_session_store(pair, limits, threads, Arc::new(WorkerSessions::new(None)))
    }

    /// Uses another store of sessions: tests show with it what the usual one prevents.
    ///
    /// # Errors
    /// See [`Http3ConfigError`].
    #[doc(hidden)]
    pub fn with_session_store(
        pair: &CertifiedKeyPair,
        limits: &HttpLimits,
        threads: usize,
        sessions: Arc<dyn StoresServerSessions>,
    ) -> Result<Self, Http3ConfigError> {
        let crypto = QuicServerConfig::try_from(tls_config(pair, sessions)?)?;
        // Derived from the certificate's key: after a restart, clients get a stateless reset at
        // once (RFC 9000 section 10.3) and need not validate their address again.
        let secret =
            hkdf::Salt::new(hkdf::HKDF_SHA256, b"nearpath http/3").extract(pair.key.secret_der());
        let reset = Arc::new(hmac::Key::new(
            hmac::HMAC_SHA256,
            &derive_key(&secret, b"stateless reset")?,
        ));
        let tokens = hkdf::Salt::new(hkdf::HKDF_SHA256, b"")
            .extract(&derive_key(&secret, b"address tokens")?);
        let mut server = ServerConfig::new(Arc::new(crypto), Arc::new(tokens));
        let mut token_config = ValidationTokenConfig::default();
        token_config
            .log(Arc::new(UsedTokens::default()))
            .sent(TICKETS_PER_HANDSHAKE)
            .lifetime(Duration::from_secs(24 * 3600));
        server
            .validation_token_config(token_config)
            .transport_config(Arc::new(transport_config(limits)));
        let steering = CidRouting::new(threads).ok_or(Http3ConfigError::Randomness)?;
        Ok(Self {
            server,
            reset_key: reset,
            routing: steering,
        })
    }

    /// Replaces the packet routing, for a process that takes the port over from another one.
    #[must_use]
    pub fn with_routing(self, steering: CidRouting) -> Self {
        Self {
            routing: steering,
            ..self
        }
    }

    /// Sends stateless resets (RFC 9000 section 10.3) to clients of a process that has ended, on
    /// that process's socket, until the endpoint is dropped. New connections get no response. Must
    /// run inside a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub fn reset_stale_connections(&self, socket: UdpSocket) -> io::Result<Endpoint> {
        let mut config = EndpointConfig::new(self.reset_key.clone());
        // Thread 0, although no connection is accepted: quinn requires a generator.
        let steering = self.routing;
        config.cid_generator(move || steering.cid_generator(0));
        open_endpoint(config, None, socket)
    }

    /// Routing of packets to threads. With several sockets, its BPF program must be attached to
    /// them.
    pub fn routing(&self) -> &CidRouting {
        &self.routing
    }

    /// Serves on a thread's socket. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub fn open_endpoint(&self, socket: UdpSocket, thread: usize) -> io::Result<Endpoint> {
        // a smaller buffer works, too
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
        let steering = self.routing;
        let mut config = EndpointConfig::new(self.reset_key.clone());
        config.cid_generator(move || steering.cid_generator(thread));
        open_endpoint(config, Some(self.server.clone()), socket)
    }
}

impl std::fmt::Debug for Http3ServerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site")
            .field("threads", &self.routing.thread_count())
            .finish_non_exhaustive()
    }
}

/// Each session can be used once, because [`WorkerSessions`] removes it. So a replayed first flight
/// is never run.
fn tls_config(
    pair: &CertifiedKeyPair,
    sessions: Arc<dyn StoresServerSessions>,
) -> Result<rustls::ServerConfig, rustls::Error> {
    let mut tls = rustls::ServerConfig::builder_with_provider(config::crypto_provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(pair.chain.clone(), pair.key.clone_key())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.max_early_data_size = u32::MAX; // RFC 9001 section 4.6.1: QUIC has limits of its own
    tls.session_storage = sessions;
    // Two tickets let a client open two connections with early data at once.
    tls.send_tls13_tickets = TICKETS_PER_HANDSHAKE as usize;
    Ok(tls)
}

/// Probes an idle client with PING, as for HTTP/2, and gives it up after three intervals. The
/// listener decides about clients that respond but send no requests.
fn transport_config(limits: &HttpLimits) -> TransportConfig {
    let idle = u32::try_from(limits.ping_interval.as_millis() * 3).unwrap_or(u32::MAX);
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(limits.max_streams))
        .max_concurrent_uni_streams(VarInt::from_u32(MAX_UNI_STREAMS))
        .stream_receive_window(VarInt::from_u32(RECEIVE_WINDOWS_BYTES.0))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOWS_BYTES.1))
        .send_window(SEND_WINDOW_BYTES)
        .keep_alive_interval(Some(limits.ping_interval))
        // Three PING intervals: a single lost PING does not end the connection.
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        // HTTP/3 datagrams (RFC 9297) are not used.
        .datagram_receive_buffer_size(None);
    transport
}

fn derive_key(secret: &hkdf::Prk, what: &[u8]) -> Result<[u8; 32], Http3ConfigError> {
    let mut key = [0; 32];
    let expanded = secret
        .expand(&[what], hkdf::HKDF_SHA256)
        .and_then(|expanded| expanded.fill(&mut key));
    expanded
        .map(|()| key)
        .map_err(|_| Http3ConfigError::Randomness)
}
