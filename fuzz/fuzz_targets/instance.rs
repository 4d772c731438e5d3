//! The variables that a tenant gives its instance, as lines of `name=value`: settings, or an error
//! that names each fault in one line, which the node can read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_node::instance::notes::{InstanceNote, parse_line};
use nearpath_watchdog::fuzz::{WatchdogConfig, command, failure_line};

/// A reason, as it goes through the notes pipe.
fn reaches_the_node(why: &str) {
    let line = failure_line(why);
    assert_eq!(line.find('\n'), Some(line.len() - 1), "{line:?}");
    let Some(InstanceNote::Failed(told)) = parse_line(&line) else {
        panic!("{line:?} is not understood")
    };
    assert!(!told.contains(char::is_control), "{told:?}");
}

/// Words, written again with quotes where none is in them, are the same words.
fn splits_into_words(line: &str) {
    let Ok(words) = command(line) else { return };
    assert!(!words.is_empty() && words.iter().all(|word| !word.contains('\0')));
    if words.iter().all(|word| !word.contains('\'')) {
        let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
        assert_eq!(
            command(&quoted.join(" ")).expect("every quote is closed"),
            words
        );
    }
}

fuzz_target!(|text: &str| {
    let variable = |name: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
    };
    if let Err(fault) = WatchdogConfig::read(&variable) {
        assert!(fault.to_string().contains("variable "), "{fault}");
        reaches_the_node(&fault.to_string());
    }
    reaches_the_node(text);
    splits_into_words(text);
});
