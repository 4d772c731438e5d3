//! HTTP/1.1 requests that have come as a whole: most requests, and the cheap way to answer them.
//!
//! A plain request for a function, head and body in one piece, needs no state between reads and no task that feeds a body:
//! it is read, takes the path of all others ([`crate::pipeline`]), and its answer is written. Where its function can be reached
//! through memory it takes the [`crate::fast_path`]. Whatever is not plain, and whatever is doubtful, is hyper's to
//! judge: the connection goes there with every byte that was read, and stays there.

mod connection;
mod fast_response;
mod response;

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

use std::sync::Arc;

use super::client_requests::Visit;
use super::tracked_stream::Watched;
use crate::fast_path::{self, Seen, Whole, read};
use crate::function::Function;
use crate::pipeline;
use crate::route::{self, Target};
use connection::Line;

/// Most of a head that is waited for here.
const LONGEST_HEAD: usize = 4096;

/// What became of a connection.
pub(super) enum Left<T> {
    /// It is over.
    Over,
    /// The next request is not for here.
    Handed(Watched<T>),
}

/// Answers requests until one comes that is not plain, or the connection ends.
///
/// # Errors
/// When the connection fails, or an answer breaks off and can only be told by breaking the connection.
pub(super) async fn serve<T>(visit: &Visit, io: Watched<T>) -> io::Result<Left<T>>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut line = Line::new(io, visit.life.clone());
    loop {
        match read(line.buffer()) {
            Seen::Whole(whole) => match find(visit, &whole) {
                Some(found) => {
                    if !answered(visit, &mut line, &whole, found).await? {
                        return Ok(Left::Over);
                    }
                }
                None => return Ok(Left::Handed(line.hand_over(Some(whole)))),
            },
            Seen::Part if line.buffer().len() < LONGEST_HEAD => {
                if !line.fill().await? {
                    return Ok(if line.buffer().is_empty() { Left::Over } else { Left::Handed(line.hand_over(None)) });
                }
            }
            Seen::Part | Seen::Other => return Ok(Left::Handed(line.hand_over(None))),
        }
    }
}

/// The function that a plain request is for, and where its own path begins in the request's.
struct Found {
    function: Arc<Function>,
    rest: usize,
}

/// Finds a plain request's function; `None`: the request is to be refused.
fn find(visit: &Visit, whole: &Whole) -> Option<Found> {
    match route::parse(whole.path()) {
        Ok(Target::Function { name, rest }) => visit.lane.table.find(name).map(|function| Found { function, rest }),
        _ => None,
    }
}

/// Answers one request. Whether another one may come.
async fn answered<T>(visit: &Visit, line: &mut Line<T>, whole: &Whole, found: Found) -> io::Result<bool>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let busy = line.life.begin(true);
    if let Some(sent) = fast_path::send(&visit.lane, &visit.peer, whole, &found.function, found.rest) {
        return fast_response::answered(visit, line, whole, sent, busy).await;
    }
    let Some(request) = whole.request() else { return Err(io::ErrorKind::InvalidData.into()) };
    let begun = pipeline::begin_whole(&visit.lane, &visit.peer, request, found.function, found.rest);
    // On the heap: it would make every connection's future as large as itself.
    match line.unless_gone(Box::pin(pipeline::answer(begun))).await {
        Some(mut response) => {
            visit.advertise(response.headers_mut());
            response::write(line, response, busy, whole.closes(), visit.lane.date()).await
        }
        None => Ok(false),
    }
}
