//! Certificates of nodes, which call each other over mutual TLS 1.3 and QUIC.
//!
//! `nearpath ca issue` writes a folder for each node: its certificate, its key, and the roots that
//! it accepts ([`NodeFiles`]). [`NodeCredentials`] are these files after all checks. [`NodeTls`] has
//! the configurations of both ends, and [`watch_node_tls`] builds them again when the files change.
//! A node that is called checks each connection with [`NodeCredentials::admit_node`].

mod checks;
mod credentials;
mod endpoint;
mod error;
mod expiry;
mod files;
mod tls;
mod watch_state;
mod watcher;

pub use credentials::NodeCredentials;
pub use error::NodeCredentialsError;
pub use files::{CERTIFICATE_FILE, KEY_FILE, NodeFiles, ROOTS_FILE};
pub use tls::{NodeTls, NodeTlsError};
pub use watcher::{POLL_INTERVAL, watch_node_tls};
