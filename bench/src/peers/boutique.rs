//! The native shop (`examples/boutique/native`): as functions of one chain, or as plain processes
//! with the proxies of other systems.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::nearpath::NearpathServer;
use super::nginx::NginxServer;
use super::{PeerProcess, count_cores, find_program, free_addr};
use crate::boutique::session::ShopAddress as Place;
use crate::load::connection::LoadConnection;

const PROGRAM: &str = "boutique-native";

/// Services and their callees, callees first.
const SERVICES: [(&str, &str); 10] = [
    // Callees first: a deployed caller finds its callees, and bare ones get their addresses.
    ("ad", ""),
    ("cart", ""),
    ("currency", ""),
    ("email", ""),
    ("payment", ""),
    ("productcatalog", ""),
    ("recommendation", ""),
    ("shipping", ""),
    (
        "checkout",
        "cart,productcatalog,currency,shipping,payment,email",
    ),
    (
        "frontend",
        "currency,productcatalog,cart,recommendation,shipping,checkout,ad",
    ),
];
const ENTRY_SERVICE: &str = "frontend";

/// Deployment options of a chain on nearpath.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChainOptions {
    /// `nearpath.io/delivery`; `None`: nearpath's default.
    pub(crate) delivery: Option<&'static str>,
    /// Further arguments of the services.
    pub(crate) arguments: &'static str,
}

/// A running shop.
pub(crate) struct BoutiqueServer {
    services: Vec<PeerProcess>,
    proxies: Vec<NginxServer>,
    server: Option<(NearpathServer, TempDir)>,
    pub(crate) place: Place,
}

impl BoutiqueServer {
    /// Starts ten functions of one chain, each sandboxed with one instance. Calls outside of shared
    /// memory fail, so every measured call used it.
    pub(crate) async fn start_nearpath(chain: ChainOptions) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let bin = folder.path().join("shop");
        std::fs::create_dir(&bin)?;
        std::fs::copy(find_program(PROGRAM)?, bin.join(PROGRAM))?;
        let server = NearpathServer::start(folder.path()).await?;
        for (name, calls) in SERVICES {
            server
                .deploy_function(&function_spec(
                    &bin.display().to_string(),
                    name,
                    calls,
                    chain,
                ))
                .await?;
            server.wait_available(name, 1).await?;
        }
        let place = Place {
            addr: server.addr(),
            base_path: format!("/function/{ENTRY_SERVICE}"),
        };
        let shop = Self {
            services: Vec::new(),
            proxies: Vec::new(),
            server: Some((server, folder)),
            place,
        };
        // The first calls go through the gateway until endpoints have joined the domain.
        shop.wait_for_shm().await?;
        Ok(shop)
    }

    /// Starts ten processes, each with the addresses of the others; HTTP or gRPC between them.
    pub(crate) async fn start_bare(transport: &str) -> io::Result<Self> {
        let mut peers = BTreeMap::new();
        let mut services = Vec::new();
        for (name, _) in SERVICES {
            let service = start_service(name, transport, &peers).await?;
            peers.insert(name, service.addr);
            services.push(service);
        }
        let place = Place {
            addr: peers[ENTRY_SERVICE],
            base_path: String::new(),
        };
        Ok(Self {
            services,
            proxies: Vec::new(),
            server: None,
            place,
        })
    }

    /// Starts nginx as front end, and an nginx beside each service for incoming calls, like a
    /// service mesh. A sidecar has one worker, since it serves one process.
    pub(crate) async fn start_sidecars() -> io::Result<Self> {
        let (mut peers, mut services, mut proxies) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (name, _) in SERVICES {
            let service = start_service(name, "http", &peers).await?;
            let beside = NginxServer::start(service.addr, 1, "/").await?;
            peers.insert(name, beside.peer.addr);
            services.push(service);
            proxies.push(beside);
        }
        let front = NginxServer::start(peers[ENTRY_SERVICE], count_cores(), "/").await?;
        let place = Place {
            addr: front.peer.addr,
            base_path: String::new(),
        };
        proxies.push(front);
        Ok(Self {
            services,
            proxies,
            server: None,
            place,
        })
    }

    /// Returns the process ids of the shop.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        let proxies = self.proxies.iter().map(|proxy| proxy.peer.pid());
        let server = self.server.iter().map(|(server, _)| server.pid());
        self.services
            .iter()
            .map(PeerProcess::pid)
            .chain(proxies)
            .chain(server)
            .collect()
    }

    /// Waits until pages and their parts arrive through shared memory.
    async fn wait_for_shm(&self) -> io::Result<()> {
        let mut last = String::new();
        // 15 s: sandboxes of ten services start one after another on two cores.
        for _ in 0..3_000 {
            match self.page_path().await {
                Ok(path) if path == "shm" => return Ok(()),
                Ok(path) => last = path,
                Err(failure) => last = failure,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Err(io::Error::other(format!(
            "no page through shared memory within 15 s: {last}"
        )))
    }

    async fn page_path(&self) -> Result<String, String> {
        let request = Request::get(format!("{}/", self.place.base_path))
            .header("host", "shop")
            .header("x-nearpath-path", "?");
        let request = request
            .body(Full::<Bytes>::default())
            .map_err(|error| error.to_string())?;
        let mut connection = LoadConnection::open(self.place.addr)
            .await
            .map_err(|failure| failure.to_string())?;
        let answer = connection
            .send_request(request)
            .await
            .and_then(|answer| answer.require_success());
        answer
            .map(|answer| answer.path)
            .map_err(|failure| failure.to_string())
    }
}

/// Returns the spec of a service.
fn function_spec(folder: &str, name: &str, calls: &str, chain: ChainOptions) -> Value {
    let arguments = chain.arguments;
    let mut annotations = json!({ "nearpath.io/chain": "shop", "nearpath.io/calls": calls });
    if let Some(delivery) = chain.delivery {
        annotations["nearpath.io/delivery"] = json!(delivery);
    }
    json!({
        "service": name,
        "image": format!("file://{folder}"),
        "envProcess": format!("./{PROGRAM} --service {name} --shm-only {arguments}"),
        "envVars": { "mode": "http", "upstream_url": "http://127.0.0.1:5000" },
        "annotations": annotations,
    })
}

async fn start_service(
    name: &str,
    transport: &str,
    peers: &BTreeMap<&str, SocketAddr>,
) -> io::Result<PeerProcess> {
    let addr = free_addr()?;
    let mut command = Command::new(find_program(PROGRAM)?);
    command.args([
        "--service",
        name,
        "--transport",
        transport,
        "--listen",
        &addr.to_string(),
    ]);
    command.args(
        peers
            .iter()
            .flat_map(|(peer, addr)| ["--peer".to_owned(), format!("{peer}={addr}")]),
    );
    PeerProcess::start(command, addr).await
}
