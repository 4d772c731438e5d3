//! A running `nearpath up` and requests to it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use nearpath_testkit::{eventually, free_addr, program, within};
use serde_json::{Value, json};

/// Skips a test where BPF programs cannot forward packets. Only missing support is skipped: a
/// program that the kernel refuses is a fault.
macro_rules! need_forwarding {
    () => {
        nearpath_testkit::need_root!();
        match nearpath_kernel::bpf::check_forwarding_support() {
            Err(why)
                if matches!(
                    why.kind(),
                    std::io::ErrorKind::Unsupported | std::io::ErrorKind::PermissionDenied
                ) =>
            {
                nearpath_testkit::skip!("no forwarding here: {why}")
            }
            _ => {}
        }
    };
}
pub(crate) use need_forwarding;

/// A running `nearpath up` or `nearpath node`. Dropping it stops it properly, so that nothing of its node remains, or
/// kills it if that takes too long.
pub(crate) struct TestServer {
    pub(crate) addr: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) data_dir: PathBuf,
    arguments: Vec<std::ffi::OsString>,
    child: Child,
    log: Arc<Mutex<String>>,
    _own_folder: Option<tempfile::TempDir>,
}

/// Response to a request: status, header fields, body.
pub(crate) type TestResponse = Response<Bytes>;

impl TestServer {
    /// Starts in a fresh folder and waits until it is ready.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("nearpath-test-")
            .tempdir()
            .unwrap();
        let mut server = Self::start_in(folder.path(), &[]).await;
        server._own_folder = Some(folder);
        server
    }

    /// Starts on a given data directory, with further options.
    pub(crate) async fn start_in(data_dir: &Path, options: &[&str]) -> Self {
        let mut server = Self::spawn_with(Command::new(program("nearpath")), data_dir, options);
        server.wait_ready().await;
        server
    }

    /// Starts `nearpath node` named `a` on a source, and waits until it is ready.
    pub(crate) async fn start_node(data_dir: &Path, source: &Path) -> Self {
        let command = Command::new(program("nearpath"));
        let options = ["--name", "a", "--source", source.to_str().unwrap()];
        let mut server = Self::spawn_as("node", command, data_dir, &options);
        server.wait_ready().await;
        server
    }

    /// Starts `nearpath node` with these options, and waits until it is ready.
    pub(crate) async fn start_member(data_dir: &Path, options: &[&str]) -> Self {
        let command = Command::new(program("nearpath"));
        let mut server = Self::spawn_as("node", command, data_dir, options);
        server.wait_ready().await;
        server
    }

    /// Starts `nearpath up`, perhaps through another program, and does not wait.
    pub(crate) fn spawn_with(command: Command, data_dir: &Path, options: &[&str]) -> Self {
        Self::spawn_as("up", command, data_dir, options)
    }

    fn spawn_as(subcommand: &str, mut command: Command, data_dir: &Path, options: &[&str]) -> Self {
        let (addr, admin) = (free_addr(), free_addr());
        command
            .arg(subcommand)
            .arg("--data-dir")
            .arg(data_dir)
            .arg("--insecure");
        command
            .args([
                "--listen",
                &addr.to_string(),
                "--admin-listen",
                &admin.to_string(),
            ])
            .args(options);
        Self::spawn_command(command, addr, admin, data_dir)
    }

    fn spawn_command(
        mut command: Command,
        addr: SocketAddr,
        admin: SocketAddr,
        data_dir: &Path,
    ) -> Self {
        let start = |command: &mut Command| command.spawn();
        Self::start_command(&mut command, start, (addr, admin), data_dir)
    }

    /// Starts a command with `start`, for example on another machine, and does not wait.
    pub(crate) fn start_command(
        command: &mut Command,
        start: impl FnOnce(&mut Command) -> std::io::Result<Child>,
        (addr, admin): (SocketAddr, SocketAddr),
        data_dir: &Path,
    ) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = start(command).unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        collect_log(child.stderr.take().unwrap(), Arc::clone(&log));
        let arguments = command.get_args().map(ToOwned::to_owned).collect();
        Self {
            addr,
            admin,
            data_dir: data_dir.to_owned(),
            arguments,
            child,
            log,
            _own_folder: None,
        }
    }

    /// Starts a process that takes over from this one, with some options changed, without waiting.
    pub(crate) fn spawn_successor(&self, options: &[&str]) -> Self {
        let mut command = Command::new(program("nearpath"));
        let mut arguments = self.arguments.clone();
        arguments.retain(|one| one != "--take-over");
        for option in options.chunks(2) {
            match arguments.iter().position(|one| one == option[0]) {
                Some(at) => arguments[at + 1] = option[1].into(),
                None => arguments.extend(option.iter().map(Into::into)),
            }
        }
        command.args(arguments).arg("--take-over");
        Self::spawn_command(command, self.addr, self.admin, &self.data_dir)
    }

    /// Starts a process that takes over from this one, and waits until it has.
    pub(crate) async fn hand_over(&self) -> Self {
        self.hand_over_with(&[]).await
    }

    /// Hands over with some options changed.
    pub(crate) async fn hand_over_with(&self, options: &[&str]) -> Self {
        let mut successor = self.spawn_successor(options);
        successor.wait_taken_over().await;
        successor
    }

    /// Waits until this process has taken over from another one.
    pub(crate) async fn wait_taken_over(&mut self) {
        eventually("it has taken over", async || {
            assert!(self.child.try_wait().unwrap().is_none(), "{}", self.log());
            self.log().contains("is up")
        })
        .await;
    }

    pub(crate) async fn wait_ready(&mut self) {
        eventually("nearpath up listens", async || {
            if tokio::net::TcpStream::connect(self.addr).await.is_ok() {
                return true;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("nearpath up ended with {status}:\n{}", self.log());
            }
            false
        })
        .await;
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn end_with(&mut self, signal: rustix::process::Signal) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        self.child.wait().unwrap()
    }

    /// Waits for the process to end by itself.
    pub(crate) async fn wait_exit(&mut self) -> std::process::ExitStatus {
        let mut status = None;
        eventually("nearpath up ends", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    /// Sends a request on a new connection.
    pub(crate) async fn send_request(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> TestResponse {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost");
        within(send_request(
            self.addr,
            request.body(Full::new(body.into())).unwrap(),
        ))
        .await
        .unwrap()
    }

    pub(crate) async fn call_function(&self, function: &str, body: &'static str) -> TestResponse {
        self.send_request(Method::POST, &format!("/function/{function}"), body)
            .await
    }

    /// Deploys and checks the response, without waiting for readiness.
    pub(crate) async fn deploy(&self, spec: &Value) {
        let answer = self
            .send_request(Method::POST, "/system/functions", spec.to_string())
            .await;
        assert!(
            answer.status().is_success(),
            "{}: {:?}",
            answer.status(),
            answer.body()
        );
    }

    /// Deploys and waits until one instance is ready.
    pub(crate) async fn deploy_ready(&self, spec: &Value) {
        self.deploy(spec).await;
        self.wait_available(spec["service"].as_str().unwrap(), 1)
            .await;
    }

    pub(crate) async fn describe(&self, name: &str) -> Value {
        let answer = self
            .send_request(Method::GET, &format!("/system/function/{name}"), "")
            .await;
        assert_eq!(answer.status(), StatusCode::OK, "{:?}", answer.body());
        serde_json::from_slice(answer.body()).unwrap()
    }

    pub(crate) async fn wait_available(&self, name: &str, replicas: u64) {
        let what = format!("{replicas} available replicas of {name}\n{}", self.log());
        eventually(&what, async || {
            self.describe(name).await["availableReplicas"] == replicas
        })
        .await;
    }

    /// Returns the metrics of the process that currently serves.
    pub(crate) async fn read_metrics(&self) -> String {
        let request = Request::get("/metrics").body(Full::default()).unwrap();
        let answer = send_request(self.admin, request);
        let answer = nearpath_testkit::within(answer).await.unwrap();
        String::from_utf8(answer.into_body().to_vec()).unwrap()
    }

    /// Returns the value of a metric without labels.
    pub(crate) async fn metric_total(&self, name: &str) -> u64 {
        let text = self.read_metrics().await;
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.unwrap_or_else(|| panic!("no {name}"));
        value.parse().unwrap()
    }

    pub(crate) async fn scale(&self, name: &str, replicas: u64) {
        let body = json!({ "serviceName": name, "replicas": replicas }).to_string();
        let answer = self
            .send_request(
                Method::POST,
                &format!("/system/scale-function/{name}"),
                body,
            )
            .await;
        assert!(
            answer.status().is_success(),
            "{}: {:?}",
            answer.status(),
            answer.body()
        );
    }

    /// Pids of the watchdogs of a function's instances.
    pub(crate) async fn instance_pids(&self, name: &str) -> Vec<i32> {
        let instances = self.describe(name).await["instances"].clone();
        instances
            .as_array()
            .into_iter()
            .flatten()
            .map(|i| i["pid"].as_i64().unwrap() as i32)
            .collect()
    }

    /// Pids of all processes in a function's instances: watchdogs and their descendants.
    pub(crate) async fn instance_processes(&self, name: &str) -> Vec<i32> {
        let mut all = self.instance_pids(name).await;
        let mut at = 0;
        while let Some(&parent) = all.get(at) {
            all.extend(child_processes(parent));
            at += 1;
        }
        all
    }
}

/// Child processes; see proc_pid_stat(5).
fn child_processes(parent: i32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        after_name.split_whitespace().nth(1) == Some(&parent.to_string())
    };
    all.filter(is_child).collect()
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // A test that fails shows what the server did meanwhile.
        if std::thread::panicking() {
            eprintln!("log of {}:\n{}", self.addr, self.log());
        }
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        // No `eventually`: a process that does not end is killed, and a panic here would abort.
        for _ in 0..1_000 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect_log(stderr: std::process::ChildStderr, log: Arc<Mutex<String>>) {
    use std::io::{BufRead, BufReader};
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            log.lock().unwrap().push_str(&format!("{line}\n"));
        }
    });
}

/// Sends an HTTP/1.1 request on a fresh connection.
pub(crate) async fn send_request(
    addr: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<TestResponse, Box<dyn std::error::Error + Send + Sync>> {
    let stream = tokio::net::TcpStream::connect(addr).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let answer = Response::from_parts(head, body.collect().await?.to_bytes());
    driver.abort();
    Ok(answer)
}

/// A folder with a handler script, and a function that runs it in streaming mode (one process a
/// request).
pub(crate) fn script_function(folder: &Path, name: &str, source: &str) -> Value {
    let home_dir = folder.join(format!("fn-{name}"));
    std::fs::create_dir_all(&home_dir).unwrap();
    std::fs::write(home_dir.join("run.sh"), source).unwrap();
    json!({ "service": name, "image": format!("file://{}", home_dir.display()), "envProcess": "/bin/sh run.sh" })
}

/// A function that returns its input.
pub(crate) fn echo_function(folder: &Path, name: &str) -> Value {
    script_function(folder, name, "exec cat\n")
}

/// A function with an HTTP server written in Python's standard library. `body` is the code of
/// `do_POST` and `do_GET`.
pub(crate) fn http_function(folder: &Path, name: &str, body: &str) -> Value {
    let home_dir = folder.join(format!("fn-{name}"));
    std::fs::create_dir_all(&home_dir).unwrap();
    let code = body.trim_end().replace('\n', "\n        ");
    let source = format!(
        r#"import http.server, os, sys, time, urllib.request, urllib.error
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        {code}
    do_GET = do_POST
    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "5000"))), Handler).serve_forever()
"#
    );
    std::fs::write(home_dir.join("server.py"), source).unwrap();
    json!({
        "service": name, "image": format!("file://{}", home_dir.display()), "envProcess": "python3 server.py",
        "envVars": { "mode": "http", "upstream_url": "http://127.0.0.1:5000" },
    })
}
