//! `echo`: says what it hears, over plain TCP, one thread a connection: as little of its own as can be.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Options of `echo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
}

/// Echoes until it is killed.
pub(crate) fn serve(args: &Args) -> io::Result<()> {
    for stream in TcpListener::bind(args.listen)?.incoming() {
        let stream = stream?;
        thread::spawn(move || echo(stream));
    }
    Ok(())
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 65536];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            n => stream.write_all(&buffer[..n])?,
        }
    }
}
