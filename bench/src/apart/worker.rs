//! Workers as processes in a namespace: the handler, the watchdog in front of it, and the TLS front in the watchdog's place.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use nearpath_testkit::lab::Node;
use nearpath_wire::early::Provision;

use super::Error;
use super::caller::Callee;

const HANDLER: u16 = 9000;
/// The first worker's ports; each has three.
const FIRST: u16 = 9001;

/// A process that is killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One machine with a handler, on which workers can be started.
pub(crate) struct Machine {
    node: Node,
    addr: IpAddr,
    next: Cell<u16>,
    _handler: Rc<Process>,
}

/// A running worker.
pub(crate) struct Worker {
    pub(crate) callee: Callee,
    dog: Option<(Process, UnixStream)>,
    front: Option<Process>,
}

impl Machine {
    /// `addr` is where callers find it.
    pub(crate) fn new(node: &Node, addr: IpAddr) -> Result<Self, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["quic-handler", "--listen", &local(HANDLER)]).stdin(Stdio::null()).stdout(Stdio::piped());
        let handler = Rc::new(started(node, &mut command)?);
        Ok(Self { node: node.clone(), addr, next: Cell::new(FIRST), _handler: handler })
    }

    /// Starts a worker: its watchdog, its TLS front, or both; it has served nobody when this returns.
    pub(crate) fn start(&self, provision: &Provision, dog: bool, front: bool) -> Result<Worker, Error> {
        let first = self.next.get();
        self.next.set(if first > 60_000 { FIRST } else { first + 3 }); // those of the first have ended long since
        let at = |offset| SocketAddr::new(self.addr, first + offset);
        let name = provision.credentials.name.clone();
        let callee = Callee { plain: at(0), mutual: at(1), server: at(2), name };
        let dog = dog.then(|| self.watchdog(provision, first)).transpose()?;
        let front = front.then(|| self.front(provision, &callee)).transpose()?;
        Ok(Worker { callee, dog, front })
    }

    /// The node's part is to say who it is; then it waits until both ways in are open.
    fn watchdog(&self, provision: &Provision, port: u16) -> Result<(Process, UnixStream), Error> {
        let (reader, mut writer) = UnixStream::pair()?;
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec 4<&0 3>&1 </dev/null >/dev/null; exec nearpath-watchdog"])
            .stdin(OwnedFd::from(reader));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs([("NEARPATH_IDENTITY_FD", "4"), ("NEARPATH_NOTES_FD", "3"), ("mode", "http")]);
        command.envs([("fprocess", "sleep 100000"), ("metrics_port", "0"), ("suppress_lock", "true")]);
        command.env("upstream_url", format!("http://{}", local(HANDLER))).env("port", port.to_string());
        let mut process = Process(self.node.spawn(&mut command)?);
        drop(command); // it holds the socket's other end, which would hide that the watchdog has died
        writer.write_all(&provision.write())?;
        let (notes, log) = (process.0.stdout.take(), process.0.stderr.take());
        until(notes, |line| line == "ready")?;
        until(log, |line| line.contains("QUIC on"))?;
        Ok((process, writer))
    }

    fn front(&self, provision: &Provision, callee: &Callee) -> Result<Process, Error> {
        let (reader, mut writer) = std::io::pipe()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["quic-front", "--upstream", &local(HANDLER)]).stdin(reader).stdout(Stdio::piped());
        command.args(["--mutual", &any(callee.mutual.port()), "--server", &any(callee.server.port())]);
        writer.write_all(&Provision { entries: Vec::new(), ..provision.clone() }.write())?;
        drop(writer);
        started(&self.node, &mut command)
    }
}

impl Worker {
    /// Of the one that answers TLS over TCP, or of the one that answers the rest.
    pub(crate) fn pid(&self, tls: bool) -> Option<u32> {
        match tls {
            true => self.front.as_ref().map(|front| front.0.id()),
            false => self.dog.as_ref().map(|(dog, _)| dog.0.id()),
        }
    }
}

fn local(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

fn any(port: u16) -> String {
    format!("0.0.0.0:{port}")
}

/// Starts one of the bench's own programs.
fn started(node: &Node, command: &mut Command) -> Result<Process, Error> {
    let mut process = Process(node.spawn(command)?);
    let out = process.0.stdout.take();
    until(out, |line| line == "ready")?;
    Ok(process)
}

/// Reads lines until one is `wanted`. The rest goes on being read, so that nobody waits for it.
fn until(from: Option<impl Read + Send + 'static>, wanted: impl Fn(&str) -> bool) -> Result<(), Error> {
    let mut reader = BufReader::new(from.ok_or("no pipe")?);
    let mut heard = String::new();
    loop {
        let from = heard.len();
        if reader.read_line(&mut heard)? == 0 {
            return Err(format!("it ended before it was ready; is nearpath-watchdog in PATH? {heard}").into());
        }
        if wanted(heard[from..].trim_end()) {
            break;
        }
    }
    std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    Ok(())
}
