//! Two machines of the lab: one with a `nearpath up` and functions that connect, the other with
//! their destinations.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use nearpath_testkit::lab::{LabNode, LinkConditions, NetworkLab};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::dial::{DialPlan, DialResult};
use crate::load::connection;
use crate::peers::nearpath::NearpathServer;
use crate::remote::BenchError;

/// Ports of the server: plain, a second plain one, and HTTP.
const SERVER_PORTS: [u16; 3] = [9000, 9001, 9080];

/// The machines, and the servers on the far one.
pub(crate) struct PoolNetwork {
    _lab: NetworkLab,
    /// Machine of the functions.
    pub(crate) near: LabNode,
    /// Machine of the server; the same one without a link.
    pub(crate) far: LabNode,
    /// The server.
    pub(crate) server: SocketAddr,
    /// The same server at another port.
    pub(crate) other: SocketAddr,
    /// The HTTP server.
    pub(crate) web: SocketAddr,
    program: Child,
}

impl PoolNetwork {
    /// Creates two machines with a link of that delay. Loopback uses the near machine for both.
    pub(crate) fn new(link: Option<&LinkConditions>) -> Result<Self, BenchError> {
        let mut lab = NetworkLab::new()?;
        let (near, other) = (lab.add_node("near")?, lab.add_node("far")?);
        let cable = lab.connect_nodes(&near, &other, link.unwrap_or(&LinkConditions::default()))?;
        let (far, at) = match link {
            Some(_) => (other, cable.second_end().v4),
            None => (near.clone(), cable.first_end().v4),
        };
        let [server, other, web] = SERVER_PORTS.map(|port| SocketAddr::new(IpAddr::V4(at), port));
        let mut command = Command::new(own_program()?);
        command.args([
            "pool-server",
            "--listen",
            &format!("{server},{other}"),
            "--web",
            &web.to_string(),
        ]);
        let program = far.spawn(&mut command)?;
        let network = Self {
            _lab: lab,
            near,
            far,
            server,
            other,
            web,
            program,
        };
        // From the near machine: the link, too, must be up.
        network.wait_for_servers()?;
        Ok(network)
    }

    fn wait_for_servers(&self) -> Result<(), BenchError> {
        for address in [self.server, self.other, self.web] {
            wait_for_listener(&self.near, address)?;
        }
        Ok(())
    }
}

impl Drop for PoolNetwork {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Waits until a server listens there.
pub(crate) fn wait_for_listener(node: &LabNode, address: SocketAddr) -> Result<(), BenchError> {
    for _ in 0..1_000 {
        if node.enter(|| TcpStream::connect(address)).is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(format!("no listener at {address} after 10 s").into())
}

/// A `nearpath up` on the near machine, created and used on a thread of that machine.
pub(crate) struct PoolNode {
    server: NearpathServer,
    folder: TempDir,
}

impl PoolNode {
    /// Starts the server with further options of `nearpath up`.
    pub(crate) async fn start(options: &[&str]) -> Result<Self, BenchError> {
        let folder = tempfile::Builder::new()
            .prefix("nearpath-pool.")
            .tempdir()?;
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let server = NearpathServer::start_with(folder.path(), options).await?;
        Ok(Self { server, folder })
    }

    /// Returns the process id of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Creates a secret.
    pub(crate) async fn create_secret(&self, name: &str, value: &str) -> Result<(), BenchError> {
        let secret = json!({ "name": name, "value": value });
        let (status, answer) = self
            .server
            .send_request(http::Method::POST, "/system/secrets", &secret)
            .await?;
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("cannot create secret {name}: {status} {answer}").into())
        }
    }

    /// Deploys the dial program as a function with this egress, and waits for its first instance.
    pub(crate) async fn deploy_dialler(&self, name: &str, egress: &str) -> Result<(), BenchError> {
        let image = self.create_image(name, |folder| {
            fs::copy(own_program()?, folder.join("dial"))?;
            Ok(())
        })?;
        self.deploy_function(name, &image, "./dial pool-dial", egress, json!({}))
            .await
    }

    /// Creates a folder for a function; `fill` writes its files.
    pub(crate) fn create_image(
        &self,
        name: &str,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<PathBuf, BenchError> {
        let folder = self.folder.path().join("images").join(name);
        fs::create_dir_all(&folder)?;
        fill(&folder)?;
        Ok(folder)
    }

    /// Deploys a function with the secrets of its egress: started once per request by default, or
    /// as its variables say.
    pub(crate) async fn deploy_function(
        &self,
        name: &str,
        image: &Path,
        command: &str,
        egress: &str,
        variables: Value,
    ) -> Result<(), BenchError> {
        let mut variables = variables;
        // A process for each request is the short-lived function that the pool is for.
        if variables["mode"].is_null() {
            variables["mode"] = json!("streaming");
        }
        let annotations = if egress.is_empty() {
            json!({})
        } else {
            json!({ "nearpath.io/egress": egress })
        };
        let image = format!("file://{}", image.display());
        let secrets: Vec<_> = egress
            .split([' ', ','])
            .filter_map(|word| word.strip_prefix("password=secret:"))
            .collect();
        let spec = json!({
            "service": name, "image": image, "envProcess": command, "envVars": variables, "annotations": annotations,
            "secrets": secrets,
        });
        self.server.deploy_function(&spec).await?;
        self.server.wait_available(name, 1).await?;
        Ok(())
    }

    /// Runs a plan in a function.
    pub(crate) async fn dial_from(
        &self,
        name: &str,
        plan: &DialPlan,
    ) -> Result<DialResult, BenchError> {
        Ok(serde_json::from_slice(
            &self
                .call_function(name, serde_json::to_vec(plan)?.into())
                .await?,
        )?)
    }

    /// Sends a request to a function.
    pub(crate) async fn call_function(&self, name: &str, body: Bytes) -> Result<Bytes, BenchError> {
        self.send_request(name, Request::post(format!("/function/{name}")), body)
            .await
    }

    /// Sends a request with any method.
    pub(crate) async fn send_request(
        &self,
        name: &str,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<Bytes, BenchError> {
        let request = request
            .header("host", self.server.addr().to_string())
            .body(Full::from(body))?;
        let answer = connection::send_once(self.server.addr(), request).await;
        let answer = answer.map_err(|failure| format!("{name}: {failure}"))?;
        match answer.status.is_success() {
            true => Ok(answer.body),
            false => Err(format!(
                "{name} answers {}: {}",
                answer.status,
                String::from_utf8_lossy(&answer.body)
            )
            .into()),
        }
    }
}

/// Runs a plan in a plain program of this machine.
pub(crate) fn dial_outside(plan: &DialPlan) -> Result<DialResult, BenchError> {
    let mut command = Command::new(own_program()?);
    let mut program = command
        .arg("pool-dial")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = program.stdin.take().ok_or("no standard input")?;
    input.write_all(&serde_json::to_vec(plan)?)?;
    // The program reads its plan to the end of the input.
    drop(input);
    let done = program.wait_with_output()?;
    Ok(serde_json::from_slice(&done.stdout)?)
}

fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}
