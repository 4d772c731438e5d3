//! Bytes that an instance writes: notes about its start, and logs. Whatever the pieces in which
//! they come, the lines are the same, nothing is lost, and no control character reaches a reader of
//! the node's own texts.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use nearpath_node::instance::notes::{InstanceNote, parse_line};
use nearpath_node::logs::line_splitter::LineSplitter;
use nearpath_watchdog::fuzz::line;

fn as_notes(text: &str) {
    for note in text.lines().filter_map(parse_line) {
        match note {
            InstanceNote::Failed(text) | InstanceNote::Remark(text) => {
                assert!(!text.contains(char::is_control), "{text:?}")
            }
            InstanceNote::Phase(phase) => assert!(
                phase
                    .name
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b == b'_')
            ),
            InstanceNote::Server(server) => {
                assert!(server.addr.ip().is_loopback());
                let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'?' && byte != b'#';
                assert!(server.base_path.bytes().all(is_plain), "{server:?}");
            }
            InstanceNote::Ready | InstanceNote::OomKill => {}
        }
    }
}

/// The node's cutter.
fn as_logs<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let (mut lines, mut all) = (LineSplitter::default(), Vec::new());
    pieces.for_each(|piece| lines.push_bytes(piece, |line| all.push(line)));
    all.extend(lines.finish_line());
    all
}

/// The watchdog's cutter.
fn as_output(bytes: &[u8], longest: Option<usize>) {
    let mut held = BytesMut::from(bytes);
    let mut cut = Vec::new();
    while let Some(piece) = line(&mut held, longest, true) {
        assert!(!piece.is_empty() && longest.is_none_or(|longest| piece.len() <= longest));
        cut.extend_from_slice(&piece);
    }
    assert_eq!(cut, bytes);
}

fuzz_target!(|data: &[u8]| {
    let Some((size, data)) = data.split_first() else {
        return;
    };
    let size = usize::from(*size) + 1;
    as_notes(&String::from_utf8_lossy(data));
    assert_eq!(as_logs(data.chunks(size)), as_logs(std::iter::once(data)));
    as_output(data, Some(size));
    as_output(data, None);
});
