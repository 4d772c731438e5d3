//! A callee with ports of its own: one closes connections, one returns bytes, one reads all.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

/// Length of a read.
const READ_BYTES: usize = 64 << 10;

/// Options of `direct-callee`.
#[derive(clap::Args)]
pub(crate) struct SocketServerArgs {
    /// Listen at this port, and the two after it
    #[arg(long)]
    port: u16,
}

/// Listeners of the three ports.
pub(crate) struct SocketServer {
    listeners: [TcpListener; 3],
}

/// Serves until it is killed.
///
/// # Errors
/// When a port cannot be opened.
pub(crate) fn run(args: &SocketServerArgs) -> io::Result<()> {
    let port = args.port;
    let server = SocketServer::bind([port, port + 1, port + 2])?;
    server.serve_in_threads();
    loop {
        // A loop: park() may return without a reason.
        thread::park();
    }
}

impl SocketServer {
    /// Opens the ports on all addresses.
    ///
    /// # Errors
    /// When a port is in use.
    pub(crate) fn bind(ports: [u16; 3]) -> io::Result<Self> {
        let open = |port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
        let [close, echo, sink] = ports;
        // The first port last: it tells that all are ready.
        let (sink, echo) = (open(sink)?, open(echo)?);
        Ok(Self {
            listeners: [open(close)?, echo, sink],
        })
    }

    /// Returns the loopback addresses of the ports.
    #[cfg(test)]
    pub(crate) fn local_addrs(&self) -> io::Result<[std::net::SocketAddrV4; 3]> {
        let mut addrs = [std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0); 3];
        for (addr, listener) in addrs.iter_mut().zip(&self.listeners) {
            addr.set_port(listener.local_addr()?.port());
        }
        Ok(addrs)
    }

    /// Serves each port in threads of its own.
    pub(crate) fn serve_in_threads(self) {
        let [close, echo, sink] = self.listeners;
        // Dropped at once: the caller waits for this end.
        thread::spawn(move || close.incoming().for_each(drop));
        thread::spawn(move || serve_each(&echo, return_bytes));
        thread::spawn(move || serve_each(&sink, read_all));
    }
}

fn serve_each(listener: &TcpListener, serve: fn(TcpStream) -> io::Result<()>) {
    for stream in listener.incoming().flatten() {
        // A caller that breaks off is no news.
        // A thread each: a kept connection must not hold up the next caller.
        thread::spawn(move || serve(stream).ok());
    }
}

fn return_bytes(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // Small: callers send single bytes.
    let mut bytes = [0; 64];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            length => stream.write_all(&bytes[..length])?,
        }
    }
}

fn read_all(mut stream: TcpStream) -> io::Result<()> {
    let mut bytes = vec![0; READ_BYTES];
    // Read and forgotten: only the transport is measured.
    while stream.read(&mut bytes)? > 0 {}
    Ok(())
}
