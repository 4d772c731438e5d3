//! Names of functions, namespaces and instances.
//!
//! A function's name follows RFC 1035 labels (`a` to `z`, digits and `-`, not first a digit or `-`,
//! at most 63 octets). On paths and in metrics it is written `NAME.NAMESPACE`; the
//! namespace is what follows the last dot.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

/// The namespace that a name without a suffix belongs to. OpenFaaS clients append this very name by
/// themselves.
pub const DEFAULT_NAMESPACE: &str = "openfaas-fn";

// RFC 1035 section 2.3.4.
const MAX_LABEL_BYTES: usize = 63;

/// Error of an invalid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid {what} {text:?}: {why} (RFC 1035: lower-case letters, digits and '-', starts with a letter, ends with a letter or digit, at most 63 octets)"
)]
pub struct InvalidName {
    what: &'static str,
    text: String,
    why: &'static str,
}

fn check_label(what: &'static str, text: &str) -> Result<(), InvalidName> {
    // Shortened, because the text may come from any caller.
    let fail = |why| {
        Err(InvalidName {
            what,
            text: text.chars().take(80).collect(),
            why,
        })
    };
    let bytes = text.as_bytes();
    match bytes {
        [] => fail("it is empty"),
        _ if bytes.len() > MAX_LABEL_BYTES => fail("it is too long"),
        [first, ..] if !first.is_ascii_lowercase() => {
            fail("it does not start with a lower-case letter")
        }
        [.., b'-'] => fail("it ends with '-'"),
        _ if !bytes
            .iter()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-') =>
        {
            fail("it holds a character that is not allowed")
        }
        _ => Ok(()),
    }
}

/// Text of the default namespace, which nearly all names share.
static DEFAULT_NAMESPACE_TEXT: LazyLock<Arc<str>> = LazyLock::new(|| DEFAULT_NAMESPACE.into());

fn shared_text(text: &str) -> Arc<str> {
    match text == DEFAULT_NAMESPACE {
        true => Arc::clone(&DEFAULT_NAMESPACE_TEXT),
        false => text.into(),
    }
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(text: &str) -> Result<Self, InvalidName> {
                check_label($what, text).map(|()| Self(shared_text(text)))
            }
        }
        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

label!(
    /// Name of a function, without its namespace. Cheap to clone.
    FunctionName,
    "function name"
);
label!(
    /// Group of functions and secrets that do not see those of another. Cheap to clone.
    Namespace,
    "namespace"
);

impl Default for Namespace {
    fn default() -> Self {
        Self(Arc::clone(&DEFAULT_NAMESPACE_TEXT))
    }
}

/// Full identity of a function. Displays as `NAME.NAMESPACE`, the form used on paths, in metrics
/// and in logs. Cheap to clone: a node has one in each of a dozen tables.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FunctionId {
    /// Name within the namespace.
    pub name: FunctionName,
    /// Namespace of the function.
    pub namespace: Namespace,
}

impl FunctionId {
    /// Creates the identity of a function in a namespace, or in the default one.
    pub fn new(name: FunctionName, namespace: Option<Namespace>) -> Self {
        Self {
            name,
            namespace: namespace.unwrap_or_default(),
        }
    }
}

impl FromStr for FunctionId {
    type Err = InvalidName;
    /// Reads `NAME` or `NAME.NAMESPACE`.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        // The last dot, so that a dot in the name is refused as an invalid label.
        match text.rsplit_once('.') {
            Some((name, namespace)) => Ok(Self {
                name: name.parse()?,
                namespace: namespace.parse()?,
            }),
            None => Ok(Self::new(text.parse()?, None)),
        }
    }
}

impl TryFrom<String> for FunctionId {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<FunctionId> for String {
    fn from(id: FunctionId) -> String {
        id.to_string()
    }
}

impl fmt::Display for FunctionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.name, self.namespace)
    }
}

/// Instance of a function. Unique within a node for as long as its data directory lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub u64);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "i{:x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn namespace_follows_the_last_dot() {
        let id: FunctionId = "echo.dev".parse().unwrap();
        assert_eq!((id.name.as_str(), id.namespace.as_str()), ("echo", "dev"));
        assert_eq!(
            "echo".parse::<FunctionId>().unwrap().to_string(),
            "echo.openfaas-fn"
        );
        assert!(
            "a.b.c".parse::<FunctionId>().is_err(),
            "a dot inside a name is not a label"
        );
    }

    #[test]
    fn names_against_rfc_1035() {
        for good in ["a", "a1", "a-b", &"x".repeat(63)] {
            assert!(good.parse::<FunctionName>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "1a",
            "-a",
            "a-",
            "A",
            "Echo_1",
            "a.b",
            "ä",
            "a b",
            &"x".repeat(64),
        ] {
            assert!(bad.parse::<FunctionName>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_survives_a_round_trip(text in ".{0,80}") {
            if let Ok(id) = text.parse::<FunctionId>() {
                prop_assert_eq!(id.to_string().parse::<FunctionId>().unwrap(), id);
            }
        }
    }
}
