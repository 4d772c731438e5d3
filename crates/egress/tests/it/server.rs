//! A server that answers lines and HTTP on one port. It says goodbye when its client has shut down
//! its writes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

pub(crate) struct LineServer {
    pub(crate) address: SocketAddr,
}

impl LineServer {
    /// Starts it; its threads end with the test process.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for client in listener.incoming() {
                thread::spawn(move || serve_client(client.unwrap()));
            }
        });
        Self { address }
    }
}

/// Serves a client; one that disconnects early is no error.
fn serve_client(client: TcpStream) {
    let mut lines = BufReader::new(client.try_clone().unwrap());
    let mut line = String::new();
    loop {
        line.clear();
        match lines.read_line(&mut line) {
            Ok(0) => return drop((&client).write_all(b"bye\n")),
            Ok(_) if line.contains(" HTTP/1.") => respond_http(&mut lines, &client, &line),
            Ok(_) => drop((&client).write_all(format!("echo {line}").as_bytes())),
            Err(_) => return,
        }
    }
}

/// Answers with the path and the number of bytes received.
fn respond_http(lines: &mut BufReader<TcpStream>, mut client: &TcpStream, request: &str) {
    let (mut header, mut length) = (String::new(), 0);
    while lines.read_line(&mut header).is_ok_and(|read| read > 2) {
        let lower = header.to_ascii_lowercase();
        length = lower
            .strip_prefix("content-length:")
            .map_or(length, |length| length.trim().parse().unwrap());
        header.clear();
    }
    let mut body = vec![0; length];
    let _ = lines.read_exact(&mut body);
    let answer = format!(
        "{} and {length} octets\n",
        request.split(' ').nth(1).unwrap_or_default()
    );
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
        answer.len()
    );
    let _ = client.write_all((head + &answer).as_bytes());
}
