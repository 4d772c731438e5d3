//! A scripted gateway that records its requests, and the program run against it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_testkit::within;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;

/// One request as it was received.
#[derive(Debug, Clone)]
pub(crate) struct RecordedRequest {
    /// `PUT /system/functions?x=y`.
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl RecordedRequest {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Makes a body for a reply that lacks nodes, as the header field names them.
pub(crate) fn with_missing_nodes(body: Value, missing: &str) -> Value {
    json!({ "body": body, "missing nodes": missing })
}

fn take_missing_nodes(value: Value) -> (Value, Option<String>) {
    match value["missing nodes"].as_str() {
        Some(missing) => (value["body"].clone(), Some(missing.to_owned())),
        None => (value, None),
    }
}

/// Status and body; a JSON string is sent as plain text.
pub(crate) type FakeReply = (u16, Value);

/// A gateway on loopback for the length of a test.
pub(crate) struct FakeGateway {
    pub(crate) addr: SocketAddr,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl FakeGateway {
    /// Starts a gateway. `answer` gets each request and the number of requests before it.
    pub(crate) async fn start(
        answer: impl Fn(&RecordedRequest, usize) -> FakeReply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&requests), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                let service = service_fn(move |request| {
                    reply(request, Arc::clone(&log), Arc::clone(&answer))
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { addr, requests }
    }

    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn request_lines(&self) -> Vec<String> {
        self.requests()
            .into_iter()
            .map(|request| request.line)
            .collect()
    }

    /// Runs the program against this gateway.
    pub(crate) async fn run(&self, args: &[&str]) -> CliOutput {
        CliRun::new(args)
            .env("OPENFAAS_URL", &format!("http://{}", self.addr))
            .output()
            .await
    }
}

async fn reply(
    request: Request<Incoming>,
    log: Arc<Mutex<Vec<RecordedRequest>>>,
    answer: Arc<impl Fn(&RecordedRequest, usize) -> FakeReply>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    // Bodies in these tests are text or JSON.
    let (head, body) = request.into_parts();
    let body = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
    let recorded = RecordedRequest {
        line: format!("{} {}", head.method, head.uri),
        headers: head.headers,
        body,
    };
    let before = {
        let mut log = log.lock().unwrap();
        log.push(recorded.clone());
        log.len() - 1
    };
    let (status, value) = answer(&recorded, before);
    let mut response = Response::builder().status(StatusCode::from_u16(status).unwrap());
    let (value, missing) = take_missing_nodes(value);
    if let Some(missing) = missing {
        response = response.header("x-nearpath-missing-nodes", missing);
    }
    let bytes = match value {
        // An error of the platform, as `invoke` recognises it.
        Value::String(text) => match text.strip_prefix("reason=") {
            Some(reason) => {
                response = response.header("x-nearpath-reason", reason);
                Bytes::from(format!("gateway: {reason}: refused"))
            }
            None => Bytes::from(text),
        },
        value => Bytes::from(value.to_string()),
    };
    Ok(response.body(Full::new(bytes)).unwrap())
}

/// A function's status as the gateway returns it.
pub(crate) fn function_status(name: &str, wanted: u64, ready: u64, failure: Option<&str>) -> Value {
    let mut value = json!({
        "name": name, "namespace": "openfaas-fn", "image": "file:///srv/x", "envProcess": "cat",
        "invocationCount": 7.0, "replicas": wanted, "availableReplicas": ready, "createdAt": "2026-01-31T08:09:10Z",
        "revision": 3, "virtualAddress": "10.60.0.7", "annotations": {"nearpath.io/calls": "cart"}, "limits": {"memory": "128Mi"},
    });
    let instance = |n| json!({"id": format!("i{n}"), "state": "ready", "addr": "10.62.0.2:8080", "revision": 3, "pid": 42, "startMs": {"spawn": 1.25, "handler": 10.0}, "readyMs": 14.5});
    value["instances"] = (0..ready).map(instance).collect();
    if let Some(failure) = failure {
        value["notReadyReason"] = failure.into();
    }
    value
}

/// The program with its arguments, in an environment of its own: the user's variables must not leak
/// into tests.
pub(crate) struct CliRun {
    command: Command,
    stdin: Option<Vec<u8>>,
}

/// Exit code and output of a run.
pub(crate) struct CliOutput {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CliRun {
    pub(crate) fn new(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nearpath"));
        command
            .args(args)
            .env_clear()
            .env("HOME", "/nonexistent")
            .env("NEARPATH_DATA_DIR", "/nonexistent");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Self {
            command,
            stdin: None,
        }
    }

    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.command.env(key, value);
        self
    }

    pub(crate) fn current_dir(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub(crate) fn stdin(mut self, bytes: &[u8]) -> Self {
        self.command.stdin(Stdio::piped());
        self.stdin = Some(bytes.to_vec());
        self
    }

    /// Runs the program to its end, at most 30 s.
    pub(crate) async fn output(mut self) -> CliOutput {
        let mut child = self.command.spawn().unwrap();
        if let Some(bytes) = self.stdin {
            child.stdin.take().unwrap().write_all(&bytes).await.unwrap();
        }
        let output = within(child.wait_with_output()).await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        CliOutput {
            code: output.status.code().unwrap(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

impl CliOutput {
    /// Asserts the exit code; a failure shows the output.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "stdout: {}\nstderr: {}",
            self.out, self.err
        );
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}
