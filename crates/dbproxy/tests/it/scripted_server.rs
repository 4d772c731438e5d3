//! A scripted server on loopback, for behaviour that well-made servers rarely show.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that runs a script per connection.
pub(crate) struct ScriptedServer {
    pub(crate) at: SocketAddr,
    /// Number of connections so far.
    pub(crate) connections: Rc<Cell<usize>>,
    /// Heads of the requests so far.
    pub(crate) heads: Rc<RefCell<Vec<String>>>,
}

/// A connection of the server.
pub(crate) struct ScriptedConnection {
    pub(crate) stream: TcpStream,
    /// Number of the connection, from 0.
    pub(crate) number: usize,
    heads: Rc<RefCell<Vec<String>>>,
    read: Vec<u8>,
}

impl ScriptedServer {
    pub(crate) async fn start<F: Future<Output = Option<()>> + 'static>(
        serve: impl Fn(ScriptedConnection) -> F + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let scripted = Self {
            at: listener.local_addr().unwrap(),
            connections: Rc::default(),
            heads: Rc::default(),
        };
        let (connections, heads) = (scripted.connections.clone(), scripted.heads.clone());
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = connections.get();
                connections.set(number + 1);
                tokio::task::spawn_local(serve(ScriptedConnection {
                    stream,
                    number,
                    heads: heads.clone(),
                    read: Vec::new(),
                }));
            }
        });
        scripted
    }
}

impl ScriptedConnection {
    /// Reads the next request's head. `None`: the client has left.
    pub(crate) async fn read_head(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.read.windows(4).position(|part| part == b"\r\n\r\n") {
                let rest = self.read.split_off(end + 4);
                let head = String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap();
                self.heads.borrow_mut().push(head.clone());
                return Some(head);
            }
            self.read_more().await?;
        }
    }

    /// Reads the next `length` bytes.
    pub(crate) async fn read_body(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.read.len() < length {
            self.read_more().await?;
        }
        let rest = self.read.split_off(length);
        Some(std::mem::replace(&mut self.read, rest))
    }

    async fn read_more(&mut self) -> Option<()> {
        let read = self.stream.read_buf(&mut self.read).await.unwrap_or(0);
        (read > 0).then_some(())
    }

    pub(crate) async fn send(&mut self, text: &str) -> Option<()> {
        self.stream.write_all(text.as_bytes()).await.ok()
    }
}
