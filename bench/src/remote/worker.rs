//! Workers as processes in a namespace: the handler with the watchdog, or with the TLS front
//! instead.

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
/// Ports of the first worker; each has two.
const FIRST_WORKER_PORT: u16 = 9001;

/// A process that is killed on drop.
pub(crate) struct KilledProcess(Child);

// SIGKILL: workers keep no state, and a graceful end would take the time of the next case.
impl Drop for KilledProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Machine that starts workers.
pub(crate) struct WorkerMachine {
    node: LabNode,
    addr: IpAddr,
    next: Cell<u16>,
    /// Handler for workers without tenant code.
    _handler: Option<KilledProcess>,
}

/// A tenant's code, as the watchdog starts it.
pub(crate) struct TenantCode {
    /// Listening port on the machine's loopback.
    pub(crate) port: u16,
    pub(crate) fprocess: String,
    pub(crate) variables: Vec<(String, String)>,
}

/// A running worker.
pub(crate) struct StartedWorker {
    pub(crate) callee: CalleeAddress,
    watchdog: Option<(KilledProcess, UnixStream)>,
    front: Option<KilledProcess>,
}

impl WorkerMachine {
    /// Address and name for callers.
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

    /// Creates a machine whose workers have tenant code.
    pub(crate) fn without_handler(node: &LabNode, addr: IpAddr) -> Self {
        Self {
            node: node.clone(),
            addr,
            next: Cell::new(FIRST_WORKER_PORT),
            _handler: None,
        }
    }

    /// Allocates this number of consecutive ports and returns the first.
    pub(crate) fn allocate_ports(&self, count: u16) -> u16 {
        let first = self.next.get();
        self.next.set(if first > 60_000 {
            FIRST_WORKER_PORT
        } else {
            first + count
        }); // those of the first have ended long since
        first
    }

    /// Starts a worker: its watchdog, its TLS front, or both. The returned worker has served no
    /// call.
    pub(crate) fn start_worker(
        &self,
        provision: &Provision,
        watchdog: bool,
        front: bool,
    ) -> Result<StartedWorker, BenchError> {
        let code = TenantCode {
            port: HANDLER_PORT,
            fprocess: "sleep 100000".to_owned(),
            variables: Vec::new(),
        };
        self.start_parts(provision, &code, watchdog, front)
    }

    /// Starts a worker with tenant code, which its watchdog starts.
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
        watchdog: bool,
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
        let watchdog = watchdog
            .then(|| self.start_watchdog(provision, first, code))
            .transpose()?;
        let front = front
            .then(|| self.start_front(provision, &callee, code))
            .transpose()?;
        Ok(StartedWorker {
            callee,
            watchdog,
            front,
        })
    }

    /// Acts as the node: sends the provision, then waits until both listeners are ready.
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
    /// Returns the process id of the front or of the watchdog.
    pub(crate) fn pid(&self, front: bool) -> Option<u32> {
        match front {
            true => self.front.as_ref().map(|front| front.0.id()),
            false => self.watchdog.as_ref().map(|(watchdog, _)| watchdog.0.id()),
        }
    }
}

fn loopback_address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn any_address(port: u16) -> String {
    format!("0.0.0.0:{port}")
}

/// Starts a program that prints a line `ready` when it is.
pub(crate) fn start_ready(
    node: &LabNode,
    command: &mut Command,
) -> Result<KilledProcess, BenchError> {
    let mut process = KilledProcess(node.spawn(command)?);
    let out = process.0.stdout.take();
    read_until(out, |line| line == "ready")?;
    Ok(process)
}

/// Reads lines until one is `wanted`. A thread reads the rest, so that the writer never blocks.
fn read_until(
    from: Option<impl Read + Send + 'static>,
    wanted: impl Fn(&str) -> bool,
) -> Result<(), BenchError> {
    let mut reader = BufReader::new(from.ok_or("no pipe")?);
    let mut output = String::new();
    loop {
        let from = output.len();
        if reader.read_line(&mut output)? == 0 {
            return Err(format!(
                "the process exited before it was ready; check that nearpath-watchdog is in PATH: {output}"
            )
            .into());
        }
        if wanted(output[from..].trim_end()) {
            break;
        }
    }
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    Ok(())
}
