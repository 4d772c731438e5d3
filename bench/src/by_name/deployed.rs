//! Functions under `nearpath up` that call each other by name.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::control::{self, RunningCaller};
use crate::peers::nearpath::{NearpathServer, UpSettings};

/// Interval between looks at the state of edges.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time in which the state of edges must be as a comparison needs it.
const STATE_TIMEOUT: Duration = Duration::from_secs(60);
/// Namespace of the functions, as edges name them.
const NAMESPACE: &str = "openfaas-fn";

/// `nearpath up`, and the folder with this program that its functions run.
pub(crate) struct NamedFunctions {
    pub(crate) server: NearpathServer, // before the folders: it ends first
    program: TempDir,
    _data: TempDir,
}

/// Counts of an edge, as `/system/edges` has them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EdgeCounts {
    pub(crate) connections: u64,
    pub(crate) denied: u64,
}

impl NamedFunctions {
    /// Starts the server without functions.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) async fn start() -> io::Result<Self> {
        Self::start_logged(None).await
    }

    /// Starts the server with this filter of its log.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) async fn start_logged(log_filter: Option<&'static str>) -> io::Result<Self> {
        // Two folders: the data of a server must not be in an image.
        let (program, data) = (tempfile::tempdir()?, tempfile::tempdir()?);
        control::copy_program(program.path())?;
        let settings = UpSettings {
            log_filter,
            ..UpSettings::default()
        };
        Ok(Self {
            server: NearpathServer::start_set(data.path(), settings).await?,
            program,
            _data: data,
        })
    }

    /// Deploys a function, and waits for its instance.
    ///
    /// # Errors
    /// With the server's log, when no instance becomes ready.
    pub(crate) async fn deploy_ready(&self, spec: &Value) -> io::Result<()> {
        self.server.deploy_function(spec).await?;
        let name = spec["service"].as_str().unwrap_or_default();
        self.server.wait_available(name, 1).await.map(drop)
    }

    /// Deploys a caller with the callees `calls`, in the notation of `nearpath.io/calls`.
    ///
    /// # Errors
    /// With the server's log, when no instance becomes ready.
    pub(crate) async fn deploy_caller(&self, name: &str, calls: &str) -> io::Result<RunningCaller> {
        let command = control::caller_command(name);
        let mut spec = self.program_spec(name, &command, control::CONTROL_PORT);
        spec["annotations"] = json!({ "nearpath.io/calls": calls });
        self.deploy_ready(&spec).await?;
        // After it is ready: before, its process is the watchdog.
        RunningCaller::find_in_instance(self.server.pid(), name)
    }

    /// Returns the spec of a function that runs this program, and is ready when `port` is.
    pub(crate) fn program_spec(&self, name: &str, command: &str, port: u16) -> Value {
        function_spec(name, self.program.path(), command, port)
    }

    /// Returns the counts of an edge; zeros without one.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(crate) async fn edge_counts(&self, caller: &str, callee: &str) -> io::Result<EdgeCounts> {
        let request = (http::Method::GET, "/system/edges", &Value::Null);
        let (_, edges) = self
            .server
            .send_request(request.0, request.1, request.2)
            .await?;
        Ok(counts_of(&edges, caller, callee))
    }

    /// Waits until the kernel has counted connections of an edge. `attempt` opens one.
    ///
    /// # Errors
    /// When no connection of `attempt` is counted in time.
    pub(crate) async fn wait_straight(
        &self,
        (caller, callee): (&str, &str),
        attempt: impl AsyncFn() -> io::Result<()>,
    ) -> io::Result<()> {
        let end = tokio::time::Instant::now() + STATE_TIMEOUT;
        while tokio::time::Instant::now() < end {
            // The gateway takes a connection while the callee's listener is not noted yet.
            attempt().await?;
            if self.edge_counts(caller, callee).await?.connections > 0 {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Err(io::Error::other(format!(
            "connections of {caller} do not go straight to {callee}: see nearpath doctor"
        )))
    }

    /// Returns the virtual address of a function.
    ///
    /// # Errors
    /// When it has none: it is not deployed.
    pub(crate) async fn virtual_address(&self, name: &str) -> io::Result<String> {
        let (_, described) = self.server.describe_function(name).await?;
        let address = described["virtualAddress"].as_str().map(str::to_owned);
        let missing = || format!("{name} has no virtual address");
        address.ok_or_else(|| io::Error::other(missing()))
    }
}

/// Returns the spec of a server in a folder, which is ready when `port` is.
pub(crate) fn function_spec(name: &str, folder: &Path, command: &str, port: u16) -> Value {
    json!({
        "service": name,
        "image": format!("file://{}", folder.display()),
        "envProcess": command,
        "envVars": { "mode": "http", "upstream_url": format!("http://127.0.0.1:{port}") },
    })
}

/// Returns a function's name as edges and metrics have it.
pub(crate) fn full_name(function: &str) -> String {
    format!("{function}.{NAMESPACE}")
}

fn counts_of(edges: &Value, caller: &str, callee: &str) -> EdgeCounts {
    let (caller, callee) = (full_name(caller), full_name(callee));
    let mut rows = edges.as_array().into_iter().flatten();
    // An edge without traffic may have no row.
    let row = rows.find(|row| row["caller"] == caller && row["callee"] == callee);
    let count = |field: &str| row.and_then(|row| row[field].as_u64()).unwrap_or_default();
    EdgeCounts {
        connections: count("connections"),
        denied: count("deniedConnections"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_edge() {
        let edges = json!([
            { "caller": "a.openfaas-fn", "callee": "c.openfaas-fn", "connections": 1 },
            { "caller": "a.openfaas-fn", "callee": "b.openfaas-fn", "deniedConnections": 2 },
        ]);
        let denied = EdgeCounts {
            connections: 0,
            denied: 2,
        };
        assert_eq!(counts_of(&edges, "a", "b"), denied);
        assert_eq!(counts_of(&edges, "b", "a"), EdgeCounts::default());
    }
}
