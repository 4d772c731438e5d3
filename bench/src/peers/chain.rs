//! Two functions that call each other: in a chain of nearpath's, and the ways that others build it,
//! with a proxy beside each or bare.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::nearpath::NearpathServer;
use super::nginx::NginxServer;
use super::{PeerProcess, count_cores, own_programs};

/// Functions with what stands around them. The entry is whom callers ask.
pub(crate) struct FunctionChain {
    functions: Vec<PeerProcess>,
    proxies: Vec<NginxServer>,
    server: Option<(NearpathServer, TempDir)>,
    pub(crate) entry: SocketAddr,
}

impl FunctionChain {
    /// Two functions, the first of which asks the second over HTTP, and nothing else.
    pub(crate) async fn start_direct() -> io::Result<Self> {
        let second = own_programs::start_function(None).await?;
        let first = own_programs::start_function(Some(second.addr)).await?;
        Ok(Self {
            entry: first.addr,
            functions: vec![first, second],
            proxies: Vec::new(),
            server: None,
        })
    }

    /// nginx in front, and an nginx beside each function, which calls go through on their way in:
    /// what a service mesh makes of it. A sidecar has one worker, as it serves one function.
    pub(crate) async fn start_sidecars() -> io::Result<Self> {
        let second = own_programs::start_function(None).await?;
        let beside_second = NginxServer::start(second.addr, 1, "/").await?;
        let first = own_programs::start_function(Some(beside_second.peer.addr)).await?;
        let beside_first = NginxServer::start(first.addr, 1, "/").await?;
        let front = NginxServer::start(beside_first.peer.addr, count_cores(), "/").await?;
        let entry = front.peer.addr;
        Ok(Self {
            functions: vec![first, second],
            proxies: vec![front, beside_first, beside_second],
            server: None,
            entry,
        })
    }

    /// nginx in front of one function without callees: the least that an edge in front of
    /// anything costs.
    pub(crate) async fn start_behind_nginx() -> io::Result<Self> {
        let only = own_programs::start_function(None).await?;
        let front = NginxServer::start(only.addr, count_cores(), "/").await?;
        Ok(Self {
            entry: front.peer.addr,
            functions: vec![only],
            proxies: vec![front],
            server: None,
        })
    }

    /// A running nearpath with both as functions of one chain, each in its sandbox, one instance
    /// each; `delivery` is how their descriptors go.
    pub(crate) async fn start_nearpath(delivery: &str) -> io::Result<Self> {
        Self::start_placed(delivery, "auto", Duration::ZERO).await
    }

    /// The same at a place (`nearpath.io/placement`), where each function works for so long on a
    /// call.
    pub(crate) async fn start_placed(
        delivery: &str,
        place: &str,
        work: Duration,
    ) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let program = program_folder(folder.path())?;
        let server = NearpathServer::start(folder.path()).await?;
        // The callee first, so that the caller is ready only when its callee is.
        for (name, next) in [("second", None), ("first", Some("second"))] {
            let mut spec = function_spec(&program, "bench", name, next, delivery);
            spec["annotations"]["nearpath.io/placement"] = json!(place);
            if let Some(command) = spec["envProcess"].as_str().filter(|_| !work.is_zero()) {
                spec["envProcess"] = json!(format!("{command} --work {}", work.as_micros()));
            }
            server.deploy_function(&spec).await?;
            server.wait_available(name, 1).await?;
        }
        Ok(Self {
            entry: server.addr(),
            functions: Vec::new(),
            proxies: Vec::new(),
            server: Some((server, folder)),
        })
    }

    /// Every process of it.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        let proxies = self.proxies.iter().map(|proxy| proxy.peer.pid());
        let server = self.server.iter().map(|(server, _)| server.pid());
        self.functions
            .iter()
            .map(PeerProcess::pid)
            .chain(proxies)
            .chain(server)
            .collect()
    }
}

/// A folder with this program as `function`, to be deployed.
pub(super) fn program_folder(folder: &Path) -> io::Result<String> {
    let program = folder.join("function");
    std::fs::create_dir(&program)?;
    std::fs::copy(std::env::current_exe()?, program.join("function"))?;
    Ok(program.display().to_string())
}

/// Deployment of this program as a handler, which calls `next` through memory.
pub(super) fn function_spec(
    folder: &str,
    chain: &str,
    name: &str,
    next: Option<&str>,
    delivery: &str,
) -> Value {
    let next_function = next
        .map(|next| format!(" --next-function {next}"))
        .unwrap_or_default();
    json!({
        "service": name,
        "image": format!("file://{folder}"),
        "envProcess": format!("./function handler --listen 127.0.0.1:5000{next_function}"),
        "envVars": { "mode": "http", "upstream_url": "http://127.0.0.1:5000" },
        "annotations": {
            "nearpath.io/chain": chain,
            "nearpath.io/calls": next.unwrap_or_default(),
            "nearpath.io/delivery": delivery,
        },
    })
}
