//! Two machines of the lab: on one a `nearpath up` with functions that connect, on the other what
//! they connect to.

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

/// The machines, and what runs on the far one.
pub(crate) struct PoolNetwork {
    _lab: NetworkLab,
    /// Machine of the functions.
    pub(crate) near: LabNode,
    /// Machine of the server: the same one, if there is no link.
    pub(crate) far: LabNode,
    /// The server.
    pub(crate) server: SocketAddr,
    /// The same under another port.
    pub(crate) other: SocketAddr,
    /// The server that speaks HTTP.
    pub(crate) web: SocketAddr,
    program: Child,
}

impl PoolNetwork {
    /// With a link of that delay between them. Loopback is a link, too: that of the near machine to
    /// itself.
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
        let ground = Self {
            _lab: lab,
            near,
            far,
            server,
            other,
            web,
            program,
        };
        // From the near machine: the link, too, must be up.
        ground.wait_for_servers()?;
        Ok(ground)
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

/// Waits until something listens there.
pub(crate) fn wait_for_listener(node: &LabNode, address: SocketAddr) -> Result<(), BenchError> {
    for _ in 0..1_000 {
        if node.enter(|| TcpStream::connect(address)).is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(format!("nothing listens at {address} after 10 s").into())
}

/// A `nearpath up` on the near machine. Made, and used, on a thread of that machine.
pub(crate) struct PoolNode {
    server: NearpathServer,
    folder: TempDir,
}

impl PoolNode {
    /// With further options of `nearpath up`.
    pub(crate) async fn start(options: &[&str]) -> Result<Self, BenchError> {
        let folder = tempfile::Builder::new()
            .prefix("nearpath-pool.")
            .tempdir()?;
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let server = NearpathServer::start_with(folder.path(), options).await?;
        Ok(Self { server, folder })
    }

    /// Makes a secret.
    pub(crate) async fn create_secret(&self, name: &str, value: &str) -> Result<(), BenchError> {
        let secret = json!({ "name": name, "value": value });
        let (status, answer) = self
            .server
            .send_request(http::Method::POST, "/system/secrets", &secret)
            .await?;
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("the secret {name}: {status} {answer}").into())
        }
    }

    /// Deploys the program that connects, as a function that may reach these destinations, and
    /// waits for its first instance.
    pub(crate) async fn deploy_dialler(&self, name: &str, egress: &str) -> Result<(), BenchError> {
        let image = self.create_image(name, |folder| {
            fs::copy(own_program()?, folder.join("dial"))?;
            Ok(())
        })?;
        self.deploy_function(name, &image, "./dial pool-dial", egress, json!({}))
            .await
    }

    /// A folder for a function, filled by `fill`.
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

    /// Deploys a function: one that is started once a request, unless the variables say otherwise.
    /// It has the secrets that its egress names.
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

    /// Has a function do what the plan says.
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

    /// A request of another kind.
    pub(crate) async fn send_request(
        &self,
        name: &str,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<Bytes, BenchError> {
        let request = request
            .header("host", self.server.addr().to_string())
            .body(Full::from(body))?;
        let answer = connection::ask_once(self.server.addr(), request).await;
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

/// Has an ordinary program of this machine do what the plan says.
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
