//! What a chain's functions have to agree on: how descriptors go, who writes where, pages and processors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How descriptors go between functions of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainDelivery {
    /// Rings in shared memory and one bell a party.
    #[default]
    Ring,
    /// The kernel carries them and knows who sends (SK_MSG).
    Sockmap,
    /// Rings that parties look at without end.
    Poll,
}

impl FromStr for ChainDelivery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ring" => Ok(Self::Ring),
            "sockmap" => Ok(Self::Sockmap),
            "poll" => Ok(Self::Poll),
            _ => Err(format!("{text:?} is none of ring, sockmap, poll")),
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

/// What the pages of a chain's shared memory are. Huge ones are for functions that trust each other not to end each other:
/// one that punches a hole where the machine has no huge page left lets the next access end in SIGBUS
/// (`contract/memory.md`). So they are never a default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChainPages {
    /// Of the usual size.
    #[default]
    Small,
    /// Huge where enough are reserved, else small, without a word.
    Auto,
    /// Huge; where too few are reserved small ones, and that is told.
    Huge,
}

impl FromStr for ChainPages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "small" => Ok(Self::Small),
            "auto" => Ok(Self::Auto),
            "huge" => Ok(Self::Huge),
            other => Err(format!("{other:?} is not small, huge or auto")),
        }
    }
}

/// Who can write where in the memory of a chain.
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
            _ => Err(format!("{text:?} is none of shared, strict")),
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

/// On which processors the functions of a chain run. A wake-up on the same processor costs a fifth of one across processors,
/// and what runs there finds its data in the cache; but a chain on one processor has no more than that one.
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
            other => Err(format!("{other:?} is not auto, core or spread")),
        }
    }
}
