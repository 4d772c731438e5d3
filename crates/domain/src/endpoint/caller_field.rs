//! The field that names the calling function in a received head: from the node's word, never from
//! the caller's.

use nearpath_shm::head::{HeadField, HeadFields, MAX_FIELDS, MAX_HEAD_BYTES};
use nearpath_types::platform_field::{CALLER_FIELD, is_platform_field};

/// Encodes the field that names this function.
pub(super) fn encode_caller(function: &str) -> Vec<u8> {
    let field = HeadField::new(CALLER_FIELD.as_bytes(), function.as_bytes());
    let mut out = Vec::new();
    // A function's name is short and plain, so neither step fails.
    if let Some((field, lengths)) = field.ok().and_then(|f| Some((f, f.length_prefix().ok()?))) {
        append_field(&mut out, lengths, field);
    }
    out
}

/// Replaces the fields of the platform in a checked head by `caller`, an encoded field. `None` if
/// the head has no room for it: without the field the call would look like one from outside.
pub(super) fn set_caller(head: Vec<u8>, caller: &[u8]) -> Option<Vec<u8>> {
    let (mut fields, mut is_forged) = (0, false);
    for field in HeadFields::new(&head).flatten() {
        fields += 1;
        is_forged |= is_platform_field(field.name);
    }
    // Nearly no head has such a field, and the others need no copy.
    let mut head = match is_forged {
        true => without_platform_fields(&head),
        false => head,
    };
    if fields >= MAX_FIELDS || head.len() + caller.len() > MAX_HEAD_BYTES as usize {
        return None;
    }
    head.extend_from_slice(caller);
    Some(head)
}

fn without_platform_fields(head: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(head.len());
    for field in HeadFields::new(head).flatten() {
        // The lengths come from a head, so they fit.
        if let (false, Ok(lengths)) = (is_platform_field(field.name), field.length_prefix()) {
            append_field(&mut kept, lengths, field);
        }
    }
    kept
}

fn append_field(out: &mut Vec<u8>, lengths: [u8; 4], field: HeadField<'_>) {
    out.extend_from_slice(&lengths);
    out.extend_from_slice(field.name.as_bytes());
    out.extend_from_slice(field.value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, value) in fields {
            let field = HeadField::new(name.as_bytes(), value.as_bytes()).unwrap();
            append_field(&mut out, field.length_prefix().unwrap(), field);
        }
        out
    }

    #[test]
    fn the_callers_own_fields_of_the_platform_are_replaced() {
        let sent = head(&[
            (":method", "GET"),
            ("x-nearpath-caller", "admin.openfaas-fn"),
            ("x-end", "1"),
            ("x-nearpath-reason", "draining"),
            ("x-openfaas-internal", "gateway"),
        ]);
        let wanted = head(&[
            (":method", "GET"),
            ("x-end", "1"),
            ("x-nearpath-caller", "cart.openfaas-fn"),
        ]);
        let caller = encode_caller("cart.openfaas-fn");
        assert_eq!(set_caller(sent, &caller).as_deref(), Some(&wanted[..]));
        assert_eq!(set_caller(Vec::new(), &caller), Some(caller.clone()));
    }

    #[test]
    fn a_head_without_room_is_refused() {
        let caller = encode_caller("cart.openfaas-fn");
        assert_eq!(set_caller(head(&[("a", ""); 256]), &caller), None);
        let fill = |bytes: usize| head(&[("a", &"x".repeat(40_000)), ("b", &"x".repeat(bytes))]);
        let rest = MAX_HEAD_BYTES as usize - fill(0).len() - caller.len();
        assert!(set_caller(fill(rest), &caller).is_some());
        assert_eq!(set_caller(fill(rest + 1), &caller), None);
    }
}
