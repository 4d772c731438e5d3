//! A running `nearpath node` on a machine of the lab.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use nearpath_testkit::lab::LabNode;
use serde_json::Value;
use tokio::time::Instant;

use super::app_folder::AppFolder;
use super::host_program;
use super::machines::Machine;
use crate::load::connection::LoadResponse;
use crate::peers::PeerProcess;

/// Time in which a node must reach a state that a comparison needs. Debug builds on a busy machine
/// start slowly.
const STATE_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval between looks at a node's state.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Ports of a node. Nodes of one machine need different ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodePorts {
    gateway: u16,
    admin: u16,
    pub(crate) nodes: u16,
}

impl NodePorts {
    /// Returns the ports of the n-th node of a machine.
    pub(crate) fn of_place(place: u16) -> Self {
        Self {
            gateway: 8080 + 100 * place,
            admin: 8081 + 100 * place,
            nodes: 8444 + 100 * place,
        }
    }
}

/// A node, as it is started.
pub(crate) struct NodePlan<'a> {
    pub(crate) name: &'a str,
    pub(crate) machine: &'a Machine,
    pub(crate) ports: NodePorts,
    /// Address of its gateway for clients.
    pub(crate) listen: Ipv4Addr,
    /// Further variables of its environment.
    pub(crate) variables: &'a [(&'a str, String)],
}

/// A running node. Dropping it stops it with SIGTERM, so that it removes its instances and cgroups.
pub(crate) struct NodeProcess {
    pub(crate) name: String,
    peer: PeerProcess,
    machine: LabNode,
    admin: SocketAddr,
    log: PathBuf,
}

impl NodeProcess {
    /// Starts the node, and waits until its gateway listens.
    ///
    /// # Errors
    /// With the node's log, if it does not start.
    pub(crate) async fn start(app: &AppFolder, plan: &NodePlan<'_>) -> io::Result<Self> {
        let folder = app.create_node_folder(plan.name)?;
        let log = folder.join("node.log");
        let addr = SocketAddr::from((plan.listen, plan.ports.gateway));
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, plan.ports.admin));
        let mut command = Command::new("nearpath");
        command.args(["node", "--name", plan.name]);
        if plan.listen.is_loopback() {
            // Elsewhere orders need a password, and calls of functions do not.
            command.arg("--insecure");
        }
        command.arg("--source").arg(app.source());
        command.arg("--data-dir").arg(folder.join("data"));
        command
            .arg("--node-certificates")
            .arg(app.certificates(plan.name));
        let nodes = plan.machine.socket_addr(plan.ports.nodes);
        for (option, addr) in [
            ("--node-listen", nodes),
            ("--listen", addr),
            ("--admin-listen", admin),
        ] {
            command.arg(option).arg(addr.to_string());
        }
        command.envs(plan.variables.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::null()).stderr(File::create(&log)?);
        let started = PeerProcess::start_on(&plan.machine.node, command, addr).await;
        let peer = started.map_err(|error| with_log(&error, &log))?;
        Ok(Self {
            name: plan.name.to_owned(),
            peer,
            machine: plan.machine.node.clone(),
            admin,
            log,
        })
    }

    /// Returns the address of its gateway.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.peer.addr
    }

    pub(crate) fn pid(&self) -> u32 {
        self.peer.pid()
    }

    pub(crate) fn log_text(&self) -> io::Result<String> {
        fs::read_to_string(&self.log)
    }

    /// Sends a GET to its gateway from its machine.
    pub(crate) async fn get(&self, path: &str) -> io::Result<LoadResponse> {
        self.send(self.addr(), path).await
    }

    async fn send(&self, addr: SocketAddr, path: &str) -> io::Result<LoadResponse> {
        let request = Request::get(path).header("host", addr.to_string());
        let request = request
            .body(Full::<Bytes>::default())
            .map_err(io::Error::other)?;
        let answer = host_program::send_once(&self.machine, addr, request).await;
        answer.map_err(|failure| io::Error::other(format!("{}: {path}: {failure}", self.name)))
    }

    /// Waits until a function has a ready instance on this node.
    pub(crate) async fn wait_available(&self, function: &str) -> io::Result<()> {
        self.wait_state(&format!("{function} has a ready instance"), async || {
            let answer = self.get(&format!("/system/function/{function}")).await?;
            let state: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            Ok(state["availableReplicas"].as_u64() >= Some(1))
        })
        .await
    }

    /// Waits until calls to this other node may go there.
    pub(crate) async fn wait_peer_up(&self, node: &str) -> io::Result<()> {
        let line = format!("nearpath_peer_up{{node=\"{node}\"}} 1");
        self.wait_state(&format!("node {node} is up"), async || {
            let answer = self.send(self.admin, "/metrics").await?;
            Ok(String::from_utf8_lossy(&answer.body)
                .lines()
                .any(|one| one.starts_with(&line)))
        })
        .await
    }

    /// Waits until `reached` returns true.
    ///
    /// # Errors
    /// With the node's log, when that takes too long or the node has ended.
    pub(crate) async fn wait_state(
        &self,
        what: &str,
        reached: impl AsyncFn() -> io::Result<bool>,
    ) -> io::Result<()> {
        let end = Instant::now() + STATE_TIMEOUT;
        let mut last = None;
        while Instant::now() < end {
            match reached().await {
                Ok(true) => return Ok(()),
                Ok(false) => last = None,
                Err(error) => last = Some(error),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let last = last.map(|error| format!(", {error}")).unwrap_or_default();
        let text = format!(
            "timeout after {} s: node {}: {what}{last}",
            STATE_TIMEOUT.as_secs(),
            self.name
        );
        Err(with_log(&io::Error::other(text), &self.log))
    }
}

fn with_log(error: &io::Error, log: &PathBuf) -> io::Error {
    /// Lines of the log that an error shows.
    const MAX_LINES: usize = 40;
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let end = lines[lines.len().saturating_sub(MAX_LINES)..].join("\n");
    io::Error::new(error.kind(), format!("{error}\n{end}"))
}
