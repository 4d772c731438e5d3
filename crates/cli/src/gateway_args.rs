//! Options of every command that calls the gateway.

use std::path::PathBuf;

use clap::Args;

/// The gateway to use, and the credentials for it.
#[derive(Debug, Clone, Default, Args)]
pub struct GatewayArgs {
    /// Use the gateway at this address [default: $OPENFAAS_URL, the stack file's
    /// provider.gateway, http://127.0.0.1:8080]
    #[arg(short, long, value_name = "URL", help_heading = "Gateway")]
    pub gateway: Option<String>,
    /// Log in with this administrator's name
    #[arg(
        long,
        value_name = "NAME",
        env = "NEARPATH_USERNAME",
        help_heading = "Gateway"
    )]
    pub username: Option<String>,
    /// Read the administrator's password from this file [default: $NEARPATH_PASSWORD, or the one
    /// that `nearpath up` created here]
    #[arg(long, value_name = "FILE", help_heading = "Gateway")]
    pub password_file: Option<PathBuf>,
    /// Trust the authorities in this file (PEM) for an https gateway [default: the machine's]
    #[arg(long, value_name = "FILE", help_heading = "Gateway")]
    pub tls_ca: Option<PathBuf>,
    /// Do not verify the certificate of an https gateway: anyone in between can read the password
    #[arg(long, conflicts_with = "tls_ca", help_heading = "Gateway")]
    pub tls_no_verify: bool,
}

/// Parses `KEY=VALUE`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.to_owned()))
        }
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}
