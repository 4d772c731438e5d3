//! The administrator's user name and password: read from files, or made at the first start.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{fmt, mem};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;

/// File names as OpenFaaS has them, below its `secret_mount_path`.
const USER_FILE: &str = "basic-auth-user";
const PASSWORD_FILE: &str = "basic-auth-password";

/// Where the administrator's credentials come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthMode {
    /// The files in the data directory; what is missing is made: user `admin` and a random password.
    Generated,
    /// The files `basic-auth-user` and `basic-auth-password` in this folder (OpenFaaS's `secret_mount_path`).
    Files(PathBuf),
    /// These.
    Provided(AdminCredentials),
    /// No questions asked. For a loopback listener on one's own machine.
    Disabled,
}

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file cannot be read or written.
    #[error("credentials: {}: {source}", path.display())]
    UnusableFile {
        /// The file.
        path: PathBuf,
        /// The operating system's words.
        source: io::Error,
    },
    /// A file holds nothing.
    #[error("credentials: {} is empty: write the {what} into it{}", path.display(), if *made { ", or remove it to have one made" } else { "" })]
    EmptyFile {
        /// The file.
        path: PathBuf,
        /// User or password.
        what: &'static str,
        /// Whether a missing one is made.
        made: bool,
    },
}

/// A user name and a password.
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
    /// Reads both files in `folder`; with `make`, writes those that are missing.
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

    /// Whether both are right. Takes as long for a wrong guess as for a right one of the same length.
    pub fn matches(&self, user: &[u8], password: &[u8]) -> bool {
        bool::from(self.user.as_bytes().ct_eq(user) & self.password.as_bytes().ct_eq(password))
    }
}

fn read_file(path: &Path, what: &'static str, made: bool) -> Result<String, CredentialsError> {
    let text = fs::read_to_string(path).map_err(|source| CredentialsError::UnusableFile {
        path: path.to_owned(),
        source,
    })?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(CredentialsError::EmptyFile {
            path: path.to_owned(),
            what,
            made,
        }),
        text => Ok(text.to_owned()),
    }
}

/// Writes beside and renames, so that a crash or a full disk leaves no empty file behind.
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

/// 192 bits from the kernel.
fn random_password() -> String {
    let mut bytes = [0u8; 24];
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = &mut bytes[filled..];
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
                .ends_with("write the user name into it, or remove it to have one made"),
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
