//! All nodes of one application.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;

use super::app_folder::AppFolder;
use super::host_program;
use super::machines::Machine;
use super::node_process::{NodePlan, NodePorts, NodeProcess};
use crate::load::connection;

/// Paths of calls between nodes.
pub(crate) const BETWEEN_NODES: [&str; 2] = ["quic", "tls"];

/// A node to start: its name, its machine and its variables.
pub(crate) struct NodeRole<'a> {
    pub(crate) name: &'a str,
    pub(crate) machine: &'a Machine,
    pub(crate) ports: NodePorts,
    /// Address of its gateway for clients.
    pub(crate) listen: Ipv4Addr,
    pub(crate) variables: Vec<(&'a str, String)>,
}

/// Nodes with the folder that they read. The first one gets the calls of clients.
pub(crate) struct NodeSet {
    pub(crate) nodes: Vec<NodeProcess>, // before the folder: they end first
    pub(crate) app: AppFolder,
}

impl<'a> NodeRole<'a> {
    /// Returns a node at the n-th place of its machine.
    pub(crate) fn new(name: &'a str, machine: &'a Machine, place: u16) -> Self {
        Self {
            name,
            machine,
            ports: NodePorts::of_place(place),
            listen: Ipv4Addr::LOCALHOST,
            variables: Vec::new(),
        }
    }

    /// Returns the address for other nodes.
    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.machine.socket_addr(self.ports.nodes)
    }
}

impl NodeSet {
    /// Starts nodes that serve this stack, and waits until all of them reach each other.
    ///
    /// # Errors
    /// When a node does not start, with its log.
    pub(crate) async fn start(roles: &[NodeRole<'_>], stack: &Value) -> io::Result<Self> {
        Self::start_with_secrets(roles, stack, &[]).await
    }

    /// Starts nodes with these secrets.
    pub(crate) async fn start_with_secrets(
        roles: &[NodeRole<'_>],
        stack: &Value,
        secrets: &[(&str, &str)],
    ) -> io::Result<Self> {
        let list: Vec<_> = roles
            .iter()
            .map(|role| (role.name.to_owned(), role.peer_addr()))
            .collect();
        let app = AppFolder::create(&list)?;
        for (name, value) in secrets {
            app.write_secret(name, value)?;
        }
        app.write_stack(stack)?;
        let mut nodes = Vec::new();
        for role in roles {
            let plan = NodePlan {
                name: role.name,
                machine: role.machine,
                ports: role.ports,
                listen: role.listen,
                variables: &role.variables,
            };
            nodes.push(NodeProcess::start(&app, &plan).await?);
        }
        let set = Self { nodes, app };
        set.wait_peers().await?;
        Ok(set)
    }

    async fn wait_peers(&self) -> io::Result<()> {
        for node in &self.nodes {
            for other in self.nodes.iter().filter(|other| other.name != node.name) {
                node.wait_peer_up(&other.name).await?;
            }
        }
        Ok(())
    }

    /// Returns the node that gets the calls of clients.
    pub(crate) fn entry(&self) -> &NodeProcess {
        &self.nodes[0]
    }

    /// Returns the node of this name.
    pub(crate) fn node(&self, name: &str) -> io::Result<&NodeProcess> {
        let found = self.nodes.iter().find(|node| node.name == name);
        found.ok_or_else(|| io::Error::other(format!("node {name} was not started")))
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(NodeProcess::pid).collect()
    }

    /// Returns the processes of instances whose command line begins so.
    pub(crate) fn handler_pids(&self, command: &str) -> Vec<u32> {
        host_program::find_processes(&self.pids(), command)
    }

    /// Waits until a function answers calls from `node`, over one of these paths to another node.
    pub(crate) async fn wait_callable(
        &self,
        node: &NodeProcess,
        function: &str,
        paths: &[&str],
    ) -> io::Result<()> {
        let uri = format!("/function/{function}");
        node.wait_state(
            &format!("{function} answers by {}", paths.join(" or ")),
            async || {
                let request = Request::get(&uri)
                    .header("host", "bench")
                    .header("x-nearpath-path", "tell")
                    .body(Full::<Bytes>::default())
                    .map_err(io::Error::other)?;
                // The entry's machine is the one of this thread.
                let answer = connection::send_once(node.addr(), request).await;
                let answer = answer.map_err(|failure| io::Error::other(failure.to_string()))?;
                let (status, used) = (answer.status, &answer.path);
                let is_expected = paths.iter().any(|path| used.starts_with(path));
                match status.is_success() && is_expected {
                    true => Ok(true),
                    false => Err(io::Error::other(format!(
                        "status {status} {}, path {used:?}",
                        answer.reason
                    ))),
                }
            },
        )
        .await
    }
}
