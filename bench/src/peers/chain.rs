//! Two functions that call each other: in a nearpath chain, behind sidecars, or without a proxy.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::nearpath::NearpathServer;
use super::nginx::NginxServer;
use super::{PeerProcess, count_cores, own_programs};

/// Functions and their proxies. Callers send requests to the entry.
pub(crate) struct FunctionChain {
    functions: Vec<PeerProcess>,
    proxies: Vec<NginxServer>,
    server: Option<(NearpathServer, TempDir)>,
    pub(crate) entry: SocketAddr,
}

impl FunctionChain {
    /// Starts two functions; the first calls the second over HTTP, without a proxy.
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

    /// Starts nginx as front end, and an nginx beside each function for incoming calls, like a
    /// service mesh. A sidecar has one worker, since it serves one function.
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

    /// Starts nginx in front of one function without callees: the minimal cost of a front end.
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

    /// Starts nearpath with both functions in one chain, each sandboxed with one instance;
    /// `delivery` is the descriptor delivery.
    pub(crate) async fn start_nearpath(delivery: &str) -> io::Result<Self> {
        Self::start_placed(delivery, "auto", Duration::ZERO).await
    }

    /// Starts the same chain with a placement (`nearpath.io/placement`), where each call takes this
    /// CPU time.
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

    /// Returns the process ids of the chain.
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

/// Creates a folder with this program as `function`, for deployment.
pub(crate) fn program_folder(folder: &Path) -> io::Result<String> {
    let program = folder.join("function");
    std::fs::create_dir(&program)?;
    std::fs::copy(std::env::current_exe()?, program.join("function"))?;
    Ok(program.display().to_string())
}

/// Returns the spec of this program as a handler, which calls `next` through shared memory.
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
