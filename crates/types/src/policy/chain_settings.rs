//! Settings on which a chain's functions must agree: delivery, isolation, pages and placement.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Delivery of descriptors between functions of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainDelivery {
    /// Rings in shared memory, with one wake-up signal per endpoint.
    #[default]
    Ring,
    /// SK_MSG: the kernel delivers them and knows the sender.
    Sockmap,
    /// Rings that endpoints poll without sleeping.
    Poll,
}

impl FromStr for ChainDelivery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ring" => Ok(Self::Ring),
            "sockmap" => Ok(Self::Sockmap),
            "poll" => Ok(Self::Poll),
            _ => Err(format!(
                "invalid delivery {text:?}: expected ring, sockmap or poll"
            )),
        }
    }
}

impl fmt::Display for ChainDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ring => "ring",
            Self::Sockmap => "sockmap",
            Self::Poll => "poll",
        })
    }
}

/// Page size of a chain's shared memory. Huge pages are for functions that trust each other: one
/// that punches a hole where no huge page is left lets the next access end in SIGBUS
/// (`contract/memory.md`). So they are never a default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainPages {
    /// Of the usual size.
    #[default]
    Small,
    /// Huge if enough are reserved, else small, without a report.
    Auto,
    /// Huge; if too few are reserved, small, with a report.
    Huge,
}

impl FromStr for ChainPages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "small" => Ok(Self::Small),
            "auto" => Ok(Self::Auto),
            "huge" => Ok(Self::Huge),
            other => Err(format!(
                "invalid page size {other:?}: expected small, huge or auto"
            )),
        }
    }
}

/// Write access to a chain's shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainIsolation {
    /// One pool, in which every function of the chain can write.
    #[default]
    Shared,
    /// A pool for each thread of each function, in which the others can only read.
    Strict,
}

impl FromStr for ChainIsolation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "shared" => Ok(Self::Shared),
            "strict" => Ok(Self::Strict),
            _ => Err(format!(
                "invalid isolation {text:?}: expected shared or strict"
            )),
        }
    }
}

impl fmt::Display for ChainIsolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared",
            Self::Strict => "strict",
        })
    }
}

/// Processors of a chain's functions. A wake-up on the same processor costs a fifth of one across
/// processors, and its data is in the cache; but the chain then has only that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainPlacement {
    /// Wherever the kernel puts them.
    Spread,
    /// On one processor while measurement says that it is enough for them, else as with `spread`.
    #[default]
    Auto,
    /// On one processor.
    Core,
}

impl FromStr for ChainPlacement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "core" => Ok(Self::Core),
            "spread" => Ok(Self::Spread),
            other => Err(format!(
                "invalid placement {other:?}: expected auto, core or spread"
            )),
        }
    }
}
