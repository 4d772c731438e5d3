//! What holds of a destination where nothing is written.

use std::time::Duration;

use super::{Egress, Host, Mode, Protocol, Shared, Tls, Writes};

/// Ports at which the server speaks first: FTP, SSH, SMTP, POP3, IMAP, submission of mail, MySQL. A connection kept open there has its greeting
/// waiting, and grows old.
const SERVER_FIRST: [u16; 7] = [21, 22, 25, 110, 143, 587, 3306];
/// How long the node goes on delivering what a function left to it.
pub(super) const FLUSH: Duration = Duration::from_secs(10);
/// Most kept open for nobody.
const WARM: u32 = 8;

impl Egress {
    /// A destination as `HOST:PORT protocol=…` declares it.
    pub fn of(host: Host, port: u16, protocol: Protocol) -> Self {
        let traits = protocol.traits();
        let greeted = protocol.is_opaque() && SERVER_FIRST.contains(&port);
        Self {
            host,
            port,
            protocol,
            mode: traits.mode.unwrap_or(Mode::Session),
            max: traits.max,
            warm: if greeted { 0 } else { WARM },
            idle: Duration::from_secs(60),
            age: Duration::from_secs(30 * 60),
            wait: Duration::from_secs(10),
            login: None,
            tls: Tls::Pass,
            shared: Shared::Function,
            cache: None,
            writes: Writes::Sync,
            prefetch: Vec::new(),
        }
    }

    /// The same with another ceiling; no more than that is kept open for nobody.
    #[must_use]
    pub fn with_max(mut self, max: u32) -> Self {
        self.max = max;
        self.warm = self.warm.min(max);
        self
    }
}
