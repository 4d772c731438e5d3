//! A server with a thread per connection: a request states the size of its response.
//!
//! A plain request has a head of a hundred bytes and the body that it announces. Another port
//! speaks HTTP/1.1: the path states the length of the response, `content-length` that of the
//! request.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Bytes of a plain request's head.
pub(crate) const REQUEST_BYTES: usize = 100;
/// Bytes per write.
const CHUNK_BYTES: usize = 65_536;

/// Options of `pool-server`.
#[derive(clap::Args)]
pub(crate) struct PoolServerArgs {
    /// Addresses for plain requests
    #[arg(long, value_name = "ADDR:PORT", value_delimiter = ',')]
    listen: Vec<SocketAddr>,

    /// Address for HTTP
    #[arg(long, value_name = "ADDR:PORT")]
    web: SocketAddr,
}

/// Serves until it is killed.
pub(crate) fn run(args: &PoolServerArgs) -> io::Result<()> {
    for address in &args.listen {
        let listener = TcpListener::bind(address)?;
        // A thread for each listener: `accept` blocks.
        thread::spawn(move || serve_plain(&listener));
    }
    accept_loop(&TcpListener::bind(args.web)?, answer_web)
}

/// Serves plain requests until accept() fails.
pub(crate) fn serve_plain(listener: &TcpListener) -> io::Result<()> {
    accept_loop(listener, answer_plain)
}

fn accept_loop(listener: &TcpListener, answer: fn(TcpStream) -> io::Result<()>) -> io::Result<()> {
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || {
            // Small answers must not wait for acknowledgements.
            stream.set_nodelay(true)?;
            answer(stream)
        });
    }
    Ok(())
}

/// Formats a plain request: the length of the response, and the length of its body after the head.
pub(crate) fn plain_request(down: u32, up: u32) -> Vec<u8> {
    let mut request = vec![0; REQUEST_BYTES];
    request[..4].copy_from_slice(&down.to_le_bytes());
    request[4..8].copy_from_slice(&up.to_le_bytes());
    request
}

/// Formats the same request in HTTP, without its body.
pub(crate) fn web_request(host: &str, down: u32, up: u32) -> Vec<u8> {
    let method = if up == 0 { "GET" } else { "POST" };
    format!("{method} /{down} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {up}\r\n\r\n")
        .into_bytes()
}

fn answer_plain(mut stream: TcpStream) -> io::Result<()> {
    let (mut request, mut piece) = ([0; REQUEST_BYTES], vec![0; CHUNK_BYTES]);
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
        discard_body(&mut stream, number(4) as usize, &mut piece)?;
        send_body(&mut stream, number(0) as usize, &piece)?;
    }
}

fn answer_web(mut stream: TcpStream) -> io::Result<()> {
    let (mut reader, mut piece) = (
        BufReader::with_capacity(CHUNK_BYTES, stream.try_clone()?),
        vec![0; CHUNK_BYTES],
    );
    while let Some((down, up)) = read_head(&mut reader)? {
        discard_body(&mut reader, up, &mut piece)?;
        let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {down}\r\n\r\n").into_bytes();
        let first = down.min(CHUNK_BYTES);
        answer.extend_from_slice(&piece[..first]); // in one segment with the head where it fits
        stream.write_all(&answer)?;
        send_body(&mut stream, down - first, &piece)?;
    }
    Ok(())
}

/// Reads a request's head: the lengths of response and body. `None` at the end of the connection.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<(usize, usize)>> {
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
            (_, field) => up = parse_length(field).unwrap_or(up),
        }
        down = Some(down.ok_or(io::ErrorKind::InvalidData)?);
    }
}

fn parse_length(field: &str) -> Option<usize> {
    let (name, value) = field.split_once(':')?;
    name.eq_ignore_ascii_case("content-length")
        .then(|| value.trim().parse().ok())
        .flatten()
}

fn discard_body(stream: &mut impl Read, mut up: usize, piece: &mut [u8]) -> io::Result<()> {
    while up > 0 {
        let most = up.min(piece.len());
        match stream.read(&mut piece[..most])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => up -= read,
        }
    }
    Ok(())
}

fn send_body(stream: &mut impl Write, mut down: usize, piece: &[u8]) -> io::Result<()> {
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
    fn heads_state_the_lengths() {
        let mut reader = &web_request("host", 7, 9)[..];
        assert_eq!(read_head(&mut reader).unwrap(), Some((7, 9)));
        assert_eq!(read_head(&mut reader).unwrap(), None);
        assert!(read_head(&mut &b"nonsense\r\n\r\n"[..]).is_err());
    }
}
