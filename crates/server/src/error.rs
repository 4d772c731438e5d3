//! Reasons why a server does not start. Texts name the option of `nearpath up` that decides.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;

/// The server did not start, or failed while it ran.
#[derive(Debug, Error)]
pub enum StartError {
    /// The kernel permits no namespaces.
    #[error(
        "no namespaces: the kernel permits neither namespaces nor a user namespace ({0}). `nearpath doctor` explains how to fix it; --no-sandbox runs functions without isolation"
    )]
    NoIsolation(io::Error),
    /// BPF programs need root.
    #[error(
        "--forward tc: loading BPF programs needs root on the machine: run as root, or without --forward"
    )]
    ForwardNeedsRoot,
    /// The limit of open files leaves none for calls.
    #[error(
        "open files: the limit is {limit}, and {threads} gateway threads need {needed}: raise it with `ulimit -n {needed}` or more, or LimitNOFILE= in a systemd unit"
    )]
    OpenFiles {
        /// The soft limit of this process.
        limit: u64,
        /// Gateway threads.
        threads: usize,
        /// The smallest limit.
        needed: u64,
    },
    /// A socket cannot listen.
    #[error("{option} {addr}: {error}")]
    Listen {
        /// The option with the address.
        option: &'static str,
        /// The address.
        addr: SocketAddr,
        /// The cause.
        error: io::Error,
    },
    /// A component failed.
    #[error("{component}: {error}")]
    Component {
        /// The component, or the option that configures it.
        component: &'static str,
        /// The cause.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The issuer of certificates did not start.
    #[error(transparent)]
    Issuer(#[from] nearpath_ca::IssuerStartError),
}

impl StartError {
    /// Adds the option and the address to an error of `bind` or `listen`.
    pub(crate) fn listen(option: &'static str, addr: SocketAddr) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Listen {
            option,
            addr,
            error,
        }
    }

    /// Adds the component, or the option that configures it.
    pub(crate) fn component<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        component: &'static str,
    ) -> impl FnOnce(E) -> Self {
        move |error| Self::Component {
            component,
            error: error.into(),
        }
    }
}
