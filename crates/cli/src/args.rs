//! The command line as typed; each command's options are in its own file. Commands look up what the
//! options refer to.

use clap::{Parser, Subcommand};

use crate::commands::{
    BackupArgs, CaCommand, CompletionArgs, DeployArgs, DescribeArgs, InvokeArgs, LogsArgs, LsArgs,
    NodesArgs, PoolCommand, RestoreArgs, RmArgs, ScaleArgs, StatusCommand, VersionArgs,
};
use crate::doctor::DoctorArgs;
use crate::rendezvous::RendezvousArgs;
use crate::up::{NodeArgs, UpArgs};

/// Serverless functions, every call over the nearest path.
#[derive(Debug, Parser)]
#[command(name = "nearpath", version, max_term_width = 100, after_help = exit_code_help())]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// A command with its options.
#[derive(Debug, Subcommand)]
#[allow(missing_docs, reason = "the variants' documents are the help texts")]
pub enum Command {
    /// Run controller, node and gateway in one process, until Ctrl-C
    // Boxed where options are many: the enum is as large as its largest variant.
    Up(Box<UpArgs>),
    /// Run the same as one of several nodes, with what a folder declares
    Node(Box<NodeArgs>),
    /// Deploy the functions of a stack file, or one function from options
    Deploy(Box<DeployArgs>),
    /// List functions
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Show all nodes, with their states and sources
    Nodes(NodesArgs),
    /// Show the configuration, state and instances of a function
    Describe(DescribeArgs),
    /// Call a function: the body from -d or standard input, the response to standard output
    Invoke(InvokeArgs),
    #[command(flatten)]
    Status(StatusCommand),
    /// Show connections to destinations outside (`egress`)
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Serve the rendezvous and relay for workers behind NATs, or mint a ticket for one
    Rendezvous(Box<RendezvousArgs>),
    /// Show the log lines of a function's instances
    Logs(LogsArgs),
    /// Set the number of instances of a function; 0 scales it to zero
    Scale(ScaleArgs),
    /// Remove functions
    #[command(visible_alias = "remove")]
    Rm(RmArgs),
    /// Save the functions, secrets and namespaces of a running gateway in a file
    Backup(BackupArgs),
    /// Make a data directory of a backup; offline, before `up`
    Restore(RestoreArgs),
    /// Create and renew the certificates with which nodes call each other
    #[command(subcommand)]
    Ca(CaCommand),
    /// Check prerequisites and explain how to fix what is missing
    Doctor(DoctorArgs),
    /// Show the version of this program and of the gateway
    Version(VersionArgs),
    /// Print a completion script for a shell
    Completion(CompletionArgs),
}

fn exit_code_help() -> String {
    let lines = crate::exit::ExitStatus::TABLE
        .iter()
        .map(|(exit, text)| format!("  {}  {text}", *exit as u8));
    format!("Exit codes:\n{}", lines.collect::<Vec<_>>().join("\n"))
}
