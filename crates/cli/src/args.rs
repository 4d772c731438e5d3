//! The command line as it is typed. Nothing is looked up here: what the words come to is decided by the commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use nearpath_types::{FunctionId, Namespace, duration};

use crate::rendezvous::RendezvousArgs;
use crate::up::UpArgs;

/// Serverless functions, every call over the nearest path.
#[derive(Debug, Parser)]
#[command(name = "nearpath", version, max_term_width = 100, after_help = exit_codes())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)] // the variants' documents are the help texts
pub enum Command {
    /// Run controller, node and gateway in one process, until Ctrl-C
    Up(Box<UpArgs>),
    /// Deploy the functions of a stack file, or one function by its options
    Deploy(Box<DeployArgs>),
    /// List functions
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Show all that is known of a function
    Describe(DescribeArgs),
    /// Call a function: the body from -d or standard input, the answer to standard output
    Invoke(InvokeArgs),
    /// Show which path calls take, edge by edge, and why no nearer one
    Paths(ChainArgs),
    /// Show what the edges of chains counted in shared memory
    Edges(ChainArgs),
    /// Show who holds how much of the chains' shared memory
    Memory(ChainArgs),
    /// Show connections to destinations outside (`egress`)
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Serve the rendezvous and relay for workers behind NATs, or mint a ticket for one
    Rendezvous(Box<RendezvousArgs>),
    /// Show what a function's instances wrote
    Logs(LogsArgs),
    /// Set how many instances of a function run; 0 puts it to sleep
    Scale(ScaleArgs),
    /// Remove functions
    #[command(visible_alias = "remove")]
    Rm(RmArgs),
    /// Check what this machine can do, what is lost and what to do about it
    Doctor(DoctorArgs),
    /// Show the version of this program and of the gateway
    Version(VersionArgs),
    /// Print a completion script for a shell
    Completion(CompletionArgs),
}

/// Which gateway, and who asks.
#[derive(Debug, Clone, Default, Args)]
pub struct Connection {
    /// Gateway's address [default: $OPENFAAS_URL, the stack file's provider.gateway, http://127.0.0.1:8080]
    #[arg(short, long, value_name = "URL", help_heading = "Gateway")]
    pub gateway: Option<String>,
    /// Administrator's name
    #[arg(long, value_name = "NAME", env = "NEARPATH_USERNAME", help_heading = "Gateway")]
    pub username: Option<String>,
    /// File with the administrator's password [default: $NEARPATH_PASSWORD, or the one that `nearpath up` made here]
    #[arg(long, value_name = "FILE", help_heading = "Gateway")]
    pub password_file: Option<PathBuf>,
}

/// How long to wait for functions to become ready.
#[derive(Debug, Clone, Args)]
pub struct Waiting {
    /// Do not wait until the functions are ready
    #[arg(long, conflicts_with = "wait")]
    pub no_wait: bool,
    /// Wait until they are ready (the default)
    #[arg(long)]
    pub wait: bool,
    /// Longest wait
    #[arg(long, default_value = "60s", value_parser = duration::parse, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Options of `deploy`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct DeployArgs {
    /// Function to deploy by its options instead of a stack file
    #[arg(value_name = "NAME", conflicts_with = "file")]
    pub name: Option<FunctionId>,
    /// Stack file [default: stack.yml or stack.yaml here]
    #[arg(short, long, visible_alias = "yaml", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Only functions whose name matches; `*` stands for anything
    #[arg(long, value_name = "GLOB", conflicts_with = "name")]
    pub filter: Option<String>,
    /// Image of NAME
    #[arg(long, value_name = "REFERENCE", requires = "name", conflicts_with = "handler")]
    pub image: Option<String>,
    /// Folder of NAME on this machine
    #[arg(long, value_name = "DIR", requires = "name")]
    pub handler: Option<PathBuf>,
    /// Command that runs NAME
    #[arg(long, value_name = "COMMAND", requires = "name")]
    pub fprocess: Option<String>,
    /// Environment variable, for every function deployed
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Label, for every function deployed
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = pair)]
    pub label: Vec<(String, String)>,
    /// Annotation, for every function deployed
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub annotation: Vec<(String, String)>,
    /// Secret that every function deployed may read
    #[arg(long, value_name = "NAME")]
    pub secret: Vec<String>,
    #[command(flatten)]
    pub waiting: Waiting,
    /// Print what happened as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connection: Connection,
}

/// Options of `ls`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct LsArgs {
    /// Namespace to list
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<Namespace>,
    /// Print JSON: a list of OpenFaaS's FunctionStatus
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connection: Connection,
}

/// Options of `describe`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct DescribeArgs {
    /// Function, as NAME or NAME.NAMESPACE
    pub name: FunctionId,
    /// Print JSON: OpenFaaS's FunctionStatus
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connection: Connection,
}

/// Options of `paths`, `edges` and `memory`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct ChainArgs {
    /// Chain or function; NAME.NAMESPACE in another namespace [default: all of the namespace]
    #[arg(value_name = "CHAIN|FUNCTION")]
    pub name: Option<FunctionId>,
    /// Namespace
    #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "name")]
    pub namespace: Option<Namespace>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connection: Connection,
}

/// What to show of connections to destinations outside.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)]
pub enum PoolCommand {
    /// List them by function and destination, with what was counted since the node started
    #[command(visible_alias = "list")]
    Ls(ChainArgs),
    /// Show how fast they go, again and again, until Ctrl-C
    Top(PoolTopArgs),
}

/// Options of `pool top`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct PoolTopArgs {
    /// Time between two looks
    #[arg(long, default_value = "2s", value_parser = duration::parse, value_name = "DURATION")]
    pub interval: Duration,
    /// End after so many tables
    #[arg(long, value_name = "COUNT")]
    pub count: Option<u64>,
    /// Chain or function; NAME.NAMESPACE in another namespace [default: all of the namespace]
    #[arg(value_name = "CHAIN|FUNCTION")]
    pub name: Option<FunctionId>,
    /// Namespace
    #[arg(short, long, value_name = "NAMESPACE", conflicts_with = "name")]
    pub namespace: Option<Namespace>,
    #[command(flatten)]
    pub connection: Connection,
}

/// Options of `invoke`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct InvokeArgs {
    /// Function, as NAME or NAME.NAMESPACE
    pub name: FunctionId,
    /// Body: the text itself, @FILE, or - for standard input [default: standard input unless it is a terminal]
    #[arg(short, long, value_name = "DATA", allow_hyphen_values = true)]
    pub data: Option<String>,
    /// Header field
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = header)]
    pub header: Vec<(String, String)>,
    /// HTTP method
    #[arg(short = 'X', long, default_value = "POST")]
    pub method: String,
    /// Path after the function's name
    #[arg(long, default_value = "", hide_default_value = true)]
    pub path: String,
    /// Query parameter
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub query: Vec<(String, String)>,
    /// Give up after this long
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub timeout: Option<Duration>,
    /// Queue the call and return at once; comes with a later version
    #[arg(long = "async")]
    pub asynchronous: bool,
    /// Print status and header fields to standard error
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub connection: Connection,
}

/// Options of `logs`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct LogsArgs {
    /// Function, as NAME or NAME.NAMESPACE
    pub name: FunctionId,
    /// Go on with new lines until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last lines
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
    /// Only lines of the last while
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub since: Option<Duration>,
    /// Only lines of this instance
    #[arg(long, value_name = "ID")]
    pub instance: Option<String>,
    /// Print one JSON object a line, as the gateway sends them
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connection: Connection,
}

/// Options of `scale`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct ScaleArgs {
    /// Function, as NAME or NAME.NAMESPACE
    pub name: FunctionId,
    /// Instances wanted
    pub replicas: u64,
    /// Wait until they are ready
    #[arg(long)]
    pub wait: bool,
    /// Longest wait
    #[arg(long, default_value = "60s", value_parser = duration::parse, value_name = "DURATION")]
    pub timeout: Duration,
    /// Print what happened as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connection: Connection,
}

/// Options of `rm`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct RmArgs {
    /// Functions, as NAME or NAME.NAMESPACE
    #[arg(value_name = "NAME", required_unless_present = "file")]
    pub names: Vec<FunctionId>,
    /// Every function of a stack file
    #[arg(short, long, visible_alias = "yaml", value_name = "FILE", conflicts_with = "names")]
    pub file: Option<PathBuf>,
    /// Print what happened as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connection: Connection,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct DoctorArgs {
    /// Data directory to check [default: as `nearpath up`]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Print the checks as JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `version`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub connection: Connection,
}

/// Options of `completion`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct CompletionArgs {
    /// Which shell
    pub shell: clap_complete::Shell,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

/// `NAME: VALUE`, or `NAME=VALUE` as OpenFaaS's client takes it.
fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once([':', '=']) {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err("write `NAME: VALUE`".to_owned()),
    }
}

fn exit_codes() -> String {
    let lines = crate::exit::Exit::TABLE.iter().map(|(exit, text)| format!("  {}  {text}", *exit as u8));
    format!("Exit codes:\n{}", lines.collect::<Vec<_>>().join("\n"))
}
