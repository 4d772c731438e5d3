//! The folder that all nodes of an application read, and the certificates of these nodes.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Source and certificates of an application. Dropping it removes both.
pub(crate) struct AppFolder {
    folder: TempDir,
}

impl AppFolder {
    /// Creates a source without functions, for nodes of these names and addresses.
    ///
    /// # Errors
    /// When `nearpath` is missing or creates no certificates.
    pub(crate) fn create(nodes: &[(String, SocketAddr)]) -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("nearpath-nodes.")
            .tempdir()?;
        let app = Self { folder };
        fs::create_dir(app.source())?;
        let list: Map<_, _> = nodes
            .iter()
            .map(|(name, addr)| (name.clone(), json!({ "address": addr.to_string() })))
            .collect();
        app.write_file("nodes.yml", &json!({ "nodes": list }).to_string())?;
        app.issue_certificates(nodes)?;
        Ok(app)
    }

    fn issue_certificates(&self, nodes: &[(String, SocketAddr)]) -> io::Result<()> {
        let (authority, issued) = (self.path("ca"), self.path("certificates"));
        run_nearpath(&["ca", "init", "--dir", &authority])?;
        let mut issue = vec!["ca", "issue", "--dir", &authority, "--out", &issued];
        issue.extend(nodes.iter().map(|(name, _)| name.as_str()));
        run_nearpath(&issue)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    /// Returns the folder with the certificate of a node.
    pub(crate) fn certificates(&self, node: &str) -> PathBuf {
        self.folder.path().join("certificates").join(node)
    }

    /// Returns a new folder for a node's data and log.
    pub(crate) fn create_node_folder(&self, node: &str) -> io::Result<PathBuf> {
        let folder = self.folder.path().join("data").join(node);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Writes the stack file `app.yml`.
    pub(crate) fn write_stack(&self, stack: &Value) -> io::Result<()> {
        self.write_stack_file("app.yml", stack)
    }

    /// Writes another stack file. Nodes read at most 1 MiB of each.
    pub(crate) fn write_stack_file(&self, name: &str, stack: &Value) -> io::Result<()> {
        // JSON is YAML. Line breaks are for the places in messages of faults.
        self.write_file(name, &serde_json::to_string_pretty(stack)?)
    }

    /// Writes a secret of the default namespace.
    pub(crate) fn write_secret(&self, name: &str, value: &str) -> io::Result<()> {
        fs::create_dir_all(self.source().join("secrets"))?;
        fs::write(self.source().join("secrets").join(name), value)
    }

    fn write_file(&self, name: &str, text: &str) -> io::Result<()> {
        // Nodes never see half of a file.
        let beside = self.folder.path().join(name);
        fs::write(&beside, text)?;
        fs::rename(beside, self.source().join(name))
    }
}

/// Returns the entry of a function in a stack file: a folder with an HTTP server, on some nodes.
pub(crate) fn function_entry(folder: &Path, command: &str, port: u16, nodes: &[&str]) -> Value {
    json!({
        "image": format!("file://{}", folder.display()),
        "fprocess": command,
        "environment": {
            "mode": "http",
            "upstream_url": format!("http://127.0.0.1:{port}"),
        },
        "nodes": nodes,
    })
}

fn run_nearpath(args: &[&str]) -> io::Result<()> {
    let output = Command::new("nearpath")
        .args(args)
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot start nearpath: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "nearpath {} failed: {}",
            args[..2].join(" "),
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}
