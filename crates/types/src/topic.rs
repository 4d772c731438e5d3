//! MQTT topics and the filters that select them (MQTT 5.0 section 4.7; 3.1.1 has the same). Pure
//! functions over text.

/// Maximum bytes of a topic or filter: a string's length is two bytes on the wire (MQTT 5.0 section
/// 1.5.4).
pub const MAX_TOPIC_BYTES: usize = u16::MAX as usize;

/// Maximum bytes of an event's body between nodes. A call carries more.
pub const MAX_REMOTE_EVENT_BYTES: usize = 256 * 1024;

/// Error of an invalid filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid topic filter {0:?}: `+` and `#` stand alone between slashes, and `#` comes last")]
pub struct InvalidTopicFilter(pub String);

/// Checks a topic filter.
///
/// # Errors
/// When it is empty, too long, or has a wildcard in a wrong place.
pub fn check_filter(filter: &str) -> Result<(), InvalidTopicFilter> {
    let mut levels = filter.split('/').peekable();
    // No string of MQTT may contain NUL (section 1.5.4).
    let mut is_valid =
        !filter.is_empty() && filter.len() <= MAX_TOPIC_BYTES && !filter.contains('\0');
    while let Some(level) = levels.next() {
        is_valid &= match level {
            "+" => true,
            // `#` covers all further levels, so nothing can follow it.
            "#" => levels.peek().is_none(),
            other => !other.contains(['+', '#']),
        };
    }
    if is_valid {
        Ok(())
    } else {
        Err(InvalidTopicFilter(filter.to_owned()))
    }
}

/// Returns whether a text can be published to: no wildcards.
pub fn is_topic(topic: &str) -> bool {
    !topic.is_empty() && topic.len() <= MAX_TOPIC_BYTES && !topic.contains(['+', '#', '\0'])
}

/// Returns whether a filter selects a topic. Wildcards in front do not select topics that begin
/// with `$`.
pub fn filter_matches(filter: &str, topic: &str) -> bool {
    // Topics with `$` belong to the server (section 4.7.2).
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        match (wanted, levels.next()) {
            // Before the topic's end is checked: `sport/#` selects `sport`, too (section 4.7.1.2).
            ("#", _) => return true,
            ("+", Some(_)) => {}
            (wanted, Some(level)) if wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

/// Returns whether a topic can exist that both filters select.
pub fn filters_overlap(one: &str, other: &str) -> bool {
    let (mut these, mut those) = (one.split('/'), other.split('/'));
    loop {
        match (these.next(), those.next()) {
            // `#` covers whatever the other filter still has.
            (None, None) | (Some("#"), _) | (_, Some("#")) => return true,
            (Some(a), Some(b)) if a == b || a == "+" || b == "+" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_standards_own_examples() {
        for (filter, topic, selected) in [
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            (
                "sport/tennis/player1/#",
                "sport/tennis/player1/score/wimbledon",
                true,
            ),
            ("sport/#", "sport", true),
            ("sport/tennis/+", "sport/tennis/player1", true),
            ("sport/tennis/+", "sport/tennis/player1/ranking", false),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("#", "$SYS/uptime", false),
            ("+/uptime", "$SYS/uptime", false),
            ("$SYS/#", "$SYS/uptime", true),
            ("a", "A", false),
        ] {
            assert_eq!(filter_matches(filter, topic), selected, "{filter} {topic}");
        }
    }

    #[test]
    fn wildcards_stand_alone() {
        for good in [
            "#",
            "+",
            "a/+/#",
            "+/tennis/#",
            "/",
            "a//b",
            " ",
            "$share/g/a",
        ] {
            assert_eq!(check_filter(good), Ok(()), "{good}");
        }
        for bad in ["", "a#", "a/#/b", "#/", "a+", "a/+b", "a\0b"] {
            assert!(check_filter(bad).is_err(), "{bad}");
        }
        assert!(!is_topic("a/+") && !is_topic("") && is_topic("/"));
    }

    proptest! {
        #[test]
        fn filters_that_share_a_topic_overlap(one in "[ab+/]{1,5}", other in "[ab+/]{1,5}", topic in "[ab/]{1,5}") {
            prop_assume!(check_filter(&one).is_ok() && check_filter(&other).is_ok());
            prop_assert!(filters_overlap(&one, &one) && filters_overlap(&one, "#"));
            if filter_matches(&one, &topic) && filter_matches(&other, &topic) {
                prop_assert!(filters_overlap(&one, &other) && filters_overlap(&other, &one));
            }
            prop_assert_eq!(filter_matches(&one, &topic), filters_overlap(&one, &topic), "a topic is a filter without wildcards");
        }

        #[test]
        fn a_topic_selects_itself(topic in "[ab/]{1,8}") {
            prop_assert!(is_topic(&topic) && check_filter(&topic).is_ok() && filter_matches(&topic, &topic));
        }

        #[test]
        fn a_wildcard_in_a_levels_place_selects_it(levels in prop::collection::vec("[a-c]{0,2}", 1..5), at in 0usize..5) {
            let topic = levels.join("/");
            prop_assume!(!topic.is_empty() && at < levels.len());
            let mut filter = levels.clone();
            filter[at] = "+".into();
            prop_assert!(filter_matches(&filter.join("/"), &topic));
            filter.truncate(at);
            filter.push("#".into());
            prop_assert!(filter_matches(&filter.join("/"), &topic));
        }
    }
}
