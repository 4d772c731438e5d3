//! Programs of the functions of a chain.

use std::io;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::plain_handler::{HandlerLanguage, PlainHandler};
use super::{PeerProcess, chain, own_programs};

/// Kind of program of the functions of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ChainProgramKind {
    /// `net/http` in Go, unmodified.
    Go,
    /// The Rust SDK.
    Sdk,
}

/// Program of the functions of a chain, each of which calls the next.
pub(crate) enum ChainProgram {
    /// This program: HTTP as a plain process, the SDK on nearpath.
    Own {
        /// Path of the folder that is deployed.
        folder: String,
        _folder: TempDir,
    },
    /// `net/http` in Go, unmodified: HTTP everywhere.
    Go(PlainHandler),
}

impl ChainProgram {
    /// Prepares a program of this kind.
    ///
    /// # Errors
    /// If it cannot be built or copied.
    pub(crate) fn prepare(kind: ChainProgramKind) -> io::Result<Self> {
        match kind {
            ChainProgramKind::Go => Self::go(),
            ChainProgramKind::Sdk => Self::own(),
        }
    }

    /// Prepares this program.
    ///
    /// # Errors
    /// If it cannot be copied.
    fn own() -> io::Result<Self> {
        let own = tempfile::tempdir()?;
        Ok(Self::Own {
            folder: chain::program_folder(own.path())?,
            _folder: own,
        })
    }

    /// Builds the program in Go.
    ///
    /// # Errors
    /// If `go` is missing or fails.
    fn go() -> io::Result<Self> {
        PlainHandler::build(HandlerLanguage::Go).map(Self::Go)
    }

    /// Returns the name of the kind of function.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Own { .. } => "Rust SDK",
            Self::Go(_) => "unmodified Go",
        }
    }

    /// Starts a function as a process of this machine, which calls `next`.
    pub(crate) async fn start(&self, next: Option<SocketAddr>) -> io::Result<PeerProcess> {
        match self {
            Self::Own { .. } => own_programs::start_function(next).await,
            Self::Go(handler) => handler.start_before(next).await,
        }
    }

    /// Returns the spec of a function of a chain, which calls `next`.
    pub(crate) fn spec(&self, chain: &str, name: &str, next: Option<&str>) -> Value {
        let handler = match self {
            Self::Own { folder, .. } => {
                return chain::function_spec(folder, chain, name, next, "ring");
            }
            Self::Go(handler) => handler,
        };
        let url = next.map(|next| format!("http://gateway:8080/function/{next}"));
        let mut spec = handler.spec(name, url.as_deref());
        spec["annotations"] = json!({
            "nearpath.io/chain": chain,
            "nearpath.io/calls": next.unwrap_or_default(),
        });
        spec
    }

    /// Returns the path of calls from outside to a function that is warm.
    pub(crate) fn warm_path(&self) -> &'static str {
        match self {
            Self::Own { .. } => "shm",
            Self::Go(_) => "loopback; obstacle=own_port",
        }
    }
}
