//! Certificate and key of a server, read from PEM files, with errors that say how to fix them.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

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
fn warn_if_exposed(key: &Path) {
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
    Ok(Arc::new(config))
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
    use std::fs;

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
}
