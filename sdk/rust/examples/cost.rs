//! What a call costs its caller and its callee in CPU time: `cost [CALLS] [AT ONCE] [waits]`. Two threads, one domain, no
//! node. With a third word the handler waits for another task before it answers.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use nearpath::{Ask, Environment, Request, Server};
use nearpath_domain::hub::{Door, Hub, Settings};
use nearpath_types::{FunctionId, InstanceId};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1).take(2).map(|word| word.parse::<usize>());
    let (calls, at_once) = (words.next().unwrap_or(Ok(200_000))?, words.next().unwrap_or(Ok(32))?);
    let waits = std::env::args().len() > 3;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (hub, _faults) = runtime.block_on(async { Hub::start(Settings::named("cost")) })?;
    let (front, leaf): (FunctionId, FunctionId) = ("front".parse()?, "leaf".parse()?);
    hub.declare([(front.clone(), leaf.clone())]);
    let folder = std::env::temp_dir().join(format!("nearpath-cost-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let environment = |instance: u64, function: &FunctionId| -> Outcome<Environment> {
        let path = folder.join(function.name.as_str());
        hub.admit(InstanceId(instance), function.clone(), Door::Listening(door(&path)?));
        let listen = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        Ok(Environment { door: Some(path), gateway: "http://127.0.0.1:9".to_owned(), listen })
    };
    let (callee, caller) = (environment(1, &leaf)?, environment(2, &front)?);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = std::thread::spawn(move || {
        let end = async { drop(stopped.await) };
        let handler = move |request: Request| async move {
            if waits {
                let _ = tokio::task::spawn_local(async {}).await;
            }
            request.into_body()
        };
        let served = Server::new(handler).within(callee).run_until(end);
        served.map(|()| spent())
    });
    let asking = std::thread::spawn(move || nearpath::run_in(caller, ask(calls, at_once)).map(|()| spent()));
    let asked = asking.join().expect("it does not panic")?;
    let _ = stop.send(());
    let served = serving.join().expect("it does not panic")?;
    let each = |time: Duration| time.as_nanos() as f64 / 1e3 / calls as f64;
    println!("caller {:.3} µs, callee {:.3} µs of CPU a call, {at_once} at once", each(asked), each(served));
    Ok(std::fs::remove_dir_all(folder)?)
}

async fn ask(calls: usize, at_once: usize) {
    let mut tasks = JoinSet::new();
    for _ in 0..at_once {
        tasks.spawn_local(async move {
            for _ in 0..calls / at_once {
                let ask = Ask::default().near_only();
                while nearpath::call_with("leaf", "a small body", ask.clone()).await.is_err() {
                    tokio::task::yield_now().await; // it is on its way into the domain
                }
            }
        });
    }
    tasks.join_all().await;
}

/// CPU time of this thread.
fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn door(path: &Path) -> Outcome<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, 16)?;
    Ok(socket)
}
