//! A watchdog as its own process, a tenant's server inside the test, and a client between.

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use nearpath_testkit::{eventually, within};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

pub(crate) type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// Output of a process so far.
#[derive(Clone, Default)]
pub(crate) struct OutputLines(Arc<(Mutex<Vec<String>>, Condvar)>);

impl OutputLines {
    fn follow_output(&self, from: impl std::io::Read + Send + 'static) {
        let lines = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                lines.0.0.lock().unwrap().push(line);
                lines.0.1.notify_all();
            }
        });
    }

    /// The first line that contains `text`, waited for.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        let mut lines = self.0.0.lock().unwrap();
        loop {
            if let Some(line) = lines.iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            let (next, late) = self
                .0
                .1
                .wait_timeout(lines, Duration::from_secs(30))
                .unwrap();
            lines = next;
            assert!(!late.timed_out(), "no line with {text:?} in {lines:?}");
        }
    }

    pub(crate) fn joined_lines(&self) -> String {
        self.0.0.lock().unwrap().join("\n")
    }
}

/// A running watchdog; killed when dropped.
pub(crate) struct WatchdogProcess {
    pub(crate) child: Child,
    pub(crate) stdout: OutputLines,
    pub(crate) stderr: OutputLines,
    pub(crate) temp: TempDir,
    pub(crate) addr: SocketAddr,
}

pub(crate) fn program_path() -> &'static str {
    env!("CARGO_BIN_EXE_nearpath-watchdog")
}

/// The program with a clean environment, a port of its own choice and notes in `TMPDIR/notes`.
pub(crate) fn watchdog_command(temp: &TempDir, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$0\" 3>\"$TMPDIR/notes\"", program_path()])
        .env_clear();
    command
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("TMPDIR", temp.path())
        .env("NEARPATH_NOTES_FD", "3");
    command.envs([
        ("port", "0"),
        ("bind_address", "127.0.0.1"),
        ("metrics_port", "0"),
        ("healthcheck_interval", "0"),
    ]);
    command
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Like [`watchdog_command`], with the file `TMPDIR/oom` as the kernel's counter of kills for lack
/// of memory.
pub(crate) fn command_with_oom_counter(temp: &TempDir, variables: &[(&str, &str)]) -> Command {
    std::fs::write(temp.path().join("oom"), "under_oom 0\noom_kill 0\n").unwrap();
    let plain = watchdog_command(temp, variables);
    let script = "exec \"$0\" 3>\"$TMPDIR/notes\" 5<\"$TMPDIR/oom\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, program_path()]).env_clear();
    command.env("NEARPATH_OOM_KILL_FD", "5").envs(
        plain
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

impl WatchdogProcess {
    /// Starts one and waits until it listens.
    pub(crate) fn start(variables: &[(&str, &str)]) -> Self {
        Self::spawn(|temp| watchdog_command(temp, variables))
    }

    pub(crate) fn spawn(make: impl FnOnce(&TempDir) -> Command) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let mut child = make(&temp).spawn().unwrap();
        let (stdout, stderr) = (OutputLines::default(), OutputLines::default());
        stdout.follow_output(child.stdout.take().unwrap());
        stderr.follow_output(child.stderr.take().unwrap());
        let line = stderr.wait_for("listening on ");
        let addr = line
            .split("listening on ")
            .nth(1)
            .unwrap()
            .split(',')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        Self {
            child,
            stdout,
            stderr,
            temp,
            addr,
        }
    }

    /// Mode `http` in front of `tenant`; the process is one that only waits.
    pub(crate) fn in_http_mode(tenant: SocketAddr, more: &[(&str, &str)]) -> Self {
        let url = format!("http://{tenant}");
        let base = [
            ("mode", "http"),
            ("fprocess", "sleep 1000"),
            ("upstream_url", url.as_str()),
        ];
        Self::start(&[&base, more].concat())
    }

    pub(crate) fn read_notes(&self) -> String {
        std::fs::read_to_string(self.temp.path().join("notes")).unwrap_or_default()
    }

    pub(crate) fn send_signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn wait_exit(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the watchdog ends", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    /// Status and body of a GET on a new connection.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        text(
            send(self.addr, Request::get(path).body(full("")).unwrap())
                .await
                .unwrap(),
        )
        .await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> (u16, String) {
        text(
            send(self.addr, Request::post(path).body(full(body)).unwrap())
                .await
                .unwrap(),
        )
        .await
    }
}

impl Drop for WatchdogProcess {
    /// Stops it by signals, so that it ends the tenant's process, too; each signal skips one step
    /// of the stop.
    fn drop(&mut self) {
        for _ in 0..500 {
            if self.child.try_wait().unwrap().is_some() {
                return;
            }
            self.send_signal(Signal::TERM);
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn full(text: &str) -> Full<Bytes> {
    Full::new(Bytes::from(text.to_owned()))
}

/// A body made of frames as they are sent into the channel.
pub(crate) fn frames() -> (
    mpsc::Sender<Result<Frame<Bytes>, AnyError>>,
    impl hyper::body::Body<Data = Bytes, Error = AnyError> + Send + Unpin,
) {
    let (sender, receiver) = mpsc::channel(1);
    let next = async |mut receiver: mpsc::Receiver<_>| {
        receiver.recv().await.map(|frame| (frame, receiver))
    };
    (
        sender,
        Box::pin(StreamBody::new(stream::unfold(receiver, next))),
    )
}

pub(crate) async fn text(response: Response<Incoming>) -> (u16, String) {
    let status = response.status().as_u16();
    let bytes = within(response.into_body().collect())
        .await
        .unwrap()
        .to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// Sends on a new connection; the request's version chooses the protocol.
pub(crate) async fn send<B>(
    addr: SocketAddr,
    mut request: Request<B>,
) -> hyper::Result<Response<Incoming>>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<AnyError>,
{
    let io = TokioIo::new(TcpStream::connect(addr).await.unwrap());
    if request.version() == Version::HTTP_2 {
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
        tokio::spawn(connection);
        *request.uri_mut() = format!("http://{addr}{}", request.uri().path())
            .parse()
            .unwrap();
        return within(sender.send_request(request)).await;
    }
    request
        .headers_mut()
        .entry("host")
        .or_insert(http::HeaderValue::from_static("function"));
    let (mut sender, connection) = http1::handshake(io).await?;
    tokio::spawn(connection.with_upgrades());
    within(sender.send_request(request)).await
}

/// Returns a listener for a tenant that will leave, and a socket that reserves its port afterwards.
pub(crate) fn closable_listener() -> (TcpListener, TcpSocket) {
    let at = |addr: SocketAddr| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseport(true).unwrap();
        socket.bind(addr).unwrap();
        socket
    };
    let reserved_socket = at(SocketAddr::from(([127, 0, 0, 1], 0)));
    let listener = at(reserved_socket.local_addr().unwrap())
        .listen(16)
        .unwrap();
    (listener, reserved_socket)
}

/// A tenant's server that answers with `answer`.
pub(crate) async fn start_tenant<F, R, B>(answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<B>> + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<AnyError>,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let answer = answer(request);
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder
                    .serve_connection_with_upgrades(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    addr
}

/// Starts a tenant that responds with `hello`.
pub(crate) async fn start_hello_tenant() -> SocketAddr {
    start_tenant(async |_| Response::new(full("hello"))).await
}
