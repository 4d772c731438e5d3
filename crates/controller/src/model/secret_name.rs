//! Names of secrets.

use std::fmt;
use std::str::FromStr;

use nearpath_types::Namespace;

/// A string that is no secret name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid secret name {0:?} (lower-case letters, digits, '-' and '.', starts and ends with a letter or digit, \
     at most 253 octets)"
)]
pub struct InvalidSecretName(String);

/// Name of a secret: a DNS-1123 subdomain, the rule of Kubernetes. It becomes a file name inside
/// the instance, so it contains no `/` and is never `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecretName(String);

impl SecretName {
    /// Name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SecretName {
    type Err = InvalidSecretName;

    fn from_str(text: &str) -> Result<Self, InvalidSecretName> {
        let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let label = |label: &str| {
            let bytes = label.as_bytes();
            let ends =
                bytes.first().is_some_and(alphanumeric) && bytes.last().is_some_and(alphanumeric);
            ends && bytes.iter().all(|b| alphanumeric(b) || *b == b'-')
        };
        match text.len() <= 253 && text.split('.').all(label) {
            true => Ok(Self(text.to_owned())),
            // Cut for the error text: the input may be of any length.
            false => Err(InvalidSecretName(text.chars().take(80).collect())),
        }
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identity of a secret. Displays as `NAMESPACE/NAME`: a secret's name may contain dots, a
/// namespace's no `/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecretId {
    /// Namespace of the secret; functions of other namespaces cannot use it.
    pub namespace: Namespace,
    /// Name within the namespace.
    pub name: SecretName,
}

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for SecretId {
    type Err = String;

    /// Reads `NAMESPACE/NAME`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = text
            .split_once('/')
            .ok_or_else(|| format!("{text:?} is not NAMESPACE/NAME"))?;
        let namespace = namespace.parse().map_err(|error| format!("{error}"))?;
        Ok(Self {
            namespace,
            name: name.parse().map_err(|error| format!("{error}"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_file_names() {
        for good in ["a", "db-password", "tls.crt", "1", &"x".repeat(253)] {
            assert!(good.parse::<SecretName>().is_ok(), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "../a",
            "A",
            "a_b",
            "-a",
            "a-",
            "a..b",
            "a\0",
            "ä",
            &"x".repeat(254),
        ] {
            assert!(bad.parse::<SecretName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_are_read_back() {
        let id: SecretId = "dev/tls.crt".parse().unwrap();
        assert_eq!(id.to_string(), "dev/tls.crt");
        assert!("tls.crt".parse::<SecretId>().is_err());
    }
}
