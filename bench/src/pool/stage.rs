//! Two machines of the lab: on one a `nearpath up` with functions that connect, on the other what they connect to.

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

use super::dial::{Found, Plan};
use crate::load::connection;
use crate::peers::nearpath::NearpathServer;
use crate::remote::Error;

/// Where the server listens: plainly, plainly once more, and for HTTP.
const PORTS: [u16; 3] = [9000, 9001, 9080];

/// The machines, and what runs on the far one.
pub(crate) struct Ground {
    _lab: NetworkLab,
    /// Where functions run.
    pub(crate) near: LabNode,
    /// Where the server is: the same machine, when there is no link.
    pub(crate) far: LabNode,
    /// The server.
    pub(crate) server: SocketAddr,
    /// The same under another port.
    pub(crate) other: SocketAddr,
    /// The server that speaks HTTP.
    pub(crate) web: SocketAddr,
    program: Child,
}

impl Ground {
    /// With a link of that delay between them. Loopback is a link, too: that of the near machine to itself.
    pub(crate) fn new(link: Option<&LinkConditions>) -> Result<Self, Error> {
        let mut lab = NetworkLab::new()?;
        let (near, other) = (lab.add_node("near")?, lab.add_node("far")?);
        let cable = lab.connect_nodes(&near, &other, link.unwrap_or(&LinkConditions::default()))?;
        let (far, at) = match link {
            Some(_) => (other, cable.second_end().v4),
            None => (near.clone(), cable.first_end().v4),
        };
        let [server, other, web] = PORTS.map(|port| SocketAddr::new(IpAddr::V4(at), port));
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
        ground.until_it_listens()?;
        Ok(ground)
    }

    fn until_it_listens(&self) -> Result<(), Error> {
        for address in [self.server, self.other, self.web] {
            until_it_listens(&self.near, address)?;
        }
        Ok(())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Waits until something listens there.
pub(crate) fn until_it_listens(node: &LabNode, address: SocketAddr) -> Result<(), Error> {
    for _ in 0..1_000 {
        if node.enter(|| TcpStream::connect(address)).is_ok() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(format!("nothing listens at {address} after 10 s").into())
}

/// A `nearpath up` on the near machine. Made, and used, on a thread of that machine.
pub(crate) struct Stage {
    house: NearpathServer,
    folder: TempDir,
}

impl Stage {
    /// With further options of `nearpath up`.
    pub(crate) async fn start(options: &[&str]) -> Result<Self, Error> {
        let folder = tempfile::Builder::new()
            .prefix("nearpath-pool.")
            .tempdir()?;
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let house = NearpathServer::start_with(folder.path(), options).await?;
        Ok(Self { house, folder })
    }

    /// Makes a secret.
    pub(crate) async fn secret(&self, name: &str, value: &str) -> Result<(), Error> {
        let secret = json!({ "name": name, "value": value });
        let (status, answer) = self
            .house
            .ask(http::Method::POST, "/system/secrets", &secret)
            .await?;
        if status.is_success() {
            Ok(())
        } else {
            Err(format!("the secret {name}: {status} {answer}").into())
        }
    }

    /// Deploys the program that connects, as a function that may reach these destinations, and waits for its first instance.
    pub(crate) async fn dialler(&self, name: &str, egress: &str) -> Result<(), Error> {
        let image = self.image(name, |folder| {
            fs::copy(own_program()?, folder.join("dial"))?;
            Ok(())
        })?;
        self.deploy(name, &image, "./dial pool-dial", egress, json!({}))
            .await
    }

    /// A folder for a function, filled by `fill`.
    pub(crate) fn image(
        &self,
        name: &str,
        fill: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<PathBuf, Error> {
        let folder = self.folder.path().join("images").join(name);
        fs::create_dir_all(&folder)?;
        fill(&folder)?;
        Ok(folder)
    }

    /// Deploys a function: one that is started once a request, unless the variables say otherwise. It has the secrets that its egress names.
    pub(crate) async fn deploy(
        &self,
        name: &str,
        image: &Path,
        command: &str,
        egress: &str,
        variables: Value,
    ) -> Result<(), Error> {
        let mut variables = variables;
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
        self.house.deploy(&spec).await?;
        self.house.until_available(name, 1).await?;
        Ok(())
    }

    /// Has a function do what the plan says.
    pub(crate) async fn dial(&self, name: &str, plan: &Plan) -> Result<Found, Error> {
        Ok(serde_json::from_slice(
            &self.call(name, serde_json::to_vec(plan)?.into()).await?,
        )?)
    }

    /// One request to a function.
    pub(crate) async fn call(&self, name: &str, body: Bytes) -> Result<Bytes, Error> {
        self.ask(name, Request::post(format!("/function/{name}")), body)
            .await
    }

    /// A request of another kind.
    pub(crate) async fn ask(
        &self,
        name: &str,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<Bytes, Error> {
        let request = request
            .header("host", self.house.addr().to_string())
            .body(Full::from(body))?;
        let answer = connection::once(self.house.addr(), request).await;
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
pub(crate) fn dial(plan: &Plan) -> Result<Found, Error> {
    let mut command = Command::new(own_program()?);
    let mut program = command
        .arg("pool-dial")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = program.stdin.take().ok_or("no standard input")?;
    input.write_all(&serde_json::to_vec(plan)?)?;
    drop(input);
    let done = program.wait_with_output()?;
    Ok(serde_json::from_slice(&done.stdout)?)
}

fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}
