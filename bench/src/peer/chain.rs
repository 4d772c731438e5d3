//! Two functions that call each other, the ways that others build it: with a proxy beside each, or bare.

use std::io;
use std::net::SocketAddr;

use super::nginx::Nginx;
use super::{Peer, cores, own};

/// Functions with what stands around them. The entry is whom callers ask.
pub(crate) struct Chain {
    functions: Vec<Peer>,
    proxies: Vec<Nginx>,
    pub(crate) entry: SocketAddr,
}

impl Chain {
    /// Two functions, the first of which asks the second over HTTP, and nothing else.
    pub(crate) async fn direct() -> io::Result<Self> {
        let second = own::function(None).await?;
        let first = own::function(Some(second.addr)).await?;
        Ok(Self { entry: first.addr, functions: vec![first, second], proxies: Vec::new() })
    }

    /// nginx in front, and an nginx beside each function, which calls go through on their way in: what a service mesh
    /// makes of it. A sidecar has one worker, as it serves one function.
    pub(crate) async fn sidecars() -> io::Result<Self> {
        let second = own::function(None).await?;
        let beside_second = Nginx::start(second.addr, 1, "/").await?;
        let first = own::function(Some(beside_second.peer.addr)).await?;
        let beside_first = Nginx::start(first.addr, 1, "/").await?;
        let front = Nginx::start(beside_first.peer.addr, cores(), "/").await?;
        let entry = front.peer.addr;
        Ok(Self { functions: vec![first, second], proxies: vec![front, beside_first, beside_second], entry })
    }

    /// nginx in front of one function that calls nobody: the least that an edge in front of anything costs.
    pub(crate) async fn one_behind_nginx() -> io::Result<Self> {
        let only = own::function(None).await?;
        let front = Nginx::start(only.addr, cores(), "/").await?;
        Ok(Self { entry: front.peer.addr, functions: vec![only], proxies: vec![front] })
    }

    /// Every process of it.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let proxies = self.proxies.iter().map(|proxy| proxy.peer.pid());
        self.functions.iter().map(Peer::pid).chain(proxies).collect()
    }
}
