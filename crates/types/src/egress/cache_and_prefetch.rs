//! Settings for answers before the destination's own, and for reads before the function's own.

use std::fmt;
use std::time::Duration;

use crate::duration;

use super::defaults::DEFAULT_FLUSH_TIMEOUT;
use super::fault::{EgressFault, shorten};
use super::protocol::{CacheUnit, ReadForm};
use super::values::parse_duration;
use super::{CacheLimit, EgressProtocol, EgressSpec, WriteMode};

/// Range of an HTTP cache in bytes.
const CACHE_BYTES_RANGE: [u64; 2] = [64 << 10, 4 << 30];
/// Longest time for which a value of Redis is kept: it may be stale that long if another client
/// changes it.
const MAX_CACHE_AGE: Duration = Duration::from_secs(60 * 60);
/// Longest time for which the node goes on delivering writes.
const MAX_FLUSH_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Maximum number of reads of one destination: all are issued with each call of the function.
const MAX_READS: usize = 16;
/// Maximum bytes of one read.
const MAX_READ_BYTES: usize = 512;

/// Units of bytes, the largest first, so that a number is written in the largest that divides it.
const BYTE_UNITS: &[(&str, u64)] = &[
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

pub(super) fn parse_cache(protocol: EgressProtocol, text: &str) -> Result<CacheLimit, EgressFault> {
    match protocol.traits().cache {
        // HTTP responses say how long they stay fresh (RFC 9111), so memory is the bound.
        Some(CacheUnit::Bytes) => parse_bytes(text).map(CacheLimit::Bytes),
        // Values of Redis say nothing of that, so time is the bound.
        Some(CacheUnit::Time) => match parse_duration("cache", text)? {
            time if !time.is_zero() && time <= MAX_CACHE_AGE => Ok(CacheLimit::For(time)),
            _ => Err(EgressFault::invalid_value(
                "cache",
                format!(
                    "it is no time up to {}",
                    duration::format_duration(MAX_CACHE_AGE)
                ),
            )),
        },
        None => {
            let those = EgressProtocol::names_with(|row| row.cache.is_some());
            Err(EgressFault::invalid_value(
                "cache",
                format!("only protocols {those} have one"),
            ))
        }
    }
}

fn parse_bytes(text: &str) -> Result<u64, EgressFault> {
    let read = BYTE_UNITS.iter().find_map(|(unit, size)| {
        text.strip_suffix(unit)?
            .parse::<u64>()
            .ok()?
            .checked_mul(*size)
    });
    let fits = read.filter(|bytes| (CACHE_BYTES_RANGE[0]..=CACHE_BYTES_RANGE[1]).contains(bytes));
    fits.ok_or_else(|| {
        let (min, max) = (
            format_bytes(CACHE_BYTES_RANGE[0]),
            format_bytes(CACHE_BYTES_RANGE[1]),
        );
        EgressFault::invalid_value(
            "cache",
            format!(
                "`{}` is no size from {min} to {max}; write for example 16MB",
                shorten(text)
            ),
        )
    })
}

fn format_bytes(bytes: u64) -> String {
    let unit = BYTE_UNITS
        .iter()
        .find(|(_, size)| bytes.is_multiple_of(*size));
    // Every number is a multiple of one byte, so the fallback is never used.
    let (unit, size) = unit.copied().unwrap_or(("B", 1));
    format!("{}{unit}", bytes / size)
}

pub(super) fn write_mode(
    protocol: EgressProtocol,
    is_async: bool,
    flush: Option<Duration>,
) -> Result<WriteMode, EgressFault> {
    match (is_async, flush) {
        (false, None) => Ok(WriteMode::Sync),
        // Without asynchronous writes there is nothing to flush.
        (false, Some(_)) => Err(EgressFault::invalid_value(
            "flush",
            "it needs `writes=async` beside it",
        )),
        (true, _) if !protocol.traits().async_writes => {
            let those = EgressProtocol::names_with(|row| row.async_writes);
            Err(EgressFault::invalid_value(
                "writes",
                format!("only protocols {those} have asynchronous ones"),
            ))
        }
        (true, Some(flush)) if flush > MAX_FLUSH_TIMEOUT => Err(EgressFault::invalid_value(
            "flush",
            format!(
                "it is longer than {}",
                duration::format_duration(MAX_FLUSH_TIMEOUT)
            ),
        )),
        (true, flush) => Ok(WriteMode::Async {
            flush: flush.unwrap_or(DEFAULT_FLUSH_TIMEOUT),
        }),
    }
}

/// Parses reads with `|` between, each with or without the word GET.
pub(super) fn parse_prefetch(
    protocol: EgressProtocol,
    text: &str,
) -> Result<Vec<String>, EgressFault> {
    let Some(form) = protocol.traits().prefetch else {
        let those = EgressProtocol::names_with(|row| row.prefetch.is_some());
        return Err(EgressFault::invalid_value(
            "prefetch",
            format!("only protocols {those} have it"),
        ));
    };
    let mut reads = Vec::new();
    for item in text.split('|').map(str::trim) {
        let read = item.strip_prefix("GET ").unwrap_or(item).trim_start();
        let read = parse_read(form, read)?;
        // A second issue of the same read would only cost.
        if !reads.contains(&read) {
            reads.push(read);
        }
    }
    match reads.len() {
        0..=MAX_READS => Ok(reads),
        _ => Err(EgressFault::invalid_value(
            "prefetch",
            format!("a destination has at most {MAX_READS} reads"),
        )),
    }
}

fn parse_read(form: ReadForm, read: &str) -> Result<String, EgressFault> {
    // A comma ends the destination in its list, a blank the setting.
    let fits = |char: char| char.is_ascii_graphic() && char != ',';
    if read.is_empty() || read.len() > MAX_READ_BYTES || !read.chars().all(fits) {
        let why = format!(
            "a read has 1 to {MAX_READ_BYTES} plain characters, no blank and no comma: `{}`",
            shorten(read)
        );
        return Err(EgressFault::invalid_value("prefetch", why));
    }
    // A fragment stays with the client (RFC 3986 section 3.5).
    if form == ReadForm::Path && (!read.starts_with('/') || read.contains('#')) {
        return Err(EgressFault::invalid_value(
            "prefetch",
            format!("`{}` is no path: write /PATH or /PATH?QUERY", shorten(read)),
        ));
    }
    Ok(read.to_owned())
}

/// Writes these settings in the text form.
pub(super) fn write_settings(egress: &EgressSpec, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match egress.cache {
        Some(CacheLimit::Bytes(bytes)) => write!(f, " cache={}", format_bytes(bytes))?,
        Some(CacheLimit::For(time)) => write!(f, " cache={}", duration::format_duration(time))?,
        None => {}
    }
    if let WriteMode::Async { flush } = egress.writes {
        f.write_str(" writes=async")?;
        // Defaults are left out, as everywhere in the text form.
        if flush != DEFAULT_FLUSH_TIMEOUT {
            write!(f, " flush={}", duration::format_duration(flush))?;
        }
    }
    match egress.prefetch.is_empty() {
        true => Ok(()),
        false => write!(f, " prefetch={}", egress.prefetch.join("|")),
    }
}
