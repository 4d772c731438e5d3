//! What a peer of a job sends: heads of frames, values; and what its author writes: graphs and topologies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_dataflow::frame::{HEAD, Head, LONGEST};
use nearpath_dataflow::graph::Graph;
use nearpath_dataflow::topology::{Limits, Topology};
use nearpath_dataflow::value::{self, Reader};

fn frames(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<HEAD>() else { return };
    let Ok(read) = Head::read(head) else { return };
    assert!(read.length <= LONGEST);
    let payload = rest.get(..read.length).unwrap_or(rest);
    if let Ok(frame) = read.close(payload.to_vec().into()) {
        assert_eq!(frame.head()[..16], head[..16], "a frame that was read is written alike");
    }
}

fn values(data: &[u8]) {
    let mut reader = Reader::new(data);
    let mut written = Vec::new();
    while let Ok(token) = reader.token() {
        value::write(&mut written, token);
    }
    assert!(written.len() <= data.len(), "nothing is written longer than it came");
}

fn graphs(text: &str) {
    if let Ok(graph) = Graph::from_json(text)
        && let Ok(topology) = graph.expand(Limits { workers: 500, ..Limits::default() })
    {
        assert!(topology.check(Limits::default()).is_ok());
        let _ = (graph.dot(), graph.svg());
    }
    if let Ok(topology) = Topology::from_json(text) {
        let _ = topology.check(Limits::default());
    }
}

fuzz_target!(|data: &[u8]| {
    frames(data);
    values(data);
    if let Ok(text) = std::str::from_utf8(data) {
        graphs(text);
    }
});
