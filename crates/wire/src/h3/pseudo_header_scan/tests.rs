use http::header::HOST;
use proptest::prelude::*;

use super::*;
use crate::h3::pseudo_header_scan::h3_reader::read_by_h3;

const GET: &[u8] = &[0x80 | 0x40 | 17];
const PATH: &[u8] = &[0x80 | 0x40 | 1];
const HTTPS: &[u8] = &[0x80 | 0x40 | 23];
const ORIGIN: &[u8] = b"\x50\x03abc"; // :authority by its index, with a literal value
const PLAIN_PATH: &[u8] = b"\x25:path\x02/b";
const HUFFMAN_PATH: &[u8] = b"\x2c\xb9\x58\xd3\x3f\x02/b";
const STATUS: &[u8] = &[0x80 | 0x40 | 25];
const FIELD: &[u8] = b"\x21x\x01y";

/// Returns the frames of a request with these lines in its head and its trailers.
fn frames(head: &[&[u8]], trailers: Option<&[&[u8]]>) -> Vec<u8> {
    let mut all = vec![0x21, 2, 0, 0]; // an unknown frame, which is allowed before the head
    for lines in [Some(head), trailers].into_iter().flatten() {
        let section = [&[0, 0], lines.concat().as_slice()].concat();
        all.extend([1, 0x40, section.len() as u8]); // a length of two bytes
        all.extend(section);
        all.extend(b"\0\x03abc"); // DATA
    }
    all
}

/// Returns the faults of head and trailers, however the bytes are cut.
fn scan(head: &[&[u8]], trailers: Option<&[&[u8]]>) -> (bool, bool) {
    let bytes = frames(head, trailers);
    let results = [1, 2, 3, 7, bytes.len()].map(|size| {
        let mut scan = PseudoHeaderScan::default();
        bytes.chunks(size).for_each(|piece| scan.read(piece));
        (scan.faults.in_head(), scan.faults.in_trailers())
    });
    assert!(results.iter().all(|result| *result == results[0]));
    results[0]
}

#[test]
fn pseudo_headers_come_first_and_once() {
    let good: &[&[u8]] = &[GET, HTTPS, ORIGIN, PATH, FIELD, FIELD];
    assert_eq!(scan(good, None), (false, false));
    assert_eq!(
        scan(&[GET, HTTPS, ORIGIN, HUFFMAN_PATH, FIELD], None),
        (false, false)
    );
    assert_eq!(scan(good, Some(&[FIELD])), (false, false));
    let repeated: [&[&[u8]]; 4] = [
        &[GET, PATH, PATH],
        &[GET, PATH, PLAIN_PATH],
        &[GET, PLAIN_PATH, HUFFMAN_PATH],
        &[GET, GET, PATH],
    ];
    for head in repeated {
        assert_eq!(scan(head, None), (true, false), "{head:?}");
    }
    assert_eq!(scan(&[GET, PATH, FIELD, HTTPS], None), (true, false));
    assert_eq!(scan(&[GET, PATH, HTTPS, STATUS], None), (true, false));
}

#[test]
fn trailers_have_none() {
    for line in [PATH, PLAIN_PATH, HUFFMAN_PATH, STATUS] {
        let found = scan(&[GET, PATH], Some(&[FIELD, line]));
        assert_eq!(found, (false, true), "{line:?}");
    }
}

/// `h3` reads all of these: the scan must not end before they do.
#[test]
fn a_section_in_an_unusual_form_is_read_to_its_end() {
    let lines = [GET, HTTPS, ORIGIN, PATH, FIELD, PLAIN_PATH].concat();
    let overlong_zeros: Vec<u8> = std::iter::repeat_n(0x80, 8).chain([0]).collect();
    for prefix in [
        [&[0, 0x7f], overlong_zeros.as_slice()].concat(),
        [&[0xff], overlong_zeros.as_slice(), &[0]].concat(),
    ] {
        let section = [prefix, lines.clone()].concat();
        let request = read_by_h3(&section).expect("h3 reads it");
        assert_eq!(request.uri().path(), "/b", "of the last of two paths");
        assert!(!is_valid_head(&section));
        assert!(!is_valid_trailers(&section));
    }
}

#[test]
fn a_padded_name_is_malformed() {
    let padded_path = b"\x2d\xb9\x58\xd3\x3f\xff\x02/b";
    let section = [&[0, 0], GET, HTTPS, ORIGIN, FIELD, padded_path].concat();
    assert_eq!(read_by_h3(&section).unwrap().uri().path(), "/b");
    assert!(!is_valid_head(&section));
    let trailers = [&[0, 0], FIELD, padded_path].concat();
    assert!(!is_valid_trailers(&trailers));
}

#[test]
fn sections_that_cannot_be_read_are_malformed() {
    for rest in [
        &b"\x21x\x7f"[..],                               // a value without its end
        b"\x10",                                         // the dynamic table
        b"\x80",                                         // the dynamic table
        b"\x25:othe\x01y",                               // an unknown pseudo-header field
        b"\xff\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", // more than 64 bits
    ] {
        let head = [&[0, 0], GET, HTTPS, ORIGIN, PATH, rest].concat();
        assert!(!is_valid_head(&head), "{rest:?}");
        assert!(!is_valid_trailers(&[&[0, 0], rest].concat()), "{rest:?}");
    }
    assert!(!is_valid_head(&[]) && !is_valid_trailers(&[0]));
}

#[test]
fn a_stream_that_ends_inside_a_frame_is_noticed() {
    for (bytes, is_cut) in [
        (&b"\x00\x03abc"[..], false),
        (b"\x00\x03ab", true),
        (b"\x00", true),
        (b"\x00\x00", false),
        (b"", false),
    ] {
        let mut scan = PseudoHeaderScan::default();
        scan.read(bytes);
        scan.end_stream();
        assert_eq!(scan.faults.in_last_frame(), is_cut, "{bytes:?}");
    }
}

/// Returns a string with its length, as text or with bytes that stand for a code.
fn string_of(flags: u8, bits: u32, bytes: &[u8]) -> Vec<u8> {
    let max = u8::MAX >> (8 - bits);
    let length = u8::try_from(bytes.len()).unwrap();
    let mut all = match length < max {
        true => vec![flags | length],
        false => vec![flags | max, length - max],
    };
    all.extend(bytes);
    all
}

fn any_name() -> impl Strategy<Value = Vec<u8>> {
    const HUFFMAN: u8 = 0x08;
    let code = (0..LITERAL_NAMES.len(), 0usize..3).prop_map(|(number, padding)| {
        let padded = [LITERAL_NAMES[number].2, &[0xff; 2][..padding]].concat();
        string_of(0x20 | HUFFMAN, 3, &padded)
    });
    let text =
        (0..LITERAL_NAMES.len()).prop_map(|number| string_of(0x20, 3, LITERAL_NAMES[number].1));
    let field = prop_oneof![
        "[a-z-]{1,9}",
        Just("host".to_owned()),
        Just(":x".to_owned())
    ];
    prop_oneof![
        code,
        text,
        field.prop_map(|name| string_of(0x20, 3, name.as_bytes())),
        // Any name in Huffman's code.
        prop::collection::vec(any::<u8>(), 0..6).prop_map(|code| string_of(
            0x20 | HUFFMAN,
            3,
            &code
        )),
    ]
}

fn any_line() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        Just(b"/a".to_vec()),
        Just(b"abc".to_vec()),
        Just(b"https".to_vec()),
        prop::collection::vec(any::<u8>(), 0..6),
    ];
    let literal = (any_name(), value.clone());
    let indexed_name = (0u8..15, value);
    prop_oneof![
        (0u8..63).prop_map(|index| vec![0xc0 | index]),
        (0u8..64).prop_map(|rest| vec![0xff, rest]),
        literal.prop_map(|(name, value)| [name, string_of(0, 7, &value)].concat()),
        indexed_name
            .prop_map(|(index, value)| [vec![0x50 | index], string_of(0, 7, &value)].concat()),
    ]
}

fn any_prefix() -> impl Strategy<Value = Vec<u8>> {
    let overlong = |zeros: usize| [vec![0x80; zeros], vec![0]].concat();
    prop_oneof![
        Just(vec![0, 0]),
        (0usize..11).prop_map(move |zeros| [vec![0, 0x7f], overlong(zeros)].concat()),
        (0usize..11).prop_map(move |zeros| [vec![0xff], overlong(zeros), vec![0]].concat()),
    ]
}

prop_compose! {
    /// A head that is nearly a request's.
    fn any_section()(
        prefix in any_prefix(),
        lines in prop::collection::vec(any_line(), 0..4),
        position in 0usize..5,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
    ) -> Vec<u8> {
        let request = [GET, HTTPS, ORIGIN, PATH];
        let (before, after) = request.split_at(position);
        let mut section = [prefix, before.concat(), lines.concat(), after.concat()].concat();
        for (index, byte) in changes {
            let at = index.index(section.len());
            section[at] = byte;
        }
        section
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]
    #[test]
    fn any_bytes_are_read_to_their_end(bytes: Vec<u8>) {
        PseudoHeaderScan::default().read(&bytes);
        prop_assert!(!field_names(&bytes).is_ok_and(|names| names.count() > bytes.len()));
    }

    #[test]
    fn the_scan_refuses_a_head_or_reads_it_as_h3_does(section in any_section()) {
        let Some(request) = read_by_h3(&section).filter(|_| is_valid_head(&section)) else {
            return Ok(());
        };
        let names: Vec<_> = field_names(&section).unwrap().map(Result::unwrap).collect();
        let fields = names.iter().filter(|name| name.is_none()).count();
        prop_assert_eq!(fields, request.headers().len());
        let (uri, has) = (request.uri(), |name| names.contains(&Some(name)));
        prop_assert!(has(pseudo::METHOD) && !has(pseudo::STATUS));
        prop_assert_eq!(has(pseudo::PATH), uri.path_and_query().is_some());
        prop_assert_eq!(has(pseudo::SCHEME), uri.scheme().is_some());
        prop_assert!(has(pseudo::AUTHORITY) || request.headers().contains_key(HOST));
        let protocol = request.extensions().get::<h3::ext::Protocol>();
        prop_assert_eq!(has(pseudo::PROTOCOL), protocol.is_some());
    }
}
