//! A domain without a node, for the tests of every SDK: `domain FOLDER CALLER>CALLEE…` makes a door `FOLDER/NAME` for each
//! function, says `ready` and goes on until its standard input ends.
//!
//! A process that is started with `NEARPATH_DISPATCH=FOLDER/NAME` is an instance of that function.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use nearpath_domain::node_side::{DomainHandle, DomainSettings, EndpointSocket};
use nearpath_domain::protocol::EdgeTerms;
use nearpath_types::{FunctionId, InstanceId};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let folder = words.next().ok_or("usage: domain FOLDER CALLER>CALLEE…")?;
    let edges: Vec<(FunctionId, FunctionId)> =
        words.map(|edge| read(&edge)).collect::<Outcome<_>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let (hub, _faults) =
        runtime.block_on(async { DomainHandle::start(DomainSettings::named("sdk")) })?;
    hub.declare_edges_with(edges.iter().map(|edge| (edge.clone(), terms(&edge.1))));
    let functions: BTreeSet<FunctionId> = edges
        .into_iter()
        .flat_map(|(caller, callee)| [caller, callee])
        .collect();
    for (instance, function) in (1..).zip(functions) {
        let door = EndpointSocket::listen_at(&Path::new(&folder).join(function.name.as_str()))?;
        hub.admit_instance(InstanceId(instance), function, door);
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    runtime.block_on(hub.stop());
    Ok(())
}

/// A callee whose name is `listens-` and a word wants events of that topic.
fn terms(callee: &FunctionId) -> EdgeTerms {
    let topic = callee.name.as_str().strip_prefix("listens-");
    EdgeTerms {
        topics: topic.map(str::to_owned).into_iter().collect(),
        ..EdgeTerms::default()
    }
}

fn read(edge: &str) -> Outcome<(FunctionId, FunctionId)> {
    let (caller, callee) = edge.split_once('>').ok_or("an edge is CALLER>CALLEE")?;
    Ok((caller.parse()?, callee.parse()?))
}
