//! Many chains at once, each function asking the next: deployed on nearpath, or with a proxy beside each.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tempfile::TempDir;

use super::nearpath::NearpathServer;
use super::nginx::Nginx;
use super::{Peer, chain, own};
use crate::load::connection;

/// Functions with what stands around them.
pub(crate) struct Many {
    functions: Vec<Peer>,
    proxies: Vec<Nginx>,
    house: Option<(NearpathServer, TempDir)>,
    /// Whom a caller of each chain asks, and for what.
    entries: Vec<(SocketAddr, String)>,
}

impl Many {
    /// A running nearpath with `chains` chains of `length` functions, each in its sandbox, one instance each.
    pub(crate) async fn nearpath(chains: usize, length: usize) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let program = chain::program(folder.path())?;
        let house = NearpathServer::start(folder.path()).await?;
        let mut entries = Vec::new();
        for chain in 0..chains {
            let names: Vec<_> = (0..length)
                .map(|place| format!("c{chain}f{place}"))
                .collect();
            for (place, name) in names.iter().enumerate().rev() {
                let next = names.get(place + 1).map(String::as_str);
                house
                    .deploy(&chain::function(
                        &program,
                        &format!("c{chain}"),
                        name,
                        next,
                        "ring",
                    ))
                    .await?;
                house.until_available(name, 1).await?;
            }
            entries.push((house.addr(), format!("/function/{}", names[0])));
        }
        Ok(Self {
            functions: Vec::new(),
            proxies: Vec::new(),
            house: Some((house, folder)),
            entries,
        })
    }

    /// The same functions as plain processes, an nginx of one worker beside each, and one in front.
    pub(crate) async fn sidecars(chains: usize, length: usize) -> io::Result<Self> {
        let (mut functions, mut proxies, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..chains {
            let mut next = None;
            for _ in 0..length {
                let function = own::function(next).await?;
                let beside = Nginx::start(function.addr, 1, "/").await?;
                next = Some(beside.peer.addr);
                functions.push(function);
                proxies.push(beside);
            }
            entries.extend(next.map(|entry| (entry, "/".to_owned())));
        }
        if let Some((entry, _)) = entries.first_mut() {
            let front = Nginx::start(*entry, super::cores(), "/").await?;
            *entry = front.peer.addr;
            proxies.push(front);
        }
        Ok(Self {
            functions,
            proxies,
            house: None,
            entries,
        })
    }

    /// Asks every chain once, all the way through, and again until nearpath's have gone through memory.
    pub(crate) async fn warm(&self) -> io::Result<()> {
        for (addr, path) in &self.entries {
            for attempt in 0.. {
                let request = Request::get(path)
                    .header("host", "bench")
                    .header("x-nearpath-path", "?");
                let request = request
                    .body(Full::<Bytes>::default())
                    .map_err(io::Error::other)?;
                let answer = connection::once(*addr, request)
                    .await
                    .and_then(connection::Answer::success);
                let answer =
                    answer.map_err(|failure| io::Error::other(format!("{path}: {failure}")))?;
                match answer.path.as_str() {
                    "" | "shm" => break,
                    _ if attempt < 1_000 => {
                        tokio::time::sleep(std::time::Duration::from_millis(5)).await
                    }
                    other => {
                        return Err(io::Error::other(format!(
                            "{path} still goes by {other}, not shm"
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// Every process of it, or its parent.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let proxies = self.proxies.iter().map(|proxy| proxy.peer.pid());
        let house = self.house.iter().map(|(house, _)| house.pid());
        self.functions
            .iter()
            .map(Peer::pid)
            .chain(proxies)
            .chain(house)
            .collect()
    }
}
