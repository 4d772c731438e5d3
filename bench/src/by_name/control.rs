//! The comparison's side of a caller: sends tasks, and reads CPU time meanwhile.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use nearpath_kernel::namespace;
use nearpath_testkit::lab::LabNode;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::caller_task::{CallerAnswer, CallerTask};
use crate::nodes::host_program;
use crate::peers::PeerProcess;

/// Port at which a caller takes tasks.
pub(super) const CONTROL_PORT: u16 = 5000;

/// A running caller: its network namespace, at whose loopback it takes tasks.
pub(crate) struct RunningCaller {
    netns: File,
    /// Set for a caller that this comparison started.
    own: Option<PeerProcess>,
}

impl RunningCaller {
    /// Finds the caller of this name in an instance below the process `platform`.
    ///
    /// # Errors
    /// When there is no such process.
    pub(super) fn find_in_instance(platform: u32, name: &str) -> io::Result<Self> {
        // By its command line: the platform gives no process of a function.
        let found = host_program::find_processes(&[platform], &caller_command(name));
        let missing = || io::Error::other(format!("the calling function {name} has no process"));
        let pid = found.first().ok_or_else(missing)?;
        Ok(Self {
            // The file keeps the namespace, whatever becomes of the process.
            netns: File::open(format!("/proc/{pid}/ns/net"))?,
            own: None,
        })
    }

    /// Starts a caller in a namespace without nearpath.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) async fn start_on(node: &LabNode) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // The same arguments as in an instance: both are the same program.
        command.args(caller_command("plain").split(' ').skip(1));
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, CONTROL_PORT));
        Ok(Self {
            own: Some(PeerProcess::start_on(node, command, addr).await?),
            netns: File::open(node.namespace_path())?,
        })
    }

    /// Returns the process of a caller that this comparison started.
    pub(super) fn own_pid(&self) -> Option<u32> {
        self.own.as_ref().map(PeerProcess::pid)
    }

    /// Runs a task, and returns its counts.
    ///
    /// # Errors
    /// When the caller cannot run it, with its reason.
    pub(crate) async fn run_task(&self, task: &CallerTask) -> io::Result<CallerAnswer> {
        let mut stream = BufReader::new(self.connect()?);
        // A new connection for each task: none is kept over a pause of minutes.
        let line = serde_json::to_string(task)? + "\n";
        stream.get_mut().write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        let answer: Result<CallerAnswer, String> = serde_json::from_str(&answer)?;
        answer.map_err(|error| io::Error::other(format!("{task:?}: {error}")))
    }

    fn connect(&self) -> io::Result<TcpStream> {
        // A socket keeps the namespace of the thread that opened it.
        let connect = || {
            let stream = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, CONTROL_PORT))?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        TcpStream::from_std(namespace::run_in_netns(&self.netns, connect)?)
    }
}

/// Returns the command of a caller in a folder with this program.
pub(super) fn caller_command(name: &str) -> String {
    format!("./nearpath-bench direct-caller --port {CONTROL_PORT} --name {name}")
}

/// Copies this program into a folder, for functions.
pub(super) fn copy_program(folder: &std::path::Path) -> io::Result<PathBuf> {
    // A copy: the folder is an image, and images have no links to the outside.
    let copy = folder.join("nearpath-bench");
    std::fs::copy(std::env::current_exe()?, &copy)?;
    Ok(copy)
}
