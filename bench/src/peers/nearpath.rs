//! A running `nearpath up`, controlled over its REST API.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{PeerProcess, free_addr};
use crate::load::connection;

/// `nearpath up` from `PATH`, in its own folder.
pub(crate) struct NearpathServer {
    peer: PeerProcess,
    folder: PathBuf,
    admin: SocketAddr,
    settings: UpSettings,
}

/// Settings of `nearpath up`.
pub(crate) struct UpSettings {
    /// Program that takes the arguments of `nearpath`.
    pub(crate) program: PathBuf,
    /// Further options.
    pub(crate) options: Vec<String>,
    /// Filter of the log.
    pub(crate) log_filter: Option<&'static str>,
}

impl Default for UpSettings {
    fn default() -> Self {
        Self {
            program: "nearpath".into(),
            options: Vec::new(),
            log_filter: None,
        }
    }
}

impl NearpathServer {
    /// Starts the server and waits until it responds. Its log is `up.log` in `folder`.
    pub(crate) async fn start(folder: &Path) -> io::Result<Self> {
        Self::start_set(folder, UpSettings::default()).await
    }

    /// Starts the server with further options of `nearpath up`.
    pub(crate) async fn start_with(folder: &Path, options: Vec<String>) -> io::Result<Self> {
        let settings = UpSettings {
            options,
            ..UpSettings::default()
        };
        Self::start_set(folder, settings).await
    }

    /// Starts the server with these settings.
    pub(crate) async fn start_set(folder: &Path, settings: UpSettings) -> io::Result<Self> {
        let (addr, admin) = (free_addr()?, free_addr()?);
        let command = up_command(folder, addr, admin, &settings)?;
        Ok(Self {
            peer: PeerProcess::start(command, addr).await?,
            folder: folder.to_owned(),
            admin,
            settings,
        })
    }

    /// Returns the server's log.
    pub(crate) fn log_text(&self) -> io::Result<String> {
        std::fs::read_to_string(self.folder.join("up.log"))
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.peer.addr
    }

    pub(crate) fn pid(&self) -> u32 {
        self.peer.pid()
    }

    /// Stops the server with SIGTERM and restarts it on the same ports and data.
    pub(crate) async fn restart(&mut self) -> io::Result<()> {
        self.peer.send_signal(Signal::TERM)?;
        self.peer.wait_end().await?;
        let addr = self.peer.addr;
        self.peer = PeerProcess::start(
            up_command(&self.folder, addr, self.admin, &self.settings)?,
            addr,
        )
        .await?;
        Ok(())
    }

    /// Sends a request to the REST API.
    pub(crate) async fn send_request(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> io::Result<(StatusCode, Value)> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.addr().to_string());
        let request = request
            .body(Full::from(Bytes::from(body.to_string())))
            .map_err(io::Error::other)?;
        let answer = connection::send_once(self.addr(), request).await;
        let answer = answer.map_err(|failure| io::Error::other(format!("{path}: {failure}")))?;
        Ok((
            answer.status,
            serde_json::from_slice(&answer.body).unwrap_or(Value::Null),
        ))
    }

    /// Returns the value of a metric: its name, with its labels if it has some.
    pub(crate) async fn read_total(&self, name: &str) -> io::Result<u64> {
        let request = Request::get("/metrics").header("host", self.admin.to_string());
        let request = request.body(Full::default()).map_err(io::Error::other)?;
        let answer = connection::send_once(self.admin, request).await;
        let answer = answer.map_err(|failure| io::Error::other(format!("/metrics: {failure}")))?;
        let text = String::from_utf8_lossy(&answer.body);
        let mut values = text
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = values.next().and_then(|value| value.parse().ok());
        value.ok_or_else(|| io::Error::other(format!("/metrics has no {name}")))
    }

    async fn send_order(&self, method: Method, path: &str, body: &Value) -> io::Result<()> {
        let (status, answer) = self.send_request(method.clone(), path, body).await?;
        match status.is_success() {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "{method} {path} returned {status}: {answer}"
            ))),
        }
    }

    pub(crate) async fn deploy_function(&self, spec: &Value) -> io::Result<()> {
        self.send_order(Method::POST, "/system/functions", spec)
            .await
    }

    pub(crate) async fn scale_function(&self, name: &str, replicas: u64) -> io::Result<()> {
        let body = json!({ "serviceName": name, "replicas": replicas });
        self.send_order(
            Method::POST,
            &format!("/system/scale-function/{name}"),
            &body,
        )
        .await
    }

    pub(crate) async fn update_function(&self, spec: &Value) -> io::Result<()> {
        self.send_order(Method::PUT, "/system/functions", spec)
            .await
    }

    /// Sends the order to remove a function; returns its status.
    pub(crate) async fn order_removal(&self, name: &str) -> io::Result<StatusCode> {
        let body = json!({ "functionName": name });
        let answer = self.send_request(Method::DELETE, "/system/functions", &body);
        Ok(answer.await?.0)
    }

    /// Removes a function and waits until it is removed.
    pub(crate) async fn remove_function(&self, name: &str) -> io::Result<()> {
        let status = self.order_removal(name).await?;
        if !status.is_success() {
            return Err(io::Error::other(format!("removal of {name}: {status}")));
        }
        self.poll_function(&format!("{name} is removed"), name, |status, _| {
            status == StatusCode::NOT_FOUND
        })
        .await
        .map(drop)
    }

    pub(crate) async fn describe_function(&self, name: &str) -> io::Result<(StatusCode, Value)> {
        self.send_request(
            Method::GET,
            &format!("/system/function/{name}"),
            &Value::Null,
        )
        .await
    }

    /// Waits until this number of instances is ready, and returns the description.
    pub(crate) async fn wait_available(&self, name: &str, replicas: u64) -> io::Result<Value> {
        let what = format!("{name} has {replicas} ready instances");
        self.poll_function(&what, name, |_, answer| {
            answer["availableReplicas"] == replicas
        })
        .await
    }

    async fn poll_function(
        &self,
        what: &str,
        name: &str,
        reached: impl Fn(StatusCode, &Value) -> bool,
    ) -> io::Result<Value> {
        // 2 ms between polls: start times are measured by this loop.
        for _ in 0..15_000 {
            let (status, answer) = self.describe_function(name).await?;
            if reached(status, &answer) {
                return Ok(answer);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let log = std::fs::read_to_string(self.folder.join("up.log")).unwrap_or_default();
        Err(io::Error::other(format!(
            "timeout after 30 s: {what}\n{log}"
        )))
    }
}

fn up_command(
    folder: &Path,
    addr: SocketAddr,
    admin: SocketAddr,
    settings: &UpSettings,
) -> io::Result<Command> {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join("up.log"))?;
    let mut command = Command::new(&settings.program);
    command
        .arg("up")
        .arg("--data-dir")
        .arg(folder.join("data"))
        .arg("--insecure");
    command
        .args([
            "--listen",
            &addr.to_string(),
            "--admin-listen",
            &admin.to_string(),
        ])
        .args(&settings.options);
    let log_filter = settings.log_filter;
    command.envs(log_filter.map(|filter| ("NEARPATH_LOG", filter)));
    command.stdout(Stdio::null()).stderr(log);
    Ok(command)
}

/// Returns the spec of a function that runs `cat` per request: no tenant code has to start.
pub(crate) fn cat_spec(name: &str) -> io::Result<Value> {
    Ok(
        json!({ "service": name, "image": echo_folder()?, "envProcess": "cat", "envVars": { "mode": "streaming" } }),
    )
}

/// Returns the spec of a server in Python.
pub(crate) fn python_spec(name: &str) -> io::Result<Value> {
    let vars = json!({ "mode": "http", "upstream_url": "http://127.0.0.1:5000" });
    Ok(
        json!({ "service": name, "image": echo_folder()?, "envProcess": "python3 server.py", "envVars": vars }),
    )
}

/// Returns `examples/echo`, from the root of the repository.
fn echo_folder() -> io::Result<String> {
    let folder = Path::new("examples/echo/handler")
        .canonicalize()
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("examples/echo/handler: {error}: run it from the root of the repository"),
            )
        })?;
    Ok(format!("file://{}", folder.display()))
}
