//! Handlers of `default`: plain HTTP servers as users write them, alone or deployed unmodified.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use nearpath_testkit::lab::LabNode;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::nearpath::NearpathServer;
use super::{PeerProcess, free_addr};
use crate::cpu::process_tree;

/// Port of the handler inside its instance.
const INSTANCE_PORT: u16 = 5000;

/// Language of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HandlerLanguage {
    /// A static program in C with the least work.
    C,
    /// Go's `net/http`.
    Go,
    /// Python's `http.server`.
    Python,
}

/// A handler's folder, as it is deployed.
pub(crate) struct PlainHandler {
    folder: TempDir,
    command: Vec<&'static str>,
}

/// `nearpath up` with the handler as its only function, and the ids of its processes.
pub(crate) struct DeployedHandler {
    server: NearpathServer,
    handler: u32,
    _folder: TempDir,
}

impl HandlerLanguage {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::C => "static C",
            Self::Go => "Go",
            Self::Python => "Python",
        }
    }
}

impl PlainHandler {
    /// Builds the handler in a folder of its own.
    ///
    /// # Errors
    /// If the compiler is missing or fails.
    pub(crate) fn build(language: HandlerLanguage) -> io::Result<Self> {
        let (folder, sources) = (tempfile::tempdir()?, Path::new("bench/functions/default"));
        let program = folder.path().join("bench-handler");
        match language {
            HandlerLanguage::C => {
                let mut cc = Command::new("cc");
                cc.args(["-O2", "-static", "-o"]).arg(&program);
                run_tool(cc.arg(sources.join("static_handler.c")))?;
            }
            HandlerLanguage::Go => {
                let mut go = Command::new("go");
                go.current_dir(sources.join("go")).env("CGO_ENABLED", "0");
                run_tool(go.args(["build", "-o"]).arg(&program).arg("."))?;
            }
            HandlerLanguage::Python => {
                std::fs::copy(sources.join("handler.py"), folder.path().join("handler.py"))?;
            }
        }
        let command = match language {
            HandlerLanguage::C | HandlerLanguage::Go => vec!["./bench-handler"],
            HandlerLanguage::Python => vec!["python3", "handler.py"],
        };
        Ok(Self { folder, command })
    }

    /// Starts it as a process of this machine.
    pub(crate) async fn start(&self) -> io::Result<PeerProcess> {
        self.start_before(None).await
    }

    /// Starts it as a process of this machine, which calls `next`. Only the one in Go does.
    pub(crate) async fn start_before(&self, next: Option<SocketAddr>) -> io::Result<PeerProcess> {
        let addr = free_addr()?;
        let next = next.map(|next| format!("http://{next}/"));
        PeerProcess::start(self.command_at(addr.port(), next.as_deref()), addr).await
    }

    /// Starts it on a machine of the lab, at a port of its loopback. It calls the URL `next`.
    pub(crate) async fn start_on(
        &self,
        node: &LabNode,
        port: u16,
        next: Option<&str>,
    ) -> io::Result<PeerProcess> {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        PeerProcess::start_on(node, self.command_at(port, next), addr).await
    }

    /// Returns the command that serves a port of another address. Only the one in C does.
    pub(crate) fn command_at_address(&self, addr: SocketAddr) -> Command {
        self.command_at(addr.port(), Some(&addr.ip().to_string()))
    }

    fn command_at(&self, port: u16, argument: Option<&str>) -> Command {
        let program = match self.command[0].strip_prefix("./") {
            Some(own) => self.folder.path().join(own),
            None => PathBuf::from(self.command[0]),
        };
        let mut command = Command::new(program);
        command.current_dir(self.folder.path());
        command.args(&self.command[1..]).arg(port.to_string());
        command.args(argument);
        command
    }

    /// Returns the folder in which its command runs.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the command that serves `port`.
    pub(crate) fn command_line(&self, port: u16) -> String {
        format!("{} {port}", self.command.join(" "))
    }

    /// Returns its spec as the guide has it, unmodified. It calls the URL `next`; only the one in Go
    /// does.
    pub(crate) fn spec(&self, name: &str, next: Option<&str>) -> Value {
        let command = self.command_line(INSTANCE_PORT);
        json!({
            "service": name,
            "image": format!("file://{}", self.folder.path().display()),
            "envProcess": format!("{command} {}", next.unwrap_or_default()),
            "envVars": {
                "mode": "http",
                "upstream_url": format!("http://127.0.0.1:{INSTANCE_PORT}"),
            },
        })
    }

    /// Deploys it as the guide does.
    pub(crate) async fn deploy(&self) -> io::Result<DeployedHandler> {
        self.deploy_spec(&self.spec("handler", None)).await
    }

    /// Deploys it with `nearpath.io/loopback: sockmap`.
    pub(crate) async fn deploy_by_sockmap(&self) -> io::Result<DeployedHandler> {
        let mut spec = self.spec("handler", None);
        spec["annotations"] = json!({ "nearpath.io/loopback": "sockmap" });
        self.deploy_spec(&spec).await
    }

    async fn deploy_spec(&self, spec: &Value) -> io::Result<DeployedHandler> {
        let data = tempfile::tempdir()?;
        let server = NearpathServer::start(data.path()).await?;
        server.deploy_function(spec).await?;
        server.wait_available("handler", 1).await?;
        // The last descendant: the watchdog starts it when everything else runs.
        let is_handler = |pid: &u32| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.starts_with(self.command[0].as_bytes()))
        };
        let handler = process_tree(&[server.pid()]).into_iter().rfind(is_handler);
        let handler =
            handler.ok_or_else(|| io::Error::other("the deployed handler has no process"))?;
        Ok(DeployedHandler {
            server,
            handler,
            _folder: data,
        })
    }
}

impl DeployedHandler {
    pub(crate) fn server(&self) -> &NearpathServer {
        &self.server
    }

    /// Returns the process of the handler.
    pub(crate) fn handler_pid(&self) -> u32 {
        self.handler
    }
}

/// Runs a program of the build to its end.
pub(crate) fn run_tool(command: &mut Command) -> io::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{program} failed: {status}"))),
    }
}
