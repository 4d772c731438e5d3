//! Words of names and of comments.

use super::Rules;
use super::scan::{Comment, Definition, Subject};

/// A name's words, in lower case: `HTTPHop` and `http_hop` have two.
pub(super) fn words_of(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (index, &c) in chars.iter().enumerate() {
        // Capitals in a row are an acronym; the last one starts a word if lower case follows.
        let starts_word = c.is_uppercase()
            && index > 0
            && (!chars[index - 1].is_uppercase()
                || chars.get(index + 1).is_some_and(|next| next.is_lowercase()));
        if c == '_' || starts_word {
            words.push(String::new());
        }
        if c != '_' {
            let last = words.len() - 1;
            words[last].extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Fault of a name, if any.
pub(super) fn name_fault(definition: &Definition, rules: &Rules) -> Option<String> {
    if rules.allowed.contains(&definition.name) || definition.imposed {
        return None;
    }
    // Tests are sentences: a word such as `said` is their verb there.
    if definition.subject == Subject::Test {
        return None;
    }
    let words = words_of(&definition.name);
    let hit = words
        .iter()
        .find_map(|word| Some((word, rules.forbidden.get(word)?)));
    hit.map(|(word, instead)| format!("{definition}: `{word}` is no term of the field: {instead}"))
}

/// Fault of a time constant's name, if any: readers must see whether it is a timeout, an interval
/// or a grace period.
pub(super) fn time_fault(definition: &Definition, rules: &Rules) -> Option<String> {
    if !definition.is_time || definition.in_test || rules.allowed.contains(&definition.name) {
        return None;
    }
    let last = words_of(&definition.name).pop()?;
    (!rules.time_endings.contains(&last)).then(|| format!("{definition}: a time ends in _TIMEOUT, _INTERVAL, _GRACE or another word of `time_endings`"))
}

/// Fault of a comment line, if any.
pub(super) fn comment_fault(comment: &Comment, rules: &Rules) -> Option<String> {
    let words = comment
        .text
        .split(|c: char| !c.is_alphanumeric() && c != '\'')
        .map(str::to_lowercase);
    let hit = words
        .into_iter()
        .find_map(|word| Some((rules.forbidden_in_comments.get(&word)?, word)));
    hit.map(|(instead, word)| {
        format!(
            "{}: `{word}` is no term of the field: {instead}",
            comment.place
        )
    })
}

#[cfg(test)]
mod tests {
    use super::words_of;

    #[test]
    fn names_of_all_cases_are_divided_into_words() {
        for (name, words) in [
            ("Line", vec!["line"]),
            ("HTTPHop", vec!["http", "hop"]),
            ("IdleList", vec!["idle", "list"]),
            ("MAX_BYTES", vec!["max", "bytes"]),
            ("take_frame", vec!["take", "frame"]),
            ("_unused", vec!["unused"]),
        ] {
            assert_eq!(words_of(name), words, "{name}");
        }
    }
}
