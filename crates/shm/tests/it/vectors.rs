//! `contract/vectors/memory.json` is what this crate says it is, to the byte; other languages read
//! the same file.
//!
//! The cases are chosen here, with what must become of them; bytes come from the crate.
//! `NEARPATH_WRITE_VECTORS=1` writes the file anew: look at the difference before committing it,
//! since it is a change of the contract.

use std::fmt::{Debug, Write};
use std::path::Path;

use nearpath_shm::channel;
use nearpath_shm::counters;
use nearpath_shm::envelope::{TOTAL_UNKNOWN, flag};
use nearpath_shm::geometry::{ClassSpec, PoolGeometry};
use nearpath_shm::head::{HeadField, HeadFields};
use nearpath_shm::lease_word::{EndpointId, LeaseTransition, LeaseWord};
use nearpath_shm::ring::{Ring, RingConsumer, RingProducer};
use nearpath_shm::{Descriptor, Envelope, MessageKind, SlotId};
use serde_json::{Value, json};

fn hex_bytes(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to memory");
        text
    })
}

fn hex_u64(number: u64) -> String {
    format!("{number:016x}")
}

/// `NoSuchSlot` as `no_such_slot`.
fn snake_case_name(fault: impl Debug) -> String {
    let name = format!("{fault:?}");
    let humps = name.chars().enumerate().flat_map(|(k, c)| {
        let gap = (k > 0 && c.is_uppercase()).then_some('_');
        gap.into_iter().chain(c.to_lowercase())
    });
    humps.collect()
}

fn endpoint_id(number: u16) -> EndpointId {
    EndpointId::new(number).unwrap()
}

fn example_pool() -> PoolGeometry {
    let sizes = [(64, 100), (1024, 16), (16_384, 3), (1 << 20, 1)];
    PoolGeometry::new(&sizes.map(|(size, count)| ClassSpec { size, count })).unwrap()
}

fn pool_cases() -> Value {
    let odd = PoolGeometry::new(&[ClassSpec { size: 64, count: 1 }]).unwrap();
    let describe = |geometry: &PoolGeometry| {
        let class = |class: &nearpath_shm::geometry::SizeClass| json!({ "size": class.size, "count": class.count, "words": class.words_offset, "hints": class.hints_offset, "slots": class.slots_offset });
        let classes: Vec<Value> = geometry.classes().iter().map(class).collect();
        json!({ "header": hex_bytes(&geometry.to_bytes()), "bytes": geometry.total_bytes(), "classes": classes })
    };
    json!([describe(&example_pool()), describe(&odd)])
}

fn bad_pool_cases() -> Value {
    let good = example_pool();
    let bad = |at: usize, bytes: &[u8], region: u64, fault: &str| {
        let mut header = good.to_bytes();
        header[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(
            snake_case_name(PoolGeometry::from_bytes(&header, region).unwrap_err()),
            fault
        );
        json!({ "header": hex_bytes(&header), "region": region, "fault": fault })
    };
    let whole = good.total_bytes();
    json!([
        bad(0, b"NPPOOL02", whole, "magic"),
        bad(8, &0u32.to_le_bytes(), whole, "classes"),
        bad(8, &16u32.to_le_bytes(), whole, "classes"),
        bad(32, &65u32.to_le_bytes(), whole, "classes"),
        bad(32, &1024u32.to_le_bytes(), whole, "classes"),
        bad(36, &0u32.to_le_bytes(), whole, "classes"),
        bad(36, &300u32.to_le_bytes(), whole, "layout"),
        bad(12, &1u32.to_le_bytes(), whole, "layout"),
        bad(40, &4160u64.to_le_bytes(), whole, "layout"),
        bad(16, &u64::MAX.to_le_bytes(), whole, "layout"),
        bad(0, b"NPPOOL01", whole - 4096, "region"),
    ])
}

fn descriptor_cases() -> Value {
    let pool = example_pool();
    let case = |slot: SlotId, generation: u32, offset: u32, length: u32, fault: Option<&str>| {
        let descriptor = Descriptor {
            slot,
            generation,
            offset,
            length,
        };
        let got = descriptor
            .check_bounds(pool.slot_size(slot))
            .err()
            .map(snake_case_name);
        assert_eq!(got.as_deref(), fault, "{descriptor:?}");
        json!({
            "bytes": hex_bytes(&descriptor.to_bytes()), "class": slot.class(), "index": slot.index(), "generation": generation,
            "offset": offset, "length": length, "at": pool.slot_offset(slot), "fault": fault,
        })
    };
    json!([
        case(SlotId::new(0, 0), 1, 0, 64, None),
        case(SlotId::new(0, 99), u32::MAX, 0, 64, None),
        case(SlotId::new(1, 15), 0x0102_0304, 8, 1016, None),
        case(SlotId::new(3, 0), 7, 0, 1 << 20, None),
        case(SlotId::new(3, 0), 7, (1 << 20) - 64, 64, None),
        case(SlotId::new(0, 100), 1, 0, 64, Some("no_such_slot")),
        case(SlotId::new(4, 0), 1, 0, 64, Some("no_such_slot")),
        case(SlotId(u32::MAX), 1, 0, 64, Some("no_such_slot")),
        case(SlotId::new(0, 0), 0, 0, 64, Some("generation")),
        case(SlotId::new(1, 0), 1, 4, 64, Some("unaligned")),
        case(SlotId::new(1, 0), 1, 0, 63, Some("too_short")),
        case(SlotId::new(1, 0), 1, 0, 1025, Some("too_long")),
        case(SlotId::new(1, 0), 1, 968, 64, Some("too_long")),
        case(SlotId::new(1, 0), 1, u32::MAX - 7, 64, Some("too_long")),
        case(SlotId::new(1, 0), 1, 64, u32::MAX, Some("too_long")),
    ])
}

#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
fn lease_word_cases() -> Value {
    let [p, q, r] = [1, 2, u16::MAX].map(endpoint_id);
    let step = |step: LeaseTransition| match step {
        LeaseTransition::Claim { by } => json!({ "name": "claim", "by": by }),
        LeaseTransition::Offer { by, to } => json!({ "name": "offer", "by": by, "to": to }),
        LeaseTransition::Accept { from, by } => json!({ "name": "accept", "from": from, "by": by }),
        LeaseTransition::TakeBack { by, to } => json!({ "name": "take_back", "by": by, "to": to }),
        LeaseTransition::Release { by } => json!({ "name": "release", "by": by }),
        LeaseTransition::Reclaim => json!({ "name": "reclaim" }),
    };
    let case = |before: LeaseWord, act: LeaseTransition, after: Option<LeaseWord>| {
        assert_eq!(before.apply_transition(act), after, "{before:?} {act:?}");
        json!({ "before": hex_u64(before.0), "step": step(act), "after": after.map(|word| hex_u64(word.0)) })
    };
    json!([
        case(
            LeaseWord::free(0),
            LeaseTransition::Claim { by: p },
            Some(LeaseWord::held(1, p))
        ),
        case(
            LeaseWord::free(u32::MAX),
            LeaseTransition::Claim { by: r },
            Some(LeaseWord::held(1, r))
        ),
        case(
            LeaseWord::held(5, p),
            LeaseTransition::Claim { by: q },
            None
        ),
        case(
            LeaseWord::offered(5, p, q),
            LeaseTransition::Claim { by: q },
            None
        ),
        case(
            LeaseWord(5 << 32 | 1 << 16),
            LeaseTransition::Claim { by: q },
            None
        ),
        case(
            LeaseWord::held(5, p),
            LeaseTransition::Offer { by: p, to: q },
            Some(LeaseWord::offered(5, p, q))
        ),
        case(
            LeaseWord::held(5, p),
            LeaseTransition::Offer { by: p, to: p },
            Some(LeaseWord::offered(5, p, p))
        ),
        case(
            LeaseWord::held(5, p),
            LeaseTransition::Offer { by: q, to: p },
            None
        ),
        case(
            LeaseWord::offered(5, p, q),
            LeaseTransition::Offer { by: p, to: r },
            None
        ),
        case(
            LeaseWord::offered(5, p, q),
            LeaseTransition::Accept { from: p, by: q },
            Some(LeaseWord::held(5, q))
        ),
        case(
            LeaseWord::offered(5, p, q),
            LeaseTransition::Accept { from: p, by: r },
            None
        ),
        case(
            LeaseWord::offered(5, r, q),
            LeaseTransition::Accept { from: p, by: q },
            None
        ),
        case(
            LeaseWord::held(5, p),
            LeaseTransition::Accept { from: p, by: q },
            None
        ),
        case(
            LeaseWord::offered(5, p, q),
            LeaseTransition::TakeBack { by: p, to: q },
            Some(LeaseWord::held(5, p))
        ),
        case(
            LeaseWord::held(5, q),
            LeaseTransition::TakeBack { by: p, to: q },
            None
        ),
        case(
            LeaseWord::held(5, q),
            LeaseTransition::Release { by: q },
            Some(LeaseWord::free(5))
        ),
        case(
            LeaseWord::held(5, q),
            LeaseTransition::Release { by: p },
            None
        ),
        case(
            LeaseWord::offered(5, p, q),
            LeaseTransition::Release { by: p },
            None
        ),
        case(LeaseWord::free(5), LeaseTransition::Release { by: p }, None),
        case(
            LeaseWord::offered(5, p, q),
            LeaseTransition::Reclaim,
            Some(LeaseWord::free(5))
        ),
        case(
            LeaseWord::held(5, p),
            LeaseTransition::Reclaim,
            Some(LeaseWord::free(5))
        ),
    ])
}

#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
fn envelope_cases() -> Value {
    let base = Envelope::new(MessageKind::Call, 1);
    let full = Envelope {
        kind: MessageKind::Answer,
        flags: flag::MORE | flag::PLATFORM,
        status: 503,
        reason: 12,
        call: 0x0102_0304_0506_0708,
        deadline: 1 << 40,
        trace: *b"0123456789abcdef",
        span: *b"ABCDEFGH",
        head: 13,
        body: 100,
        total: TOTAL_UNKNOWN,
    };
    let describe = |e: &Envelope| {
        json!({
            "kind": e.kind as u8, "flags": e.flags, "status": e.status, "reason": e.reason, "call": hex_u64(e.call),
            "deadline": hex_u64(e.deadline), "trace": hex_bytes(&e.trace), "span": hex_bytes(&e.span), "head": e.head, "body": e.body,
            "total": hex_u64(e.total), "body_at": e.body_offset(),
        })
    };
    let good = |envelope: Envelope, length: u32| {
        assert_eq!(
            Envelope::from_bytes(&envelope.to_bytes(), length),
            Ok(envelope)
        );
        json!({ "bytes": hex_bytes(&envelope.to_bytes()), "length": length, "fields": describe(&envelope), "fault": null })
    };
    let bad = |envelope: Envelope, change: Option<(usize, u8)>, length: u32, fault: &str| {
        let mut bytes = envelope.to_bytes();
        change.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        assert_eq!(
            snake_case_name(Envelope::from_bytes(&bytes, length).unwrap_err()),
            fault
        );
        json!({ "bytes": hex_bytes(&bytes), "length": length, "fields": null, "fault": fault })
    };
    let wrap = Envelope {
        body: u32::MAX - 60,
        total: TOTAL_UNKNOWN,
        ..base
    };
    json!([
        good(base, 64),
        good(full, 180),
        good(
            Envelope {
                flags: 0x8000,
                ..base
            },
            64
        ),
        good(
            Envelope {
                kind: MessageKind::Part,
                body: 8,
                total: 8,
                ..base
            },
            1 << 20
        ),
        bad(base, Some((0, 2)), 64, "version"),
        bad(base, Some((1, 0)), 64, "kind"),
        bad(base, Some((1, 7)), 64, "kind"),
        bad(full, None, 179, "length"),
        bad(Envelope { head: 1, ..base }, None, 71, "length"),
        bad(
            Envelope {
                head: 65_537,
                ..base
            },
            None,
            1 << 20,
            "length"
        ),
        bad(
            Envelope {
                head: u32::MAX - 3,
                ..base
            },
            None,
            64,
            "length"
        ),
        bad(wrap, None, 64, "length"),
        bad(
            Envelope {
                body: 9,
                total: 8,
                ..base
            },
            None,
            100,
            "total"
        ),
    ])
}

fn head_cases() -> Value {
    let write = |fields: &[(&str, &[u8])]| {
        fields.iter().fold(Vec::new(), |mut out, (name, value)| {
            let field = HeadField::new(name.as_bytes(), value).unwrap();
            out.extend_from_slice(&field.length_prefix().unwrap());
            out.extend_from_slice(field.name.as_bytes());
            out.extend_from_slice(field.value);
            out
        })
    };
    let good = |fields: &[(&str, &[u8])]| {
        let bytes = write(fields);
        let read: Vec<Value> = HeadFields::new(&bytes)
            .map(|field| field.map(|f| json!([f.name, hex_bytes(f.value)])).unwrap())
            .collect();
        json!({ "bytes": hex_bytes(&bytes), "fields": read, "fault": null })
    };
    let bad = |bytes: &[u8], fault: &str| {
        assert_eq!(
            snake_case_name(HeadFields::new(bytes).check_all().unwrap_err()),
            fault
        );
        json!({ "bytes": hex_bytes(bytes), "fields": null, "fault": fault })
    };
    let many: Vec<(&str, &[u8])> = vec![("a", b""); 257];
    json!([
        good(&[]),
        good(&[
            (":method", b"POST"),
            (":path", b"/a b?c"),
            ("content-type", b"text/plain"),
            ("x-empty", b"")
        ]),
        good(&[("x-bytes", &[1, 9, 127, 255]), ("x-bytes", b"twice")]),
        bad(&[1, 0, 0], "truncated"),
        bad(&[1, 0, 0, 0], "truncated"),
        bad(&[1, 0, 2, 0, b'a', b'b'], "truncated"),
        bad(&[0, 0, 0, 0], "name"),
        bad(&[1, 0, 0, 0, b'A'], "name"),
        bad(&[1, 0, 0, 0, b' '], "name"),
        bad(&[1, 0, 0, 0, 0xc3], "name"),
        bad(&[1, 0, 1, 0, b'a', b'\r'], "value"),
        bad(&[1, 0, 1, 0, b'a', 0], "value"),
        bad(&write(&many), "too_many"),
    ])
}

/// Reads the other side's index: how many entries each side may push or pop, or that the ring is
/// broken.
fn ring_cases() -> Value {
    let case = |capacity: u32, tail: u32, head: u32, room: Option<u32>| {
        let producer = RingProducer::new(Ring::in_memory(capacity as usize, head), tail)
            .free_entries()
            .ok();
        let mut consumer = RingConsumer::new(Ring::in_memory(capacity as usize, tail), head);
        let pops = std::iter::repeat_with(|| consumer.pop_descriptor())
            .take_while(|popped| matches!(popped, Ok(Some(_))))
            .count();
        assert_eq!(producer, room);
        assert_eq!(pops as u32, room.map_or(0, |room| capacity - room));
        assert_eq!(consumer.pop_descriptor().is_err(), room.is_none());
        let next = |index: u32| 192 + 16 * (index % capacity);
        json!({
            "capacity": capacity, "tail": tail, "head": head, "room": room, "used": room.map(|room| capacity - room),
            "next_push_at": next(tail), "next_pop_at": next(head),
        })
    };
    json!([
        case(16, 0, 0, Some(16)),
        case(16, 16, 0, Some(0)),
        case(16, 17, 0, None),
        case(16, 0, 1, None),
        case(64, 3, u32::MAX - 2, Some(58)),
        case(64, 61, u32::MAX - 2, Some(0)),
        case(64, 62, u32::MAX - 2, None),
        case(4096, 1 << 31, (1 << 31) - 4096, Some(0)),
    ])
}

fn all_vectors() -> Value {
    let channel = |capacity| json!({ "capacity": capacity, "answers": channel::answer_ring_offset(capacity), "bytes": channel::channel_bytes(capacity) });
    let bucket = |micros: u64| json!({ "micros": micros, "bucket": counters::latency_bucket(std::time::Duration::from_micros(micros)) });
    let channels = [16, 64, 4096].map(channel);
    let latency = [0, 3, 4, 15, 16, 262_143, 262_144, 1 << 40].map(bucket);
    json!({
        "about": "Examples for contract/memory.md. Bytes and 64-bit numbers are in hexadecimal: bytes in order, numbers most significant digit first. `fault` is null where all is well. Descriptors belong to the first pool.",
        "pools": pool_cases(),
        "bad_pools": bad_pool_cases(),
        "descriptors": descriptor_cases(),
        "words": lease_word_cases(),
        "envelopes": envelope_cases(),
        "heads": head_cases(),
        "rings": ring_cases(),
        "channels": channels,
        "latency": latency,
    })
}

#[test]
fn the_vector_file_matches_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contract/vectors/memory.json");
    let mut text = serde_json::to_string_pretty(&all_vectors()).unwrap();
    text.push('\n');
    if std::env::var_os("NEARPATH_WRITE_VECTORS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(
        file == text,
        "{} differs: see the top of this test",
        path.display()
    );
}
