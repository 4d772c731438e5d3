//! Workers as processes in a namespace: the handler, the watchdog in front of it, or the TLS front
//! in its place.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use nearpath_testkit::lab::LabNode;
use nearpath_wire::zero_rtt::Provision;

use super::BenchError;
use super::caller::CalleeAddress;

const HANDLER_PORT: u16 = 9000;
/// The first worker's ports; each has two.
const FIRST_WORKER_PORT: u16 = 9001;

/// A process that is killed when this is dropped.
pub(crate) struct KilledProcess(Child);

// SIGKILL: workers keep no state, and a graceful end would take the time of the next case.
impl Drop for KilledProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Machine on which workers can be started.
pub(crate) struct WorkerMachine {
    node: LabNode,
    addr: IpAddr,
    next: Cell<u16>,
    /// Handler behind workers without code of their own.
    _handler: Option<KilledProcess>,
}

/// A tenant's code, as the watchdog starts it.
pub(crate) struct TenantCode {
    /// Port of the machine's loopback that it listens on.
    pub(crate) port: u16,
    pub(crate) fprocess: String,
    pub(crate) variables: Vec<(String, String)>,
}

/// A running worker.
pub(crate) struct StartedWorker {
    pub(crate) callee: CalleeAddress,
    dog: Option<(KilledProcess, UnixStream)>,
    front: Option<KilledProcess>,
}

impl WorkerMachine {
    /// `addr` is where callers find it.
    pub(crate) fn new(node: &LabNode, addr: IpAddr) -> Result<Self, BenchError> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["quic-handler", "--listen", &loopback_address(HANDLER_PORT)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let handler = Some(start_ready(node, &mut command)?);
        Ok(Self {
            _handler: handler,
            ..Self::without_handler(node, addr)
        })
    }

    /// Machine whose workers have code of their own.
    pub(crate) fn without_handler(node: &LabNode, addr: IpAddr) -> Self {
        Self {
            node: node.clone(),
            addr,
            next: Cell::new(FIRST_WORKER_PORT),
            _handler: None,
        }
    }

    /// So many ports in a row, the first of which this is.
    pub(crate) fn allocate_ports(&self, count: u16) -> u16 {
        let first = self.next.get();
        self.next.set(if first > 60_000 {
            FIRST_WORKER_PORT
        } else {
            first + count
        }); // those of the first have ended long since
        first
    }

    /// Starts a worker: its watchdog, its TLS front, or both; it has served no call when this
    /// returns.
    pub(crate) fn start_worker(
        &self,
        provision: &Provision,
        dog: bool,
        front: bool,
    ) -> Result<StartedWorker, BenchError> {
        let code = TenantCode {
            port: HANDLER_PORT,
            fprocess: "sleep 100000".to_owned(),
            variables: Vec::new(),
        };
        self.start_parts(provision, &code, dog, front)
    }

    /// The same with code of the worker's own, which its watchdog starts.
    pub(crate) fn start_function(
        &self,
        provision: &Provision,
        code: &TenantCode,
        front: bool,
    ) -> Result<StartedWorker, BenchError> {
        self.start_parts(provision, code, true, front)
    }

    fn start_parts(
        &self,
        provision: &Provision,
        code: &TenantCode,
        dog: bool,
        front: bool,
    ) -> Result<StartedWorker, BenchError> {
        let first = self.allocate_ports(2);
        let at = |offset| SocketAddr::new(self.addr, first + offset);
        let name = provision.credentials.name.clone();
        let callee = CalleeAddress {
            worker: at(0),
            server: at(1),
            name,
        };
        let dog = dog
            .then(|| self.start_watchdog(provision, first, code))
            .transpose()?;
        let front = front
            .then(|| self.start_front(provision, &callee, code))
            .transpose()?;
        Ok(StartedWorker { callee, dog, front })
    }

    /// The node's part is to say who it is; then it waits until both ways in are open.
    fn start_watchdog(
        &self,
        provision: &Provision,
        port: u16,
        code: &TenantCode,
    ) -> Result<(KilledProcess, UnixStream), BenchError> {
        let (reader, mut writer) = UnixStream::pair()?;
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "exec 4<&0 3>&1 </dev/null >/dev/null; exec nearpath-watchdog",
            ])
            .stdin(OwnedFd::from(reader));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs([
            ("NEARPATH_IDENTITY_FD", "4"),
            ("NEARPATH_NOTES_FD", "3"),
            ("mode", "http"),
        ]);
        command.envs([
            ("fprocess", code.fprocess.as_str()),
            ("metrics_port", "0"),
            ("suppress_lock", "true"),
        ]);
        command
            .env(
                "upstream_url",
                format!("http://{}", loopback_address(code.port)),
            )
            .env("port", port.to_string());
        command.envs(code.variables.iter().map(|(name, value)| (name, value)));
        let mut process = KilledProcess(self.node.spawn(&mut command)?);
        drop(command); // it holds the socket's other end, which would hide that the watchdog has died
        writer.write_all(&provision.encode())?;
        let (notes, log) = (process.0.stdout.take(), process.0.stderr.take());
        read_until(notes, |line| line == "ready")?;
        read_until(log, |line| line.contains("QUIC on"))?;
        Ok((process, writer))
    }

    fn start_front(
        &self,
        provision: &Provision,
        callee: &CalleeAddress,
        code: &TenantCode,
    ) -> Result<KilledProcess, BenchError> {
        let (reader, mut writer) = std::io::pipe()?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["quic-front", "--upstream", &loopback_address(code.port)])
            .stdin(reader)
            .stdout(Stdio::piped());
        command.args(["--listen", &any_address(callee.server.port())]);
        writer.write_all(
            &Provision {
                sessions: Vec::new(),
                ..provision.clone()
            }
            .encode(),
        )?;
        drop(writer);
        start_ready(&self.node, &mut command)
    }
}

impl StartedWorker {
    /// Of the front, or of the watchdog.
    pub(crate) fn pid(&self, front: bool) -> Option<u32> {
        match front {
            true => self.front.as_ref().map(|front| front.0.id()),
            false => self.dog.as_ref().map(|(dog, _)| dog.0.id()),
        }
    }
}

fn loopback_address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn any_address(port: u16) -> String {
    format!("0.0.0.0:{port}")
}

/// Starts a program that says `ready`, in a line of its own, when it is.
pub(crate) fn start_ready(
    node: &LabNode,
    command: &mut Command,
) -> Result<KilledProcess, BenchError> {
    let mut process = KilledProcess(node.spawn(command)?);
    let out = process.0.stdout.take();
    read_until(out, |line| line == "ready")?;
    Ok(process)
}

/// Reads lines until one is `wanted`. The rest goes on being read, so that the writer never blocks.
fn read_until(
    from: Option<impl Read + Send + 'static>,
    wanted: impl Fn(&str) -> bool,
) -> Result<(), BenchError> {
    let mut reader = BufReader::new(from.ok_or("no pipe")?);
    let mut heard = String::new();
    loop {
        let from = heard.len();
        if reader.read_line(&mut heard)? == 0 {
            return Err(format!(
                "it ended before it was ready; is nearpath-watchdog in PATH? {heard}"
            )
            .into());
        }
        if wanted(heard[from..].trim_end()) {
            break;
        }
    }
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    Ok(())
}
