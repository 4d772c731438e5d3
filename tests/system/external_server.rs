//! A network namespace that plays a machine, and servers on it outside of nearpath.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;

use nearpath_kernel::devices::{NetworkDevices, create_quiet_namespace};
use nearpath_kernel::namespace;
use nearpath_testkit::eventually;

/// Address of the machine besides loopback, reserved for documentation (RFC 5737).
pub(crate) const MACHINE_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// Name of the machine for functions.
pub(crate) const MACHINE_NAME: &str = "host.nearpath.internal";

/// An external server. It responds to each line with the line, and at the end with the number of
/// lines.
pub(crate) struct ExternalServer {
    pub(crate) port: u16,
    connections: Arc<Mutex<ServedConnections>>,
}

/// Counters of its connections.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct ServedConnections {
    pub(crate) opened: u32,
    pub(crate) ended: u32,
    pub(crate) broken: u32,
    /// Maximum number of concurrent connections.
    pub(crate) max_open: u32,
}

impl ServedConnections {
    fn count_opened(&mut self) {
        self.opened += 1;
        self.max_open = self.max_open.max(self.opened - self.ended - self.broken);
    }
}

impl ExternalServer {
    pub(crate) fn bind_at(address: impl Into<IpAddr>) -> Self {
        Self::serve_on(TcpListener::bind((address.into(), 0)).unwrap())
    }

    pub(crate) fn serve_on(listener: TcpListener) -> Self {
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::<Mutex<ServedConnections>>::default();
        let all = Arc::clone(&connections);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                all.lock().unwrap().count_opened();
                let seen = Arc::clone(&all);
                thread::spawn(move || {
                    let whole = serve_lines(&client).is_ok();
                    let mut seen = seen.lock().unwrap();
                    *(if whole {
                        &mut seen.ended
                    } else {
                        &mut seen.broken
                    }) += 1;
                    // after counting: a client that sees the close may open the next connection
                    drop(client);
                });
            }
        });
        Self { port, connections }
    }

    pub(crate) fn counts(&self) -> ServedConnections {
        self.connections.lock().unwrap().clone()
    }
}

fn serve_lines(mut client: &TcpStream) -> std::io::Result<()> {
    let (mut lines, mut count) = (BufReader::new(client.try_clone()?), 0);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        count += 1;
        client.write_all(format!("heard {line}").as_bytes())?;
        line.clear();
    }
    client.write_all(format!("bye {count}\n").as_bytes())
}

/// Moves the calling thread, and everything it starts later, to a machine of its own.
pub(crate) fn on_own_machine() {
    let machine = create_quiet_namespace().unwrap();
    namespace::enter_netns(&machine).unwrap();
    let mut devices = NetworkDevices::open().unwrap();
    let loopback = devices.device_index("lo").unwrap();
    devices
        .add_address(loopback, (MACHINE_V4.into(), 32))
        .unwrap();
}

/// Starts an HTTP/1.0 server with a fixed response. Each connection has a thread, because warm
/// connections stay idle for long.
pub(crate) fn start_web(answer_text: &'static str) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = format!(
        "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{answer_text}",
        answer_text.len()
    );
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            thread::spawn(move || {
                let mut lines = BufReader::new(client.try_clone().unwrap())
                    .lines()
                    .map_while(Result::ok);
                if lines.any(|line| line.is_empty()) {
                    // the client may have closed the connection
                    let _ = client.write_all(answer.as_bytes());
                }
            });
        }
    });
    port
}

/// A Redis on the machine with this password; `None`: not installed. It ends with this value.
pub(crate) struct TestRedis {
    pub(crate) port: u16,
    password: &'static str,
    child: std::process::Child,
}

impl TestRedis {
    pub(crate) async fn start(folder: &std::path::Path, password: &'static str) -> Option<Self> {
        let port = TcpListener::bind((MACHINE_V4, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        Self::start_at(folder, password, port).await
    }

    /// Starts it at a port.
    pub(crate) async fn start_at(
        folder: &std::path::Path,
        password: &'static str,
        port: u16,
    ) -> Option<Self> {
        let mut command = std::process::Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            &MACHINE_V4.to_string(),
            "--requirepass",
            password,
        ]);
        command
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(folder);
        let child = command.stdout(std::process::Stdio::null()).spawn().ok()?;
        let redis = Self {
            port,
            password,
            child,
        };
        eventually("Redis answers", async || {
            redis.read_info("redis_version").is_ok()
        })
        .await;
        Some(redis)
    }

    /// Opens a direct connection that sends a command and returns its response.
    pub(crate) fn command_session(&self) -> impl FnMut(&str) -> String + use<> {
        let mut client = TcpStream::connect((MACHINE_V4, self.port)).unwrap();
        let mut order = move |text: &str| {
            client.write_all(format!("{text}\r\n").as_bytes()).unwrap();
            let mut reply = [0; 64];
            let read = client.read(&mut reply).unwrap();
            String::from_utf8_lossy(&reply[..read]).into_owned()
        };
        assert_eq!(order(&format!("AUTH {}", self.password)), "+OK\r\n");
        order
    }

    /// Reads a value of INFO.
    pub(crate) fn read_info(&self, key: &str) -> std::io::Result<String> {
        let mut client = TcpStream::connect((MACHINE_V4, self.port))?;
        client.write_all(format!("AUTH {}\r\nINFO\r\nQUIT\r\n", self.password).as_bytes())?;
        let lines = BufReader::new(client).lines().map_while(Result::ok);
        let value = lines.filter_map(|line| {
            Some(
                line.split_once(':')
                    .filter(|(name, _)| *name == key)?
                    .1
                    .to_owned(),
            )
        });
        value
            .last()
            .ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }
}

impl Drop for TestRedis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Addresses of a neighbour of the machine, and of the machine on the link to it.
pub(crate) const NEIGHBOUR_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
pub(crate) const NEIGHBOUR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 9);
const LINK_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const LINK_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);

/// Another machine, on a link to the calling thread's one. Names may lead there.
pub(crate) struct NeighbourMachine(OwnedFd);

impl NeighbourMachine {
    pub(crate) fn start() -> Self {
        let namespace = create_quiet_namespace().unwrap();
        let far = ("machine", namespace.as_fd());
        let mut devices = NetworkDevices::open().unwrap();
        devices.create_veth_pair("neighbour", far).unwrap();
        set_up_link("neighbour", LINK_V4, LINK_V6).unwrap();
        namespace::run_in_netns(&namespace, || {
            set_up_link("machine", NEIGHBOUR_V4, NEIGHBOUR_V6)
        })
        .unwrap();
        Self(namespace)
    }

    /// Starts a server there, at a free port.
    pub(crate) fn bind_at(&self, address: impl Into<IpAddr>) -> ExternalServer {
        self.bind_port_at(address, 0)
    }

    /// Starts a server there.
    pub(crate) fn bind_port_at(&self, address: impl Into<IpAddr>, port: u16) -> ExternalServer {
        let at = SocketAddr::new(address.into(), port);
        let listener = namespace::run_in_netns(&self.0, || TcpListener::bind(at));
        ExternalServer::serve_on(listener.unwrap())
    }
}

fn set_up_link(device: &str, v4: Ipv4Addr, v6: Ipv6Addr) -> std::io::Result<()> {
    let mut devices = NetworkDevices::open()?;
    let device = devices.device_index(device)?;
    devices.disable_arp(device)?;
    devices.set_up(device)?;
    devices.add_address(device, (v4.into(), 24))?;
    devices.add_address(device, (v6.into(), 64))
}
