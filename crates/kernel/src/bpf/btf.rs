//! Compares the layouts of Rust types with those of the C types that the BPF programs were compiled
//! with.
//!
//! The programs' BTF says how clang laid the C types out: Documentation/bpf/btf.rst of Linux, "BTF
//! Type and String Encoding". A difference would make a map's entries mean something else to the
//! kernel than to the node.

use object::{Object, ObjectSection};

/// `BTF_KIND_STRUCT`.
const KIND_STRUCT: u32 = 4;
/// Bytes of the part that each type begins with: name, kind and length, size or type.
const TYPE_HEADER_BYTES: usize = 12;

/// Layout of a C structure: its size, and the offset of each member in bytes, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StructLayout {
    pub size: usize,
    pub offsets: Vec<usize>,
}

/// The `.BTF` section of an object file.
struct BtfSection {
    types: Vec<u8>,
    names: Vec<u8>,
}

impl BtfSection {
    fn of_object(file: &[u8]) -> Self {
        let file = object::File::parse(file).expect("an ELF object");
        let section = file.section_by_name(".BTF").expect("clang -g writes BTF");
        let data = section.data().expect("the section is readable");
        // struct btf_header: magic, version, flags, hdr_len, then offset and length of types and of
        // strings.
        let word = |at: usize| read_u32(data, at) as usize;
        let part = |offset: usize, len: usize| data[word(4) + offset..][..len].to_vec();
        Self {
            types: part(word(8), word(12)),
            names: part(word(16), word(20)),
        }
    }

    fn struct_layout(&self, name: &str) -> StructLayout {
        let mut at = 0;
        while at < self.types.len() {
            let info = read_u32(&self.types, at + 4);
            // Bits 0 to 15 count the members, bits 24 to 28 tell the kind.
            let (members, kind) = ((info & 0xffff) as usize, info >> 24 & 0x1f);
            if kind == KIND_STRUCT && self.name_at(read_u32(&self.types, at)) == name {
                return self.layout_at(at, members);
            }
            at += TYPE_HEADER_BYTES + trailing_bytes(kind, members);
        }
        panic!("no struct {name} in the object's BTF");
    }

    fn layout_at(&self, at: usize, members: usize) -> StructLayout {
        // struct btf_member: name, type, offset in bits. None of ours is a bit field, so the offset
        // is a plain number.
        let offset = |member: usize| {
            read_u32(&self.types, at + TYPE_HEADER_BYTES + 12 * member + 8) as usize / 8
        };
        StructLayout {
            size: read_u32(&self.types, at + 8) as usize,
            offsets: (0..members).map(offset).collect(),
        }
    }

    fn name_at(&self, offset: u32) -> &str {
        let name = &self.names[offset as usize..];
        let end = name
            .iter()
            .position(|byte| *byte == 0)
            .expect("names end with a zero");
        std::str::from_utf8(&name[..end]).expect("names are text")
    }
}

/// Bytes that follow the header of a type of this kind.
fn trailing_bytes(kind: u32, members: usize) -> usize {
    match kind {
        1 | 14 | 17 => 4,                // INT, VAR, DECL_TAG
        3 => 12,                         // ARRAY
        KIND_STRUCT | 5 => 12 * members, // and UNION
        6 | 13 => 8 * members,           // ENUM, FUNC_PROTO
        15 | 19 => 12 * members,         // DATASEC, ENUM64
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        other => panic!("BTF kind {other} is unknown to this test"),
    }
}

fn read_u32(data: &[u8], at: usize) -> u32 {
    // Clang writes the byte order of the target, which is this machine.
    u32::from_ne_bytes(data[at..at + 4].try_into().expect("four bytes"))
}

/// Fails when `struct name` of a compiled program differs from the Rust type.
pub(super) fn assert_layout(program: std::io::Result<&[u8]>, name: &str, rust: StructLayout) {
    let Ok(file) = program else {
        nearpath_testkit::skip!("no BPF programs: clang is missing")
    };
    assert_eq!(
        BtfSection::of_object(file).struct_layout(name),
        rust,
        "struct {name}"
    );
}

/// The layout of a Rust type, of the members that are named.
macro_rules! layout {
    ($type:ty: $($member:ident),+) => {
        $crate::bpf::btf::StructLayout {
            size: size_of::<$type>(),
            offsets: vec![$(std::mem::offset_of!($type, $member)),+],
        }
    };
}
pub(super) use layout;

#[test]
fn a_layout_that_differs_is_found() {
    #[repr(C)]
    struct SwappedKey {
        channel: u64,
        sender: u32,
    }
    let Ok(file) = super::object::sk_msg() else {
        nearpath_testkit::skip!("no BPF programs: clang is missing")
    };
    assert_ne!(
        BtfSection::of_object(file).struct_layout("channel_key"),
        layout!(SwappedKey: channel, sender)
    );
}
