//! A server whose every connection has a thread: a request says how much comes back.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Bytes of a request.
pub(crate) const REQUEST: usize = 100;
/// What is sent at a time.
const PIECE: usize = 65_536;

/// Options of `pool-server`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
}

/// Serves until it is killed.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    serve(&TcpListener::bind(args.listen)?)
}

/// Serves until accepting fails.
pub(crate) fn serve(listener: &TcpListener) -> io::Result<()> {
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || answer(stream));
    }
    Ok(())
}

/// A request's bytes: how many are to come, and how many the request has beside these hundred.
pub(crate) fn request(down: u32, up: u32) -> [u8; REQUEST] {
    let mut request = [0; REQUEST];
    request[..4].copy_from_slice(&down.to_le_bytes());
    request[4..8].copy_from_slice(&up.to_le_bytes());
    request
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut request, mut piece) = ([0; REQUEST], vec![0; PIECE]);
    loop {
        stream.read_exact(&mut request)?;
        let number = |at: usize| u32::from_le_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]]);
        let (mut down, mut up) = (number(0) as usize, number(4) as usize);
        while up > 0 {
            match stream.read(&mut piece[..up.min(PIECE)])? {
                0 => return Ok(()),
                read => up -= read,
            }
        }
        while down > 0 {
            let next = down.min(PIECE);
            stream.write_all(&piece[..next])?;
            down -= next;
        }
    }
}
