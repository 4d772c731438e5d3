//! Control without an adapter: a used connection goes to the next client uncleaned.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use nearpath_dbproxy::ClientContext;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

/// The connection that all clients use in turn.
pub(crate) type SharedBackend = Rc<Mutex<Option<TcpStream>>>;

pub(crate) async fn serve_uncleaned(
    mut client: TcpStream,
    context: ClientContext,
    only: SharedBackend,
) -> io::Result<()> {
    let mut only = only.lock().await;
    let mut backend = match only.take() {
        Some(backend) => backend,
        None => TcpStream::connect(("127.0.0.1", context.upstream.destination.egress.port)).await?,
    };
    let (mut ours, mut theirs) = ([0; 4096], [0; 4096]);
    loop {
        tokio::select! {
            read = client.read(&mut ours) => match read {
                Ok(read) if read > 0 => backend.write_all(&ours[..read]).await?,
                _ => break,
            },
            read = backend.read(&mut theirs) => match read {
                Ok(read) if read > 0 => if client.write_all(&theirs[..read]).await.is_err() { break },
                _ => return Ok(()),
            },
            // A client that waits for a reply that never comes must not block the test.
            () = tokio::time::sleep(Duration::from_millis(100)) => break,
        }
    }
    *only = Some(backend);
    Ok(())
}
