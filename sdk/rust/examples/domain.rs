//! A domain without a node, for the tests of every SDK: `domain FOLDER CALLER>CALLEE…` makes a door `FOLDER/NAME` for each
//! function, says `ready` and goes on until its standard input ends.
//!
//! A process that is started with `NEARPATH_DISPATCH=FOLDER/NAME` is an instance of that function.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use nearpath_domain::hub::{Door, Hub, Settings};
use nearpath_domain::protocol::Terms;
use nearpath_types::{FunctionId, InstanceId};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().ok_or("usage: domain FOLDER CALLER>CALLEE…")?;
    let edges: Vec<(FunctionId, FunctionId)> = words.map(|edge| read(&edge)).collect::<Outcome<_>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let (hub, _faults) = runtime.block_on(async { Hub::start(Settings::named("sdk")) })?;
    hub.declare_with(edges.iter().map(|edge| (edge.clone(), terms(&edge.1))));
    let functions: BTreeSet<FunctionId> = edges.into_iter().flat_map(|(caller, callee)| [caller, callee]).collect();
    for (instance, function) in (1..).zip(functions) {
        let door = door(&Path::new(&folder).join(function.name.as_str()))?;
        hub.admit(InstanceId(instance), function, Door::Listening(door));
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    runtime.block_on(hub.stop());
    Ok(())
}

/// A callee whose name is `listens-` and a word wants events of that topic.
fn terms(callee: &FunctionId) -> Terms {
    let topic = callee.name.as_str().strip_prefix("listens-");
    Terms { topics: topic.map(str::to_owned).into_iter().collect(), ..Terms::default() }
}

fn read(edge: &str) -> Outcome<(FunctionId, FunctionId)> {
    let (caller, callee) = edge.split_once('>').ok_or("an edge is CALLER>CALLEE")?;
    Ok((caller.parse()?, callee.parse()?))
}

fn door(path: &Path) -> Outcome<OwnedFd> {
    let _ = std::fs::remove_file(path); // of a domain that was before
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, 16)?;
    Ok(socket)
}
