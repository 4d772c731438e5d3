//! Defaults of a destination's settings.

use std::time::Duration;

use super::{
    EgressHost, EgressProtocol, EgressSpec, EgressTls, PoolingMode, SharingScope, WriteMode,
};

/// Ports whose servers speak first: FTP, SSH, SMTP, POP3, IMAP, submission of mail, MySQL. A
/// connection kept open there holds its greeting, which grows old.
const SERVER_FIRST_PORTS: [u16; 7] = [21, 22, 25, 110, 143, 587, 3306];
/// Default time for which the node goes on delivering a function's writes.
pub(super) const DEFAULT_FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// Default for connections that are kept open before their first client.
const DEFAULT_MAX_WARM: u32 = 8;

impl EgressSpec {
    /// Creates a destination with the defaults of `HOST:PORT protocol=…`.
    pub fn with_defaults(host: EgressHost, port: u16, protocol: EgressProtocol) -> Self {
        let traits = protocol.traits();
        // Only for unknown protocols, because adapters read the greeting themselves.
        let server_speaks_first = protocol.is_opaque() && SERVER_FIRST_PORTS.contains(&port);
        Self {
            host,
            port,
            protocol,
            mode: traits.mode.unwrap_or(PoolingMode::Session),
            max: traits.max,
            warm: if server_speaks_first {
                0
            } else {
                DEFAULT_MAX_WARM
            },
            idle: Duration::from_secs(60),
            age: Duration::from_secs(30 * 60),
            wait: Duration::from_secs(10),
            login: None,
            tls: EgressTls::Pass,
            shared: SharingScope::Function,
            cache: None,
            writes: WriteMode::Sync,
            prefetch: Vec::new(),
        }
    }

    /// Sets the connection limit; no more than that is kept open in advance.
    #[must_use]
    pub fn with_max(mut self, max: u32) -> Self {
        self.max = max;
        self.warm = self.warm.min(max);
        self
    }
}
