//! Input from a job's peer (frame heads, values) and from its author (graphs, topologies).
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_dataflow::frame::{FrameHeader, HEADER_BYTES, MAX_PAYLOAD_BYTES};
use nearpath_dataflow::graph::StageGraph;
use nearpath_dataflow::topology::{JobTopology, TopologyLimits};
use nearpath_dataflow::value::{self, ValueReader};

fn frames(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<HEADER_BYTES>() else {
        return;
    };
    let Ok(read) = FrameHeader::parse(head) else {
        return;
    };
    assert!(read.length <= MAX_PAYLOAD_BYTES);
    let payload = rest.get(..read.length).unwrap_or(rest);
    if let Ok(frame) = read.into_frame(payload.to_vec().into()) {
        assert_eq!(
            frame.encode_header()[..16],
            head[..16],
            "a frame that was read is written alike"
        );
    }
}

fn values(data: &[u8]) {
    let mut reader = ValueReader::new(data);
    let mut written = Vec::new();
    while let Ok(token) = reader.next_token() {
        value::write_token(&mut written, token);
    }
    assert!(
        written.len() <= data.len(),
        "nothing is written longer than it came"
    );
}

fn graphs(text: &str) {
    if let Ok(graph) = StageGraph::from_json(text)
        && let Ok(topology) = graph.expand(TopologyLimits {
            workers: 500,
            ..TopologyLimits::default()
        })
    {
        assert!(topology.check_with(TopologyLimits::default()).is_ok());
        let _ = (graph.to_dot(), graph.to_svg());
    }
    if let Ok(topology) = JobTopology::from_json(text) {
        let _ = topology.check_with(TopologyLimits::default());
    }
}

fuzz_target!(|data: &[u8]| {
    frames(data);
    values(data);
    if let Ok(text) = std::str::from_utf8(data) {
        graphs(text);
    }
});
