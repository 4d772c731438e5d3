//! TLS between an instance and the node's adapters: what the instance trusts, and whether its
//! function asks for TLS.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nearpath_kernel::sandbox::{BindMount, SandboxSpec};

/// Path of the authority inside an instance.
const AUTHORITY_PATH: &str = "/run/nearpath/authority.pem";
/// The system's trusted authorities: on Debian, Alpine and Arch, and on Fedora and its relatives.
const SYSTEM_BUNDLES: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];
/// Parts of connection strings that ask for TLS, in lower case and without spaces.
const TLS_SETTINGS: [&str; 6] = [
    "sslmode=require",
    "sslmode=verify",
    "sslmode=no-verify",
    "ssl=true",
    "ssl=require",
    "ssl=verify",
];

/// Files by which instances trust the node's authority.
#[derive(Debug)]
pub(super) struct TrustFiles {
    authority: PathBuf,
    /// The system's authorities with the node's, and the path that they have on the host.
    bundle: Option<(PathBuf, PathBuf)>,
}

impl TrustFiles {
    /// Writes the files into `folder`.
    pub(super) fn write(folder: &Path, authority_pem: &str) -> io::Result<Self> {
        let system = SYSTEM_BUNDLES
            .iter()
            // Inside an instance a link leads to the same path.
            .find_map(|path| fs::canonicalize(path).ok());
        Self::write_with(folder, authority_pem, system)
    }

    fn write_with(folder: &Path, authority_pem: &str, system: Option<PathBuf>) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let authority = folder.join("authority.pem");
        fs::write(&authority, authority_pem)?;
        let bundle = match system {
            Some(system) => {
                let bundle = folder.join("authorities.pem");
                let known = fs::read_to_string(&system)?;
                fs::write(&bundle, format!("{known}\n{authority_pem}"))?;
                Some((bundle, system))
            }
            None => None,
        };
        Ok(Self { authority, bundle })
    }

    /// Makes an instance trust the authority. Variables of the function stay as they are.
    pub(super) fn add_to(&self, spec: &mut SandboxSpec) {
        let bind = |source: &Path, target: &Path| BindMount {
            source: source.to_owned(),
            target: target.to_owned(),
            writable: false,
        };
        spec.binds
            .push(bind(&self.authority, Path::new(AUTHORITY_PATH)));
        let mut set_default = |name: &str, value: &str| {
            let variable = spec.environment.entry(name.to_owned());
            variable.or_insert_with(|| value.to_owned());
        };
        // Node.js has authorities of its own.
        set_default("NODE_EXTRA_CA_CERTS", AUTHORITY_PATH);
        if let Some((source, target)) = &self.bundle {
            // A copy of OpenSSL that a driver brings along looks elsewhere.
            set_default("SSL_CERT_FILE", &target.to_string_lossy());
            spec.binds.push(bind(source, target));
        }
    }
}

/// Returns whether the settings of a function ask for TLS to a PostgreSQL server.
pub(super) fn requires_tls(
    environment: &BTreeMap<String, String>,
    secrets: &BTreeMap<String, Vec<u8>>,
) -> bool {
    let in_variables = environment
        .iter()
        .any(|(name, value)| is_tls_setting(&format!("{}={value}", name.trim_start_matches("PG"))));
    in_variables
        || secrets
            .values()
            .any(|secret| is_tls_setting(&String::from_utf8_lossy(secret)))
}

fn is_tls_setting(text: &str) -> bool {
    let text = text.to_ascii_lowercase().replace(' ', "");
    TLS_SETTINGS.iter().any(|setting| text.contains(setting))
}

#[cfg(test)]
mod tests {
    use nearpath_kernel::sandbox::IsolationLevel;
    use nearpath_types::InstanceId;

    use super::*;

    fn is_tls_required(name: &str, value: &str) -> bool {
        let variable = (name.to_owned(), value.to_owned());
        let secret = (name.to_owned(), value.as_bytes().to_vec());
        let by_variable = requires_tls(&[variable].into(), &BTreeMap::new());
        if !name.starts_with("PG") {
            let by_secret = requires_tls(&BTreeMap::new(), &[secret].into());
            assert_eq!(by_variable, by_secret, "{name} {value}");
        }
        by_variable
    }

    #[test]
    fn settings_that_need_tls_are_recognized() {
        assert!(is_tls_required("PGSSLMODE", "require"));
        assert!(is_tls_required("PGSSLMODE", "verify-full"));
        assert!(is_tls_required(
            "DSN",
            "postgres://u@db/x?sslmode=verify-ca"
        ));
        assert!(is_tls_required("DSN", "jdbc:postgresql://db/x?ssl=true"));
        assert!(is_tls_required("DSN", "Host=db; SSL Mode=Require"));
    }

    #[test]
    fn settings_that_do_not_need_it_are_told_apart() {
        assert!(!is_tls_required("PGSSLMODE", "prefer"));
        assert!(!is_tls_required("PGSSLMODE", "disable"));
        assert!(!is_tls_required("DSN", "postgres://u@db/x?sslmode=allow"));
        assert!(!is_tls_required("DSN", "postgres://u@db/x"));
    }

    #[test]
    fn the_system_keeps_its_authorities_and_the_function_its_variables() {
        let folder = tempfile::tempdir().unwrap();
        let system = folder.path().join("system.crt");
        fs::write(&system, "SYSTEM").unwrap();
        let files = TrustFiles::write_with(folder.path(), "NODE", Some(system.clone())).unwrap();
        let mut spec = SandboxSpec::new(InstanceId(1), IsolationLevel::Root, "/bin/true".into());
        let own = ("NODE_EXTRA_CA_CERTS".to_owned(), "own.pem".to_owned());
        spec.environment.extend([own]);
        files.add_to(&mut spec);
        let bound = spec.binds.iter().find(|bind| bind.target == system);
        let bundle = fs::read_to_string(&bound.unwrap().source).unwrap();
        assert_eq!(bundle, "SYSTEM\nNODE");
        assert_eq!(spec.environment["NODE_EXTRA_CA_CERTS"], "own.pem");
        assert_eq!(spec.environment["SSL_CERT_FILE"], system.to_string_lossy());
    }
}
