//! The functions of examples/motion and examples/parking: deployed, or as plain processes.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::nearpath::NearpathServer;
use super::{PeerProcess, find_program, free_addr};

const PROGRAM: &str = "sensing";

/// A function and its callees.
pub(crate) type FunctionEdges = (&'static str, &'static [&'static str]);

/// Callees before callers.
pub(crate) const MOTION_CHAIN: [FunctionEdges; 2] = [("actuator", &[]), ("sensor", &["actuator"])];
/// Callees before callers.
pub(crate) const PARKING_CHAIN: [FunctionEdges; 5] = [
    ("charging", &[]),
    ("persist", &["charging"]),
    ("index", &["persist"]),
    ("search", &["index", "charging"]),
    ("detection", &["search"]),
];
/// Topic whose messages call the sensor.
pub(crate) const SENSOR_TOPIC: &str = "sensors/1/motion";

/// Deploys a chain and waits until each of its functions has an instance. `folder` is for the
/// program.
pub(crate) async fn deploy_chain(
    server: &NearpathServer,
    folder: &Path,
    chain: &str,
    functions: &[FunctionEdges],
) -> io::Result<()> {
    let image = folder.join(chain);
    std::fs::create_dir(&image)?;
    std::fs::copy(find_program(PROGRAM)?, image.join(PROGRAM))?;
    for (name, calls) in functions {
        server
            .deploy_function(&function_spec(
                &image.display().to_string(),
                chain,
                name,
                calls,
            ))
            .await?;
        server.wait_available(name, 1).await?;
    }
    Ok(())
}

fn function_spec(image: &str, chain: &str, name: &str, calls: &[&str]) -> Value {
    let topic = if name == "sensor" {
        "sensors/+/motion"
    } else {
        ""
    };
    json!({
        "service": name,
        "image": format!("file://{image}"),
        "envProcess": format!("./sensing {name}"),
        "envVars": { "mode": "http", "upstream_url": "http://127.0.0.1:5000" },
        "annotations": { "nearpath.io/chain": chain, "nearpath.io/calls": calls.join(","), "topic": topic },
    })
}

/// Starts the same functions as plain processes that call each other over HTTP; the last one is the
/// entry.
pub(crate) async fn start_direct(functions: &[FunctionEdges]) -> io::Result<Vec<PeerProcess>> {
    let mut peers: Vec<(&str, PeerProcess)> = Vec::new();
    // In the order of the table: callees have an address before their callers start.
    for (name, _) in functions {
        let addr: SocketAddr = free_addr()?;
        let known: Vec<_> = peers
            .iter()
            .map(|(name, peer)| format!("{name}={}", peer.addr))
            .collect();
        let mut command = Command::new(find_program(PROGRAM)?);
        command
            .arg(name)
            .env("upstream_url", format!("http://{addr}"))
            .env("SENSING_DIRECT", known.join(","));
        peers.push((name, PeerProcess::start(command, addr).await?));
    }
    Ok(peers.into_iter().map(|(_, peer)| peer).collect())
}
