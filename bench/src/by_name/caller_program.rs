//! The caller: makes the calls of a task where it runs, and answers with their counts.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use bytes::Bytes;
use http::Method;

use super::caller_task::{CallerAnswer, CallerTask, CallerWork};
use super::{redis_calls, socket_calls};
use crate::load::closed::ConnectionReuse;
use crate::load::{MeasureWindow, RequestTemplate, epoll_client};
use crate::tally::RequestTally;

/// Length of a request's body, and of its response.
const BODY_BYTES: usize = 100;

/// Options of `direct-caller`.
#[derive(clap::Args)]
pub(crate) struct CallerArgs {
    /// Take tasks at this port of the loopback device
    #[arg(long)]
    port: u16,

    /// Set a name, by which the process is found
    #[arg(long)]
    name: String,
}

/// Takes tasks until it is killed.
///
/// # Errors
/// When the port cannot be opened.
pub(crate) fn run(args: &CallerArgs) -> io::Result<()> {
    // The loopback device alone: other functions must not send tasks.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port))?;
    for stream in listener.incoming() {
        let name = args.name.clone();
        // A thread each: the platform may open connections to see whether the port is ready.
        thread::spawn(move || {
            if let Err(error) = stream.and_then(take_tasks) {
                eprintln!("{name}: {error}");
            }
        });
    }
    Ok(())
}

fn take_tasks(stream: TcpStream) -> io::Result<()> {
    // Readers of lines buffer, so that answers need a handle of their own.
    let mut answers = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let task: CallerTask = serde_json::from_str(&line?)?;
        let answer = run_task(&task).map(|tally| CallerAnswer::from_tally(&tally));
        // A text: the comparison prints the reason, and the caller goes on.
        let answer = answer.map_err(|error| error.to_string());
        writeln!(answers, "{}", serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

fn run_task(task: &CallerTask) -> io::Result<RequestTally> {
    // The name is resolved once: /etc/hosts is no part of a call.
    let (addr, window) = (task.resolve_callee()?, task.start_window());
    match task.work {
        CallerWork::Http(callers) => call_http(addr.into(), callers, window),
        // These count failures instead of ending: a refusal is a result.
        CallerWork::Connect => Ok(socket_calls::open_connections(addr, window)),
        CallerWork::RoundTrip => socket_calls::exchange_bytes(addr, window),
        CallerWork::Bulk => socket_calls::send_megabytes(addr, window),
        CallerWork::Denied => socket_calls::attempt_denied(addr, window),
        CallerWork::Redis(command, connections) => {
            redis_calls::run_commands(addr.into(), command, connections, window)
        }
        CallerWork::FirstByte => Ok(socket_calls::exchange_once(addr)),
        CallerWork::FirstPing => Ok(redis_calls::ping_once(addr.into())),
    }
}

/// Makes requests over kept connections.
fn call_http(addr: SocketAddr, callers: usize, window: MeasureWindow) -> io::Result<RequestTally> {
    let template = RequestTemplate {
        // A body in both directions, as calls between functions have one.
        method: Method::POST,
        body: Bytes::from_static(&[b'x'; BODY_BYTES]),
        ..RequestTemplate::for_get(addr, "/").map_err(io::Error::other)?
    };
    let load = epoll_client::run(&template, callers, ConnectionReuse::KeepAlive, window);
    // A runtime for each task: between tasks, the caller must cost no CPU time.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(load)?.tally)
}
