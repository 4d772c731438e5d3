//! The administrator's user name and password: read from files, or generated at the first start.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{fmt, mem};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;

/// File names of OpenFaaS, below its `secret_mount_path`: one folder serves both.
const USER_FILE: &str = "basic-auth-user";
const PASSWORD_FILE: &str = "basic-auth-password";

/// Source of the administrator's credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthMode {
    /// Files in the data directory; missing ones are generated: user `admin` and a random password.
    Generated,
    /// Files `basic-auth-user` and `basic-auth-password` in this folder (OpenFaaS's
    /// `secret_mount_path`).
    Files(PathBuf),
    /// Credentials of the caller.
    Provided(AdminCredentials),
    /// No authentication. For a loopback listener on the user's own machine.
    Disabled,
}

/// Reasons why there are no credentials.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file cannot be read or written.
    #[error("credentials: {}: {source}", path.display())]
    UnusableFile {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file is empty.
    #[error("credentials: {} is empty: write the {what} into it{}", path.display(), if *made { ", or remove it to generate one" } else { "" })]
    EmptyFile {
        /// The file.
        path: PathBuf,
        /// `user name` or `password`.
        what: &'static str,
        /// True when missing files are generated.
        made: bool,
    },
}

/// User name and password.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminCredentials {
    /// The user's name.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for AdminCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, …)", self.user)
    }
}

impl AdminCredentials {
    /// Reads both files in `folder`. With `generate_missing`, missing ones are written first.
    pub(crate) fn load_files(
        folder: &Path,
        generate_missing: bool,
    ) -> Result<Self, CredentialsError> {
        let user = folder.join(USER_FILE);
        let password = folder.join(PASSWORD_FILE);
        if generate_missing {
            write_if_missing(&user, || "admin".to_owned())?;
            write_if_missing(&password, random_password)?;
        }
        Ok(Self {
            user: read_file(&user, "user name", generate_missing)?,
            password: read_file(&password, "password", generate_missing)?,
        })
    }

    /// Compares both in constant time, for guesses of the right length.
    pub fn matches(&self, user: &[u8], password: &[u8]) -> bool {
        // `&` and not `&&`: the time must not reveal that the user name is right.
        bool::from(self.user.as_bytes().ct_eq(user) & self.password.as_bytes().ct_eq(password))
    }
}

fn read_file(path: &Path, what: &'static str, made: bool) -> Result<String, CredentialsError> {
    let text = fs::read_to_string(path).map_err(|source| CredentialsError::UnusableFile {
        path: path.to_owned(),
        source,
    })?;
    // Editors and `echo` end a file with a newline, which is no part of a password.
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(CredentialsError::EmptyFile {
            path: path.to_owned(),
            what,
            made,
        }),
        text => Ok(text.to_owned()),
    }
}

/// Writes a temporary file and renames it, so that a crash or a full disk leaves no empty file
/// behind.
fn write_if_missing(path: &Path, content: impl FnOnce() -> String) -> Result<(), CredentialsError> {
    if path.exists() {
        return Ok(());
    }
    let temporary = path.with_extension("new");
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(content().as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|source| CredentialsError::UnusableFile {
        path: path.to_owned(),
        source,
    })
}

/// A random password: 192 bits from the kernel.
fn random_password() -> String {
    let mut bytes = [0u8; 24];
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
        // getrandom(2) may return fewer bytes, or be interrupted by a signal.
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
    }
    URL_SAFE_NO_PAD.encode(mem::take(&mut bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn missing_credentials_are_generated_once() {
        let folder = tempfile::tempdir().unwrap();
        let generated = AdminCredentials::load_files(folder.path(), true).unwrap();
        assert_eq!(
            (generated.user.as_str(), generated.password.len()),
            ("admin", 32)
        );
        assert_eq!(
            AdminCredentials::load_files(folder.path(), true).unwrap(),
            generated
        );
        fs::write(folder.path().join(USER_FILE), "").unwrap();
        let empty = AdminCredentials::load_files(folder.path(), true).unwrap_err();
        assert!(
            empty
                .to_string()
                .ends_with("write the user name into it, or remove it to generate one"),
            "{empty}"
        );
        let mode = fs::metadata(folder.path().join(PASSWORD_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn files_of_another_folder_are_never_generated() {
        let folder = tempfile::tempdir().unwrap();
        let missing = AdminCredentials::load_files(folder.path(), false).unwrap_err();
        assert!(missing.to_string().contains(USER_FILE), "{missing}");
        fs::write(folder.path().join(USER_FILE), "root\n").unwrap();
        fs::write(folder.path().join(PASSWORD_FILE), "\n").unwrap();
        let empty = AdminCredentials::load_files(folder.path(), false).unwrap_err();
        assert!(
            empty
                .to_string()
                .ends_with("is empty: write the password into it"),
            "{empty}"
        );
        fs::write(folder.path().join(PASSWORD_FILE), "s3:cret\r\n").unwrap();
        let credentials = AdminCredentials::load_files(folder.path(), false).unwrap();
        assert!(credentials.matches(b"root", b"s3:cret"));
        for (user, password) in [
            ("root", "s3:cre"),
            ("roo", "s3:cret"),
            ("", ""),
            ("root", ""),
        ] {
            assert!(!credentials.matches(user.as_bytes(), password.as_bytes()));
        }
    }
}
