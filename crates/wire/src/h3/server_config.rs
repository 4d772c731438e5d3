//! A port with a certificate, as all threads serve it: TLS, limits, keys and sessions are common, endpoints are not.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use quinn::{
    Endpoint, EndpointConfig, IdleTimeout, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use quinn_proto::ValidationTokenConfig;
use quinn_proto::crypto::rustls::{NoInitialCipherSuite, QuicServerConfig};
use ring::{hkdf, hmac};
use rustls::server::StoresServerSessions;

use super::{ALPN, CidRouting};
use crate::quic::config;
use crate::server::HttpLimits;
use crate::tls::CertifiedKeyPair;
use crate::zero_rtt::{UsedTokens, WorkerSessions};

/// Sessions and address tokens that a client is given after a handshake.
const TICKETS_PER_HANDSHAKE: u32 = 2;
/// Streams beside requests that a client may open: control, two of QPACK's, and some that mean nothing (RFC 9114 section 6.2).
const MAX_UNI_STREAMS: u32 = 8;
/// Unread bytes of one stream, and of one connection; as HTTP/2 has them.
const RECEIVE_WINDOWS_BYTES: (u32, u32) = (1 << 20, 4 << 20);
/// Bytes of answers that a connection holds until the client has acknowledged them.
const SEND_WINDOW_BYTES: u64 = 1 << 20;
/// Receive buffer that is asked for: a burst of first packets comes before the thread that reads them runs.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// Why HTTP/3 cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Http3ConfigError {
    /// Certificate and key do not work together.
    #[error("the certificate cannot be used: {0}")]
    Certificate(#[from] rustls::Error),
    /// The cryptography is without AES-128, which QUIC begins with.
    #[error("QUIC needs AES-128-GCM: {0}")]
    CipherSuite(#[from] NoInitialCipherSuite),
    /// The system.
    #[error("the system has no randomness")]
    Randomness,
}

/// See the module's text. Clones are the same site.
#[derive(Clone)]
pub struct Http3ServerConfig {
    server: ServerConfig,
    reset_key: Arc<hmac::Key>,
    routing: CidRouting,
}

impl Http3ServerConfig {
    /// For so many threads.
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

    /// With another store of sessions: for tests that show what the usual one prevents.
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
        // Keys that follow from the certificate's: after a restart, clients that do not know of it are told so at once by a stateless
        // reset (RFC 9000 section 10.3), and need not prove their address anew.
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

    /// The same site for a process that comes after another one on the port.
    #[must_use]
    pub fn with_routing(self, steering: CidRouting) -> Self {
        Self {
            routing: steering,
            ..self
        }
    }

    /// Tells those who still write to a process that has ended, whose socket it was, that their connection is over (stateless reset, RFC 9000
    /// section 10.3), for as long as the value lives. Whoever knocks there is not heard. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub fn reset_stale_connections(&self, socket: UdpSocket) -> io::Result<Endpoint> {
        let mut config = EndpointConfig::new(self.reset_key.clone());
        let steering = self.routing;
        config.cid_generator(move || steering.cid_generator(0));
        Endpoint::new(config, None, socket, Arc::new(TokioRuntime))
    }

    /// Which thread a packet belongs to. The program must be attached to the sockets, where there are several.
    pub fn routing(&self) -> &CidRouting {
        &self.routing
    }

    /// Serves on a thread's socket. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub fn open_endpoint(&self, socket: UdpSocket, thread: usize) -> io::Result<Endpoint> {
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES); // less than asked for works, too
        let steering = self.routing;
        let mut config = EndpointConfig::new(self.reset_key.clone());
        config.cid_generator(move || steering.cid_generator(thread));
        Endpoint::new(
            config,
            Some(self.server.clone()),
            socket,
            Arc::new(TokioRuntime),
        )
    }
}

impl std::fmt::Debug for Http3ServerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site")
            .field("threads", &self.routing.thread_count())
            .finish_non_exhaustive()
    }
}

/// A session can be used once: [`WorkerSessions`] takes it out. So what came in a first flight is never run when it is sent again.
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
    tls.send_tls13_tickets = TICKETS_PER_HANDSHAKE as usize;
    Ok(tls)
}

/// A silent client is asked whether it is there, as with HTTP/2, and given up after three times that. Who is there and asks nothing is
/// the listener's to judge.
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
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
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
