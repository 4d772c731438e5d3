//! QUIC configurations of both ends. A session must be used with the configuration that it was
//! minted with, so all of them are built here.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::congestion::CubicConfig;
use quinn_proto::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TransportConfig,
    ValidationTokenConfig, VarInt,
};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};

use crate::identity::{Credentials, Trust};
use crate::zero_rtt::{CallerSessions, TokenKey, UsedTokens, WorkerSessions};

/// ALPN protocol of calls between parts of nearpath, `contract/quic.md`.
pub const ALPN: &[u8] = b"nearpath/1";

/// Sessions and address tokens that a worker gives to a caller after a handshake.
const TICKETS_PER_HANDSHAKE: u32 = 2;
/// Concurrent calls of one connection; further ones wait. quinn allocates state for all of them
/// when a connection starts. An idle connection takes 143 KB with 1,024, 76 KB with 256 and 62 KB
/// with 128.
pub const MAX_CALLS_PER_CONNECTION: u32 = 256;
/// Receive windows of a stream and of a connection in bytes.
const RECEIVE_WINDOWS_BYTES: (u32, u32) = (1 << 20, 8 << 20);

/// Octets that are sent before anything is acknowledged: 32 datagrams. RFC 9002 section 7.2
/// recommends ten for unknown paths; these are within a site. A body of 1 MB arrives 1.8 round
/// trips earlier.
const INITIAL_WINDOW_BYTES: u64 = 32 * 1200;

/// Octets that a longer datagram must gain to be worth a probe (RFC 8899 section 5.3.2 leaves the
/// steps open). It is more than half of the range from QUIC's initial 1,200 to Ethernet's 1,452. So
/// the longest size is probed first, not after three others, each of which costs a connection for
/// one call. Where that probe is lost, as in a tunnel, only 1,325 is probed.
const MIN_MTU_GAIN_BYTES: u16 = 127;

/// QUIC configuration of a worker, as [`worker_config`] builds it.
pub type WorkerConfig = ServerConfig;

/// Reasons why an end cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum TlsConfigError {
    /// Certificate and key do not match.
    #[error("the credentials cannot be used: {0}")]
    Credentials(#[from] rustls::Error),
    /// The trust has no authority.
    #[error("cannot verify peers: {0}")]
    Trust(#[from] VerifierBuilderError),
    /// The cryptography provider lacks AES-128-GCM, which QUIC requires.
    #[error("QUIC needs AES-128-GCM: {0}")]
    CipherSuite(#[from] NoInitialCipherSuite),
}

/// Cryptography with SHA-256 first: processors have instructions for it, and none for SHA-384.
pub(crate) fn crypto_provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    Arc::new(provider)
}

/// Time without any packet after which a connection ends.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Transport settings of a worker: the limits of its callers, and the idle timeout.
pub fn worker_transport(idle: Duration) -> Arc<TransportConfig> {
    Arc::new(transport_settings(idle, MAX_CALLS_PER_CONNECTION))
}

/// Transport settings of a caller. Keep-alives go three times per idle timeout, also during long
/// calls.
pub fn caller_transport(idle: Duration) -> Arc<TransportConfig> {
    let mut transport = transport_settings(idle, 0); // workers open no streams
    transport.keep_alive_interval(Some(idle / 3));
    Arc::new(transport)
}

/// Settings of both sides. The peer may have `streams` calls open. quinn allocates state for all of
/// them with every connection; a thousand noticeably slow connecting.
fn transport_settings(idle: Duration, streams: u32) -> TransportConfig {
    let idle = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
    let mut transport = TransportConfig::default();
    let mut congestion = CubicConfig::default();
    // Cubic recovers from the larger window, if it was too optimistic.
    congestion.initial_window(INITIAL_WINDOW_BYTES);
    let mut probes = MtuDiscoveryConfig::default();
    probes.minimum_change(MIN_MTU_GAIN_BYTES);
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(streams))
        // The call protocol has no unidirectional streams.
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(RECEIVE_WINDOWS_BYTES.0))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOWS_BYTES.1))
        .send_window(u64::from(RECEIVE_WINDOWS_BYTES.1))
        // an estimate within a site until the handshake measures it
        .initial_rtt(Duration::from_millis(20))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .mtu_discovery_config(Some(probes))
        .congestion_controller_factory(Arc::new(congestion))
        // Without a buffer the datagram extension (RFC 9221) is not offered.
        .datagram_receive_buffer_size(None);
    transport
}

/// Builds the configuration of a worker.
///
/// # Errors
/// See [`TlsConfigError`].
pub fn worker_config(
    credentials: &Credentials,
    trust: &Trust,
    register: Arc<WorkerSessions>,
    key: &TokenKey,
) -> Result<ServerConfig, TlsConfigError> {
    let provider = crypto_provider();
    let peers =
        WebPkiClientVerifier::builder_with_provider(trust.roots(), provider.clone()).build()?;
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(peers)
        .with_single_cert(credentials.chain.clone(), credentials.private_key())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.max_early_data_size = u32::MAX; // RFC 9001 section 4.6.1: QUIC has limits of its own
    tls.session_storage = register;
    tls.send_tls13_tickets = TICKETS_PER_HANDSHAKE as usize;
    let mut config = ServerConfig::new(
        Arc::new(QuicServerConfig::try_from(tls)?),
        key.handshake_key(),
    );
    let mut tokens = ValidationTokenConfig::default();
    tokens
        .log(Arc::new(UsedTokens::default()))
        .sent(TICKETS_PER_HANDSHAKE)
        .lifetime(Duration::from_secs(24 * 3600));
    config
        .validation_token_config(tokens)
        .transport_config(worker_transport(IDLE_TIMEOUT));
    Ok(config)
}

/// Builds the configuration of a caller. Sessions belong to the returned value and its clones.
/// Build a new one for each change of credentials or trust, and clear the sessions then.
///
/// # Errors
/// See [`TlsConfigError`].
pub fn caller_config(
    credentials: &Credentials,
    trust: &Trust,
    sessions: &Arc<CallerSessions>,
) -> Result<ClientConfig, TlsConfigError> {
    let provider = crypto_provider();
    let peers =
        WebPkiServerVerifier::builder_with_provider(trust.roots(), provider.clone()).build()?;
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_webpki_verifier(peers)
        .with_client_auth_cert(credentials.chain.clone(), credentials.private_key())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    // Off by default in rustls; `EarlyData` decides for each call.
    tls.enable_early_data = true;
    // Shared with address tokens: both belong to one incarnation of a worker.
    tls.resumption = Resumption::store(sessions.clone());
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config
        .token_store(sessions.clone())
        .transport_config(caller_transport(IDLE_TIMEOUT));
    Ok(config)
}
