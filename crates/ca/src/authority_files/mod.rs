//! An authority on disk: `ca.key` and `ca.crt` in a folder that only its owner can enter.
//!
//! `ca.crt` holds the root that signs, and during a rotation the roots before it. Each node gets a
//! copy and accepts all of them. So a root is replaced without an interruption: rotate, copy
//! `ca.crt` to all nodes, issue new certificates, then retire the old root.

mod atomic_file;
mod error;
mod issued_node;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nearpath_types::{NodeName, SpiffeId};
use nearpath_wire::identity::{CertificateRequest, RootCertificate, encode_pem};
use rcgen::KeyPair;

use crate::authority::Authority;
use atomic_file::write_atomically;

pub use error::AuthorityFilesError;
pub use issued_node::IssuedNode;

/// Name of the file with the private key.
const KEY_FILE: &str = "ca.key";
/// Name of the file with the roots, the one that signs first.
const ROOTS_FILE: &str = "ca.crt";
/// Mode of secrets: only the owner reads them.
const SECRET_MODE: u32 = 0o600;
/// Mode of certificates, which are public.
const PUBLIC_MODE: u32 = 0o644;

/// An authority whose key and roots are files.
#[derive(Debug)]
pub struct AuthorityFiles {
    dir: PathBuf,
    authority: Authority,
    roots: Vec<RootCertificate>,
}

impl AuthorityFiles {
    /// Creates an authority in a folder, which is created too, with a root that is valid for
    /// `lifetime`.
    ///
    /// # Errors
    /// See [`AuthorityFilesError`]. An existing authority is not changed.
    pub fn init(
        dir: &Path,
        trust_domain: &str,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<Self, AuthorityFilesError> {
        check_trust_domain(trust_domain)?;
        let mut folder = DirBuilder::new();
        folder
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|source| AuthorityFilesError::io("create", dir, source))?;
        let _lock = lock_folder(dir)?;
        for name in [KEY_FILE, ROOTS_FILE] {
            let path = dir.join(name);
            if path.symlink_metadata().is_ok() {
                return Err(AuthorityFilesError::Exists(path));
            }
        }
        let authority = Authority::new(trust_domain, now, lifetime)?;
        write_files(dir, &authority, &authority.to_pem())?;
        Self::load(dir)
    }

    /// Opens the authority in a folder.
    ///
    /// # Errors
    /// See [`AuthorityFilesError`].
    pub fn open(dir: &Path) -> Result<Self, AuthorityFilesError> {
        let _lock = lock_folder(dir)?;
        Self::load(dir)
    }

    /// Replaces the root. The new one signs from now on, and `ca.crt` holds it before the old ones.
    ///
    /// # Errors
    /// See [`AuthorityFilesError`].
    pub fn rotate(
        dir: &Path,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<Self, AuthorityFilesError> {
        let _lock = lock_folder(dir)?;
        let old = Self::load(dir)?;
        let authority = Authority::new(old.trust_domain(), now, lifetime)?;
        write_files(dir, &authority, &(authority.to_pem() + &old.roots_to_pem()))?;
        Self::load(dir)
    }

    /// Removes all roots but the one that signs, and returns the removed ones.
    ///
    /// # Errors
    /// See [`AuthorityFilesError`].
    pub fn retire(dir: &Path) -> Result<(Self, Vec<RootCertificate>), AuthorityFilesError> {
        let _lock = lock_folder(dir)?;
        let mut files = Self::load(dir)?;
        let retired = files.roots.split_off(1);
        write_atomically(
            &dir.join(ROOTS_FILE),
            files.roots_to_pem().as_bytes(),
            PUBLIC_MODE,
        )?;
        Ok((files, retired))
    }

    /// Creates a key and a certificate for the gateway of a node, valid from `now` for `lifetime`.
    ///
    /// # Errors
    /// See [`AuthorityFilesError`].
    pub fn issue(
        &self,
        node: &NodeName,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<IssuedNode, AuthorityFilesError> {
        let (not_after, root_end) = (now + lifetime, self.signing_root().not_after);
        // Peers do not check the dates of a root, so its certificates must end before it.
        if not_after > root_end {
            return Err(AuthorityFilesError::BeyondRoot {
                node: node.clone(),
                not_after,
                root_end,
            });
        }
        let id = SpiffeId::for_gateway(self.trust_domain(), node.as_str());
        let request = CertificateRequest::new()?;
        let name = node.as_str();
        let issued = self
            .authority
            .issue(request.csr(), &id, name, now, lifetime)?;
        let credentials = request.into_credentials(id, name.to_owned(), issued);
        Ok(IssuedNode::new(&credentials, self.roots_to_pem()))
    }

    /// Folder of the files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Trust domain of all roots.
    pub fn trust_domain(&self) -> &str {
        self.authority.trust_domain()
    }

    /// Roots that nodes accept. The first one signs.
    pub fn roots(&self) -> &[RootCertificate] {
        &self.roots
    }

    /// Path of the file with the roots, for copies to nodes.
    pub fn roots_path(&self) -> PathBuf {
        self.dir.join(ROOTS_FILE)
    }

    fn signing_root(&self) -> &RootCertificate {
        &self.roots[0] // `load` puts it there
    }

    fn roots_to_pem(&self) -> String {
        let pem = |root: &RootCertificate| encode_pem("CERTIFICATE", &root.der);
        self.roots.iter().map(pem).collect()
    }

    fn load(dir: &Path) -> Result<Self, AuthorityFilesError> {
        let (key_path, roots_path) = (dir.join(KEY_FILE), dir.join(ROOTS_FILE));
        let key = read_key(&key_path)?;
        let pem = read_file(&roots_path)?;
        let invalid = |why: String| AuthorityFilesError::Roots {
            path: roots_path.clone(),
            why,
        };
        let mut roots =
            RootCertificate::parse_all(&pem).map_err(|error| invalid(error.to_string()))?;
        let has_key = |root: &RootCertificate| root.has_public_key(key.public_key_raw());
        let Some(signing) = roots.iter().position(has_key) else {
            return Err(AuthorityFilesError::KeyMismatch {
                key: key_path,
                roots: roots_path,
            });
        };
        // Not the first one if a rotation was interrupted: then its new key was never written.
        roots[..=signing].rotate_right(1);
        let trust_domain = roots[0]
            .trust_domain
            .clone()
            .ok_or_else(|| invalid("the root has no URI spiffe://TRUST-DOMAIN".to_owned()))?;
        check_trust_domain(&trust_domain)?;
        let authority = Authority::from_parts(&trust_domain, roots[0].der.clone(), key)?;
        Ok(Self {
            dir: dir.to_owned(),
            authority,
            roots,
        })
    }
}

fn check_trust_domain(trust_domain: &str) -> Result<(), AuthorityFilesError> {
    // The parser knows the rules; any node's name will do.
    format!("spiffe://{trust_domain}/node/n/gateway")
        .parse::<SpiffeId>()
        .map(drop)
        .map_err(|_| AuthorityFilesError::TrustDomain(trust_domain.to_owned()))
}

/// Excludes other processes that use the authority, until the returned file is closed.
fn lock_folder(dir: &Path) -> Result<File, AuthorityFilesError> {
    let folder = File::open(dir).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => AuthorityFilesError::missing(dir, dir),
        _ => AuthorityFilesError::io("open", dir, source),
    })?;
    folder
        .lock()
        .map_err(|source| AuthorityFilesError::io("lock", dir, source))?;
    Ok(folder)
}

/// Writes both files. The roots come first: if the key is not written any more, the old key still
/// belongs to one of them.
fn write_files(dir: &Path, authority: &Authority, roots: &str) -> Result<(), AuthorityFilesError> {
    write_atomically(&dir.join(ROOTS_FILE), roots.as_bytes(), PUBLIC_MODE)?;
    let key = authority.key_to_pem();
    write_atomically(&dir.join(KEY_FILE), key.as_bytes(), SECRET_MODE)
}

fn read_file(path: &Path) -> Result<Vec<u8>, AuthorityFilesError> {
    fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            AuthorityFilesError::missing(path, path.parent().unwrap_or(path))
        }
        _ => AuthorityFilesError::io("read", path, source),
    })
}

fn read_key(path: &Path) -> Result<KeyPair, AuthorityFilesError> {
    let pem = read_file(path)?;
    let metadata = fs::metadata(path);
    let metadata = metadata.map_err(|source| AuthorityFilesError::io("read", path, source))?;
    let mode = metadata.permissions().mode() & 0o777;
    // Whoever reads this key can be any node, so no exception is made for groups.
    if mode & 0o077 != 0 {
        let path = path.to_owned();
        return Err(AuthorityFilesError::Exposed { path, mode });
    }
    let invalid = |why: String| AuthorityFilesError::Key {
        path: path.to_owned(),
        why,
    };
    let pem = String::from_utf8(pem).map_err(|error| invalid(error.to_string()))?;
    KeyPair::from_pem(&pem).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests;
