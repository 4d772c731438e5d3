//! A server whose every connection has a thread: a request says how much comes back.
//!
//! It speaks plainly, a hundred bytes and what they announce, and on a port of its own the same over HTTP/1.1: the path says how much comes back,
//! `content-length` how much comes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Bytes of a plain request.
pub(crate) const REQUEST: usize = 100;
/// What is sent at a time.
const PIECE: usize = 65_536;

/// Options of `pool-server`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to listen for plain requests
    #[arg(long, value_name = "ADDR:PORT", value_delimiter = ',')]
    listen: Vec<SocketAddr>,

    /// Where to listen for HTTP
    #[arg(long, value_name = "ADDR:PORT")]
    web: SocketAddr,
}

/// Serves until it is killed.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    for address in &args.listen {
        let listener = TcpListener::bind(address)?;
        thread::spawn(move || serve(&listener));
    }
    accept(&TcpListener::bind(args.web)?, web)
}

/// Serves plainly until accepting fails.
pub(crate) fn serve(listener: &TcpListener) -> io::Result<()> {
    accept(listener, plain)
}

fn accept(listener: &TcpListener, answer: fn(TcpStream) -> io::Result<()>) -> io::Result<()> {
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || {
            stream.set_nodelay(true)?;
            answer(stream)
        });
    }
    Ok(())
}

/// A plain request's bytes: how many are to come, and how many the request has beside these hundred.
pub(crate) fn request(down: u32, up: u32) -> Vec<u8> {
    let mut request = vec![0; REQUEST];
    request[..4].copy_from_slice(&down.to_le_bytes());
    request[4..8].copy_from_slice(&up.to_le_bytes());
    request
}

/// The same in HTTP, without its body.
pub(crate) fn web_request(host: &str, down: u32, up: u32) -> Vec<u8> {
    let method = if up == 0 { "GET" } else { "POST" };
    format!("{method} /{down} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {up}\r\n\r\n")
        .into_bytes()
}

fn plain(mut stream: TcpStream) -> io::Result<()> {
    let (mut request, mut piece) = ([0; REQUEST], vec![0; PIECE]);
    loop {
        stream.read_exact(&mut request)?;
        let number = |at: usize| {
            u32::from_le_bytes([
                request[at],
                request[at + 1],
                request[at + 2],
                request[at + 3],
            ])
        };
        take(&mut stream, number(4) as usize, &mut piece)?;
        give(&mut stream, number(0) as usize, &piece)?;
    }
}

fn web(mut stream: TcpStream) -> io::Result<()> {
    let (mut reader, mut piece) = (
        BufReader::with_capacity(PIECE, stream.try_clone()?),
        vec![0; PIECE],
    );
    while let Some((down, up)) = head(&mut reader)? {
        take(&mut reader, up, &mut piece)?;
        let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {down}\r\n\r\n").into_bytes();
        let first = down.min(PIECE);
        answer.extend_from_slice(&piece[..first]); // in one segment with the head where it fits
        stream.write_all(&answer)?;
        give(&mut stream, down - first, &piece)?;
    }
    Ok(())
}

/// A request's head: how much is to go and how much comes. `None` at the connection's end.
fn head(reader: &mut impl BufRead) -> io::Result<Option<(usize, usize)>> {
    let (mut line, mut down, mut up) = (String::new(), None, 0);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match (down, line.trim_end()) {
            (Some(down), "") => return Ok(Some((down, up))),
            (None, first) => {
                down = first
                    .split(' ')
                    .nth(1)
                    .and_then(|path| path.strip_prefix('/')?.parse().ok())
            }
            (_, field) => up = length(field).unwrap_or(up),
        }
        down = Some(down.ok_or(io::ErrorKind::InvalidData)?);
    }
}

fn length(field: &str) -> Option<usize> {
    let (name, value) = field.split_once(':')?;
    name.eq_ignore_ascii_case("content-length")
        .then(|| value.trim().parse().ok())
        .flatten()
}

fn take(stream: &mut impl Read, mut up: usize, piece: &mut [u8]) -> io::Result<()> {
    while up > 0 {
        let most = up.min(piece.len());
        match stream.read(&mut piece[..most])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => up -= read,
        }
    }
    Ok(())
}

fn give(stream: &mut impl Write, mut down: usize, piece: &[u8]) -> io::Result<()> {
    while down > 0 {
        let next = down.min(piece.len());
        stream.write_all(&piece[..next])?;
        down -= next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_say_how_much() {
        let mut reader = &web_request("host", 7, 9)[..];
        assert_eq!(head(&mut reader).unwrap(), Some((7, 9)));
        assert_eq!(head(&mut reader).unwrap(), None);
        assert!(head(&mut &b"nonsense\r\n\r\n"[..]).is_err());
    }
}
