//! Certificate and key of a server, read from PEM files, with errors that say how to fix them.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Encrypted bytes of early data that a handshake skips. rustls keeps them until it can decrypt a
/// record, at most 18 KiB, and counts them again with each read, so this bounds its attempts.
const MAX_SKIPPED_BYTES: u32 = 1024 * 1024;

/// Reasons why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing, unreadable or not PEM.
    #[error("{what} file {}: {why}", path.display())]
    File {
        /// `certificate` or `key`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Fault of the file.
        why: String,
    },
    /// Both files are valid, but do not match.
    #[error("certificate {} and key {} do not work together: {source}", cert.display(), key.display())]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Error of rustls.
        source: rustls::Error,
    },
    /// No key for session tickets could be made.
    #[error(
        "cannot create the key of session tickets: {0}; check the system's random number generator"
    )]
    Tickets(rustls::Error),
}

/// A certificate chain and its key.
pub struct CertifiedKeyPair {
    /// The server's own certificate first.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
}

impl fmt::Debug for CertifiedKeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pair({} certificates)", self.chain.len())
    }
}

/// Reads a certificate chain and its key, without checking that they match.
///
/// # Errors
/// See [`TlsError`]; every text names the file.
pub fn read_key_pair(cert: &Path, key: &Path) -> Result<CertifiedKeyPair, TlsError> {
    let chain = read_chain(cert)?;
    warn_if_exposed(key);
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| file_error("key", key, &error))?;
    Ok(CertifiedKeyPair { chain, key })
}

/// Warns of a key that every user of the machine can read. A group may read it: distributions give
/// one to servers (`ssl-cert`).
pub(crate) fn warn_if_exposed(key: &Path) {
    const OTHERS_READ: u32 = 0o004;
    let mode = key.metadata().map(|metadata| metadata.permissions().mode());
    if mode.is_ok_and(|mode| mode & OTHERS_READ != 0) {
        tracing::warn!(key = %key.display(), "every user of this machine can read the private key: run chmod 640 on it");
    }
}

/// Reads a certificate chain and its key, for HTTP/2 or HTTP/1.1 (ALPN) over TLS 1.2 and 1.3.
///
/// # Errors
/// See [`TlsError`]; every text names the file.
pub fn load_config(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let CertifiedKeyPair { chain, key: secret } = read_key_pair(cert, key)?;
    let mismatch = |source| TlsError::Mismatch {
        cert: cert.into(),
        key: key.into(),
        source,
    };
    // The provider is passed explicitly: a process-wide default could be another library's.
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(chain, secret)
        })
        .map_err(mismatch)?;
    // In order of preference: HTTP/2 saves connections.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    skip_early_data(&mut config)?;
    Ok(Arc::new(config))
}

/// Skips early data (RFC 8446 section 4.2.10). Clients bring it with tickets of servers that had this
/// address before, mostly up to 16 KiB. The default of rustls fails earlier: it counts the overhead
/// of encryption too, and counts again with each read.
fn skip_early_data(config: &mut ServerConfig) -> Result<(), TlsError> {
    // rustls accepts early data only with stateful tickets, so with a ticket key it never does, and
    // announces none: the number is only the bound of what is skipped.
    config.ticketer = ring::Ticketer::new().map_err(TlsError::Tickets)?;
    config.max_early_data_size = MAX_SKIPPED_BYTES;
    Ok(())
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        // A fault of the file, which an error of rustls would not name.
        Ok(chain) if chain.is_empty() => {
            Err(file_error("certificate", path, &pem::Error::NoItemsFound))
        }
        Ok(chain) => Ok(chain),
        Err(error) => Err(file_error("certificate", path, &error)),
    }
}

fn file_error(what: &'static str, path: &Path, error: &pem::Error) -> TlsError {
    let why = match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => format!("it contains no PEM {what}"),
        other => format!("it is not valid PEM: {other}"),
    };
    TlsError::File {
        what,
        path: path.into(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::server::ProducesTickets;
    use rustls::{ClientConfig, ClientConnection, HandshakeKind, ServerConnection};
    use std::fs;
    use std::io::{Read, Write};

    #[test]
    fn a_key_that_every_user_can_read_is_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        fs::write(at("cert"), pair.cert.pem()).unwrap();
        fs::write(at("key"), pair.signing_key.serialize_pem()).unwrap();
        let warnings = nearpath_testkit::CapturedWarnings::start();
        for (mode, lines) in [(0o600, 0), (0o640, 0), (0o644, 1)] {
            fs::set_permissions(at("key"), fs::Permissions::from_mode(mode)).unwrap();
            load_config(&at("cert"), &at("key")).unwrap();
            assert_eq!(warnings.lines().len(), lines, "{mode:o}");
        }
        let line = &warnings.lines()[0];
        let names_key = line.contains(&at("key").display().to_string());
        assert!(names_key && line.contains("chmod 640"), "{line}");
    }

    #[test]
    fn a_pair_loads_and_every_fault_names_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        fs::write(at("cert"), pair.cert.pem()).unwrap();
        fs::write(at("key"), pair.signing_key.serialize_pem()).unwrap();
        let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        fs::write(at("other"), other.signing_key.serialize_pem()).unwrap();
        fs::write(at("empty"), "").unwrap();

        assert_eq!(
            load_config(&at("cert"), &at("key")).unwrap().alpn_protocols,
            [&b"h2"[..], b"http/1.1"]
        );
        for (cert, key, named) in [
            ("none", "key", "none"),
            ("empty", "key", "empty"),
            ("cert", "empty", "empty"),
            ("cert", "other", "other"),
        ] {
            let error = load_config(&at(cert), &at(key)).unwrap_err().to_string();
            assert!(error.contains(&at(named).display().to_string()), "{error}");
        }
    }

    /// Settings of a client that sends early data where it may.
    fn early_client(trusted: CertificateDer<'static>) -> Arc<ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(trusted).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.enable_early_data = true;
        Arc::new(config)
    }

    /// Carries bytes both ways until neither side has any.
    fn exchange(client: &mut ClientConnection, server: &mut ServerConnection) {
        while client.wants_write() || server.wants_write() {
            let mut flight = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut flight).unwrap();
            }
            for mut segment in flight.chunks(1460) {
                while !segment.is_empty() {
                    server.read_tls(&mut segment).unwrap();
                    server.process_new_packets().unwrap();
                }
            }
            let mut flight = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut flight).unwrap();
            }
            let mut unread = &flight[..];
            while !unread.is_empty() {
                client.read_tls(&mut unread).unwrap();
                client.process_new_packets().unwrap();
            }
        }
    }

    #[test]
    fn early_data_for_another_server_is_skipped_and_none_is_ever_invited() {
        const EARLY_BYTES: u32 = 16 * 1024;
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("cert"), folder.path().join("key"));
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        fs::write(&cert, pair.cert.pem()).unwrap();
        fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
        let own = load_config(&cert, &key).unwrap();
        let mut other = ServerConfig::clone(&own);
        other.ticketer = Arc::new(StatefulTickets);
        other.max_early_data_size = EARLY_BYTES;
        let other = Arc::new(other);
        let config = early_client(pair.cert.der().clone());
        let connect =
            || ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap();
        for record_bytes in [1024, EARLY_BYTES as usize] {
            exchange(
                &mut connect(),
                &mut ServerConnection::new(other.clone()).unwrap(),
            );
            let (mut client, mut server) = (connect(), ServerConnection::new(own.clone()).unwrap());
            let mut early = client.early_data().expect("the other server invited it");
            for record in vec![b'x'; EARLY_BYTES as usize].chunks(record_bytes) {
                early.write_all(record).unwrap();
            }
            exchange(&mut client, &mut server);
            assert!(!client.is_handshaking() && !client.is_early_data_accepted());
            client.writer().write_all(b"late").unwrap();
            exchange(&mut client, &mut server);
            let mut received = [0; 8];
            assert_eq!(server.reader().read(&mut received).unwrap(), 4);
        }

        let mut client = connect();
        assert!(client.early_data().is_none());
        exchange(&mut client, &mut ServerConnection::new(own).unwrap());
        assert_eq!(client.handshake_kind(), Some(HandshakeKind::Resumed));
    }

    /// Leaves tickets to the session store, as by default in rustls.
    #[derive(Debug)]
    struct StatefulTickets;

    impl ProducesTickets for StatefulTickets {
        fn enabled(&self) -> bool {
            false
        }
        fn lifetime(&self) -> u32 {
            0
        }
        fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
            None
        }
        fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
            None
        }
    }
}
