//! State stream of another node, in pieces of any size, its response to a ping, its directly callable
//! instances, and its requests for streams to functions.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_internode::peer_view::PeerView;
use nearpath_internode::protocol::{
    LineBuffer, MAX_FUNCTIONS, NodeIncarnation, PingResponse, StateFrame, parse_direct,
    parse_stream_query, stream_path,
};

fuzz_target!(|data: &[u8]| {
    let _ = serde_json::from_slice::<PingResponse>(data);
    let _ = parse_direct(data, &"b".parse().expect("a name"));
    check_stream_query(data);
    let Some((piece, stream)) = data.split_first() else {
        return;
    };
    let mut view = PeerView::new("b".parse().expect("a name"));
    let (mut lines, mut run) = (LineBuffer::default(), None);
    for bytes in stream.chunks(usize::from(*piece).max(1)) {
        lines.push(bytes);
        while let Ok(Some(line)) = lines.take_line() {
            if let Ok(frame) = StateFrame::parse(&line) {
                check_frame(&frame);
                check_view(&mut view, frame, &mut run);
            }
        }
    }
});

/// A request for a stream that is written is read as it was.
fn check_stream_query(data: &[u8]) {
    let query = std::str::from_utf8(data).ok();
    if let Some(request) = query.and_then(parse_stream_query) {
        let path = stream_path(&request);
        let (_, query) = path.split_once('?').expect("a query");
        assert_eq!(parse_stream_query(query), Some(request));
    }
}

/// A frame that is written is read as it was.
fn check_frame(frame: &StateFrame) {
    let line = frame.to_line();
    let (end, text) = line.split_last().expect("a line feed");
    assert!(*end == b'\n' && !text.contains(end));
    assert_eq!(StateFrame::parse(text).expect("a frame"), *frame);
}

/// A fault changes nothing, and a state that a reader sees is bounded and of one run.
fn check_view(view: &mut PeerView, frame: StateFrame, run: &mut Option<NodeIncarnation>) {
    let before = view.functions();
    let was_complete = view.is_complete();
    let applied = view.apply(frame);
    let functions = view.functions();
    assert!(functions.len() <= MAX_FUNCTIONS);
    assert!(view.is_complete() || functions.is_empty());
    if applied.is_err() {
        assert!(functions == before && view.is_complete() == was_complete);
    }
    let incarnation = view.hello().map(|hello| hello.incarnation);
    if std::mem::replace(run, incarnation) != incarnation {
        assert!(functions.is_empty(), "nothing of another run");
    }
}
