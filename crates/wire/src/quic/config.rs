//! How both ends of a connection are set up. What a session was minted with and what it is used with must be the same, so
//! there is one place for it.

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

/// The protocol that our parts speak to each other, `contract/quic.md`.
pub const ALPN: &[u8] = b"nearpath/1";

/// Sessions that a worker gives to each caller after a handshake, and address tokens.
const TICKETS_PER_HANDSHAKE: u32 = 2;
/// Calls of one connection at a time; more wait for others to end. quinn makes room for all of them when a connection begins, which shows in what it holds when idle:
/// 143 KB with 1,024, 76 KB with 256, 62 KB with 128.
pub const MAX_CALLS_PER_CONNECTION: u32 = 256;
/// Unread bytes of one stream, and of one connection.
const RECEIVE_WINDOWS_BYTES: (u32, u32) = (1 << 20, 8 << 20);

/// Octets that are sent before anything is acknowledged: 32 datagrams. RFC 9002 section 7.2 says ten for paths of which nothing is known;
/// these are within a site. A body of 1 MB comes 1.8 round trips sooner.
const INITIAL_WINDOW_BYTES: u64 = 32 * 1200;

/// Octets by which a longer datagram must be worth a probe (RFC 8899 section 5.3.2 leaves the steps open). It is more than half of what lies
/// between the 1,200 that QUIC begins with and the 1,452 that Ethernet takes: so the longest is tried first, not after three
/// others, each of which a connection for one call pays for. Where it is lost, as in a tunnel, 1,325 is tried, and nothing else.
const MIN_MTU_GAIN_BYTES: u16 = 127;

/// A worker's end, as [`worker_config`] makes it.
pub type WorkerConfig = ServerConfig;

/// Why an end cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsConfigError {
    /// Certificate and key do not work together.
    #[error("the credentials cannot be used: {0}")]
    Credentials(#[from] rustls::Error),
    /// No authority is trusted.
    #[error("peers cannot be checked: {0}")]
    Trust(#[from] VerifierBuilderError),
    /// The cryptography is without AES-128, which QUIC begins with.
    #[error("QUIC needs AES-128-GCM: {0}")]
    CipherSuite(#[from] NoInitialCipherSuite),
}

/// SHA-256 first: processors have instructions for it, for SHA-384 they have none.
pub(crate) fn crypto_provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    Arc::new(provider)
}

/// A connection without a sign of life ends after this time.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a worker allows its callers, and when a silent connection ends.
pub fn worker_transport(idle: Duration) -> Arc<TransportConfig> {
    Arc::new(transport_settings(idle, MAX_CALLS_PER_CONNECTION))
}

/// A caller's side of it. A sign of life goes three times as often as silence would end the connection: also while a call takes long.
pub fn caller_transport(idle: Duration) -> Arc<TransportConfig> {
    let mut transport = transport_settings(idle, 0); // a worker never calls back
    transport.keep_alive_interval(Some(idle / 3));
    Arc::new(transport)
}

/// `streams`: calls that the other end may have open. quinn makes room for all of them with every connection, which for a thousand
/// shows in what it costs to connect.
fn transport_settings(idle: Duration, streams: u32) -> TransportConfig {
    let idle = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
    let mut transport = TransportConfig::default();
    let mut congestion = CubicConfig::default();
    congestion.initial_window(INITIAL_WINDOW_BYTES);
    let mut probes = MtuDiscoveryConfig::default();
    probes.minimum_change(MIN_MTU_GAIN_BYTES);
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(streams))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(RECEIVE_WINDOWS_BYTES.0))
        .receive_window(VarInt::from_u32(RECEIVE_WINDOWS_BYTES.1))
        .send_window(u64::from(RECEIVE_WINDOWS_BYTES.1))
        .initial_rtt(Duration::from_millis(20)) // within a site; the handshake measures it
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(idle))))
        .mtu_discovery_config(Some(probes))
        .congestion_controller_factory(Arc::new(congestion))
        .datagram_receive_buffer_size(None);
    transport
}

/// A worker's end.
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

/// A caller's end. Sessions belong to what this returns and its clones: make it once for each change of credentials or trust, and
/// clear the sessions then.
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
    tls.enable_early_data = true;
    tls.resumption = Resumption::store(sessions.clone());
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config
        .token_store(sessions.clone())
        .transport_config(caller_transport(IDLE_TIMEOUT));
    Ok(config)
}
