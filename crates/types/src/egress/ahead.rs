//! The settings by which the node answers before the destination does, or asks before the function does.

use std::fmt;
use std::time::Duration;

use crate::duration;

use super::defaults::FLUSH;
use super::flaw::{Flaw, brief};
use super::protocol::{CacheUnit, ReadForm};
use super::settings::length;
use super::{Cache, Egress, Protocol, Writes};

/// The least and the most that a cache of HTTP may hold.
const BOUNDS: [u64; 2] = [64 << 10, 4 << 30];
/// Longest time for which a value of Redis is kept: it is stale all that time if another client changes it.
const LONGEST: Duration = Duration::from_secs(60 * 60);
/// Longest time for which the node goes on delivering.
const LONGEST_FLUSH: Duration = Duration::from_secs(10 * 60);
/// Reads of one destination, and bytes of each: all are issued with each call of the function.
const READS: usize = 16;
const LONGEST_READ: usize = 512;

/// Units of bytes, the largest first of those that a number may be a multiple of.
const UNITS: &[(&str, u64)] = &[
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

pub(super) fn cache(protocol: Protocol, text: &str) -> Result<Cache, Flaw> {
    match protocol.traits().cache {
        Some(CacheUnit::Bytes) => bytes(text).map(Cache::Bytes),
        Some(CacheUnit::Time) => match length("cache", text)? {
            time if !time.is_zero() && time <= LONGEST => Ok(Cache::For(time)),
            _ => Err(Flaw::value("cache", format!("it is no time up to {}", duration::format(LONGEST)))),
        },
        None => {
            let those = Protocol::names_with(|row| row.cache.is_some());
            Err(Flaw::value("cache", format!("only protocols {those} have one")))
        }
    }
}

fn bytes(text: &str) -> Result<u64, Flaw> {
    let read = UNITS.iter().find_map(|(unit, size)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(*size));
    let fits = read.filter(|bytes| (BOUNDS[0]..=BOUNDS[1]).contains(bytes));
    fits.ok_or_else(|| {
        let (least, most) = (written(BOUNDS[0]), written(BOUNDS[1]));
        Flaw::value("cache", format!("`{}` is no size from {least} to {most}; write for example 16MB", brief(text)))
    })
}

fn written(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(_, size)| bytes.is_multiple_of(*size));
    let (unit, size) = unit.copied().unwrap_or(("B", 1));
    format!("{}{unit}", bytes / size)
}

pub(super) fn writes(protocol: Protocol, detached: bool, flush: Option<Duration>) -> Result<Writes, Flaw> {
    match (detached, flush) {
        (false, None) => Ok(Writes::Sync),
        (false, Some(_)) => Err(Flaw::value("flush", "it needs `writes=async` beside it")),
        (true, _) if !protocol.traits().async_writes => {
            let those = Protocol::names_with(|row| row.async_writes);
            Err(Flaw::value("writes", format!("only protocols {those} have asynchronous ones")))
        }
        (true, Some(flush)) if flush > LONGEST_FLUSH => {
            Err(Flaw::value("flush", format!("it is longer than {}", duration::format(LONGEST_FLUSH))))
        }
        (true, flush) => Ok(Writes::Async { flush: flush.unwrap_or(FLUSH) }),
    }
}

/// Reads with `|` between, each with or without the word GET.
pub(super) fn prefetch(protocol: Protocol, text: &str) -> Result<Vec<String>, Flaw> {
    let Some(form) = protocol.traits().prefetch else {
        let those = Protocol::names_with(|row| row.prefetch.is_some());
        return Err(Flaw::value("prefetch", format!("only protocols {those} have it")));
    };
    let mut reads = Vec::new();
    for item in text.split('|').map(str::trim) {
        let read = item.strip_prefix("GET ").unwrap_or(item).trim_start();
        let read = one(form, read)?;
        if !reads.contains(&read) {
            reads.push(read);
        }
    }
    match reads.len() {
        0..=READS => Ok(reads),
        _ => Err(Flaw::value("prefetch", format!("a destination has at most {READS} reads"))),
    }
}

fn one(form: ReadForm, read: &str) -> Result<String, Flaw> {
    let fits = |char: char| char.is_ascii_graphic() && char != ',';
    if read.is_empty() || read.len() > LONGEST_READ || !read.chars().all(fits) {
        let why = format!("a read has 1 to {LONGEST_READ} plain characters, no blank and no comma: `{}`", brief(read));
        return Err(Flaw::value("prefetch", why));
    }
    if form == ReadForm::Path && (!read.starts_with('/') || read.contains('#')) {
        return Err(Flaw::value("prefetch", format!("`{}` is no path: write /PATH or /PATH?QUERY", brief(read))));
    }
    Ok(read.to_owned())
}

/// What is set of these, as it stands in the text form.
pub(super) fn write(egress: &Egress, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match egress.cache {
        Some(Cache::Bytes(bytes)) => write!(f, " cache={}", written(bytes))?,
        Some(Cache::For(time)) => write!(f, " cache={}", duration::format(time))?,
        None => {}
    }
    if let Writes::Async { flush } = egress.writes {
        f.write_str(" writes=async")?;
        if flush != FLUSH {
            write!(f, " flush={}", duration::format(flush))?;
        }
    }
    match egress.prefetch.is_empty() {
        true => Ok(()),
        false => write!(f, " prefetch={}", egress.prefetch.join("|")),
    }
}
