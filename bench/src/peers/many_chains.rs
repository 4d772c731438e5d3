//! Many chains at once, each function calling the next: on nearpath, or behind sidecars.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tempfile::TempDir;

use super::nearpath::NearpathServer;
use super::nginx::NginxServer;
use super::{PeerProcess, chain, own_programs};
use crate::load::connection;

/// Functions and their proxies.
pub(crate) struct ManyChains {
    functions: Vec<PeerProcess>,
    proxies: Vec<NginxServer>,
    server: Option<(NearpathServer, TempDir)>,
    /// Address and path of the entry of each chain.
    entries: Vec<(SocketAddr, String)>,
}

impl ManyChains {
    /// Starts nearpath with `chains` chains of `length` functions, each sandboxed with one
    /// instance.
    pub(crate) async fn start_nearpath(chains: usize, length: usize) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let program = chain::program_folder(folder.path())?;
        let server = NearpathServer::start(folder.path()).await?;
        let mut entries = Vec::new();
        for chain in 0..chains {
            let names: Vec<_> = (0..length)
                .map(|place| format!("c{chain}f{place}"))
                .collect();
            // From the end: each function finds its callee deployed.
            for (place, name) in names.iter().enumerate().rev() {
                let next = names.get(place + 1).map(String::as_str);
                server
                    .deploy_function(&chain::function_spec(
                        &program,
                        &format!("c{chain}"),
                        name,
                        next,
                        "ring",
                    ))
                    .await?;
                server.wait_available(name, 1).await?;
            }
            entries.push((server.addr(), format!("/function/{}", names[0])));
        }
        Ok(Self {
            functions: Vec::new(),
            proxies: Vec::new(),
            server: Some((server, folder)),
            entries,
        })
    }

    /// Starts the same functions as plain processes, with an nginx of one worker beside each, and
    /// one as front end.
    pub(crate) async fn start_sidecars(chains: usize, length: usize) -> io::Result<Self> {
        let (mut functions, mut proxies, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..chains {
            let mut next = None;
            for _ in 0..length {
                let function = own_programs::start_function(next).await?;
                let beside = NginxServer::start(function.addr, 1, "/").await?;
                next = Some(beside.peer.addr);
                functions.push(function);
                proxies.push(beside);
            }
            entries.extend(next.map(|entry| (entry, "/".to_owned())));
        }
        // A single nginx in front, as nearpath has a single gateway.
        if let Some((entry, _)) = entries.first_mut() {
            let front = NginxServer::start(*entry, super::count_cores(), "/").await?;
            *entry = front.peer.addr;
            proxies.push(front);
        }
        Ok(Self {
            functions,
            proxies,
            server: None,
            entries,
        })
    }

    /// Calls every chain once, and repeats until nearpath's calls use shared memory.
    pub(crate) async fn warm_chains(&self) -> io::Result<()> {
        for (addr, path) in &self.entries {
            // Each attempt is a call through the whole chain, so all of its edges get warm.
            for attempt in 0.. {
                let request = Request::get(path)
                    .header("host", "bench")
                    .header("x-nearpath-path", "?");
                let request = request
                    .body(Full::<Bytes>::default())
                    .map_err(io::Error::other)?;
                let answer = connection::send_once(*addr, request)
                    .await
                    .and_then(connection::LoadResponse::require_success);
                let answer =
                    answer.map_err(|failure| io::Error::other(format!("{path}: {failure}")))?;
                // Sidecars state no path; nearpath's must be warm in shared memory.
                match answer.path.as_str() {
                    "" | "shm" => break,
                    _ if attempt < 1_000 => {
                        tokio::time::sleep(std::time::Duration::from_millis(5)).await
                    }
                    other => {
                        return Err(io::Error::other(format!(
                            "{path} still uses path {other}, not shm"
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the process ids, or those of their parents.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        let proxies = self.proxies.iter().map(|proxy| proxy.peer.pid());
        let server = self.server.iter().map(|(server, _)| server.pid());
        self.functions
            .iter()
            .map(PeerProcess::pid)
            .chain(proxies)
            .chain(server)
            .collect()
    }
}
