//! Many chains at once, each function calling the next: on nearpath, behind sidecars, or without a
//! proxy.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tempfile::TempDir;

use super::PeerProcess;
use super::chain_program::ChainProgram;
use super::nearpath::NearpathServer;
use super::nginx::NginxServer;
use crate::load::connection;

/// Functions and their proxies.
pub(crate) struct ManyChains {
    functions: Vec<PeerProcess>,
    proxies: Vec<NginxServer>,
    server: Option<(NearpathServer, TempDir)>,
    /// Address and path of the entry of each chain.
    entries: Vec<(SocketAddr, String)>,
    /// Path that calls state when a chain is warm; empty: none.
    warm_path: &'static str,
}

impl ManyChains {
    /// Starts nearpath with `chains` chains of `length` functions, each sandboxed with one
    /// instance.
    pub(crate) async fn start_nearpath(
        program: &ChainProgram,
        chains: usize,
        length: usize,
    ) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
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
                    .deploy_function(&program.spec(&format!("c{chain}"), name, next))
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
            warm_path: program.warm_path(),
        })
    }

    /// Starts one chain of the same functions as plain processes, without a proxy.
    pub(crate) async fn start_direct(program: &ChainProgram, length: usize) -> io::Result<Self> {
        let mut functions: Vec<PeerProcess> = Vec::new();
        for _ in 0..length {
            let next = functions.last().map(|next| next.addr);
            functions.push(program.start(next).await?);
        }
        let entry = functions.last().map(|entry| (entry.addr, "/".to_owned()));
        Ok(Self {
            functions,
            proxies: Vec::new(),
            server: None,
            entries: entry.into_iter().collect(),
            warm_path: "",
        })
    }

    /// Starts the same functions as plain processes, with an nginx of one worker beside each, and
    /// one as front end.
    pub(crate) async fn start_sidecars(
        program: &ChainProgram,
        chains: usize,
        length: usize,
    ) -> io::Result<Self> {
        let (mut functions, mut proxies, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..chains {
            let mut next = None;
            for _ in 0..length {
                let function = program.start(next).await?;
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
            warm_path: "",
        })
    }

    /// Returns address and path of the entry of the first chain.
    pub(crate) fn first_entry(&self) -> Option<(SocketAddr, &str)> {
        let (addr, path) = self.entries.first()?;
        Some((*addr, path))
    }

    /// Calls every chain once, and repeats until nearpath's calls take their usual path.
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
                // Sidecars state no path.
                match answer.path.as_str() {
                    path if path == self.warm_path => break,
                    _ if attempt < 1_000 => {
                        tokio::time::sleep(std::time::Duration::from_millis(5)).await
                    }
                    other => {
                        return Err(io::Error::other(format!(
                            "{path} still uses path {other}, not {}",
                            self.warm_path
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
