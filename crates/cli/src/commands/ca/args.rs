//! Options of `ca` as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, value_parser};
use nearpath_types::NodeName;

/// Longest life of a root in days: a hundred years.
const MAX_ROOT_DAYS: i64 = 36_500;

/// Commands for the authority of nodes.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum CaCommand {
    /// Create an authority: ca.key, which signs, and ca.crt, which nodes accept
    Init(CaInitArgs),
    /// Write a new certificate and key for nodes, each into a folder to copy to its machine
    Issue(CaIssueArgs),
    /// Replace the root: the new one signs, and nodes accept the old ones too until `retire`
    Rotate(CaRotateArgs),
    /// Remove all roots but the one that signs, after every node has a certificate of it
    #[command(after_help = "Example: nearpath ca retire --dir /root/shop-ca")]
    Retire(CaRootArgs),
    /// Show the roots and their ends
    #[command(after_help = "Example: nearpath ca show --json")]
    Show(CaRootArgs),
}

/// Options of every command.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct CaRootArgs {
    /// Use the authority in this folder
    #[arg(long, value_name = "DIR", default_value_os_t = super::default_dir().to_owned())]
    pub dir: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `ca init`.
#[derive(Debug, Args)]
#[command(after_help = "Example: nearpath ca init --dir /root/shop-ca --trust-domain shop.example")]
#[allow(missing_docs)]
pub struct CaInitArgs {
    #[command(flatten)]
    pub root: CaRootArgs,
    /// Name the application in all certificates; nodes of other trust domains are refused
    #[arg(long, value_name = "NAME", default_value = "nearpath")]
    pub trust_domain: String,
    /// Let the root end after this many days
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = value_parser!(u32).range(1..=MAX_ROOT_DAYS))]
    pub days: u32,
}

/// Options of `ca issue`.
#[derive(Debug, Args)]
#[command(after_help = "Example: nearpath ca issue east-1 east-2 --out ./certificates --days 30")]
#[allow(missing_docs)]
pub struct CaIssueArgs {
    /// Issue certificates for the nodes of these names
    #[arg(required = true, value_name = "NODE")]
    pub nodes: Vec<NodeName>,
    #[command(flatten)]
    pub root: CaRootArgs,
    /// Write DIR/NODE/{node.crt,node.key,ca.crt}; default: nodes in the authority's folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Let the certificates end after this many days
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = value_parser!(u32).range(1..=MAX_ROOT_DAYS))]
    pub days: u32,
}

/// Options of `ca rotate`.
#[derive(Debug, Args)]
#[command(after_help = "Example: nearpath ca rotate --dir /root/shop-ca")]
#[allow(missing_docs)]
pub struct CaRotateArgs {
    #[command(flatten)]
    pub root: CaRootArgs,
    /// Let the new root end after this many days
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = value_parser!(u32).range(1..=MAX_ROOT_DAYS))]
    pub days: u32,
}
