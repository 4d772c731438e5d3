//! Event counts by process.

use std::collections::BTreeMap;

use serde_json::Value;

/// Events of one process, or of several processes together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct EventCount {
    /// System calls.
    pub(crate) calls: u64,
    /// Voluntary context switches.
    pub(crate) slept: u64,
    /// Involuntary context switches.
    pub(crate) preempted: u64,
    /// Wake-ups caused by the process.
    pub(crate) woke: u64,
    /// Softirqs while the process was on the processor: of the network, and others.
    pub(crate) net: u64,
    pub(crate) other_softirqs: u64,
    /// Copies of other sizes than 8 bytes between process and kernel, and their bytes.
    pub(crate) copies: u64,
    pub(crate) bytes: u64,
    /// Copies of 8 bytes: reads and writes of an eventfd.
    pub(crate) eventfd_transfers: u64,
    /// HTTP messages written and read.
    pub(crate) written: u64,
    pub(crate) parsed: u64,
    /// System calls by name, for the traced names.
    pub(crate) named: BTreeMap<String, u64>,
}

/// `NET_TX_SOFTIRQ` and `NET_RX_SOFTIRQ` (kernel: include/linux/interrupt.h).
const NET_SOFTIRQS: [u64; 2] = [2, 3];

impl EventCount {
    /// Adds one entry of a bpftrace map. `subkey` is the part of the key after the process.
    fn note_event(&mut self, map: &str, what: &str, times: u64) {
        match map {
            "@calls" => self.calls += times,
            "@slept" => self.slept += times,
            "@preempted" => self.preempted += times,
            "@woke" => self.woke += times,
            "@softirqs"
                if what
                    .parse()
                    .is_ok_and(|vector| NET_SOFTIRQS.contains(&vector)) =>
            {
                self.net += times
            }
            "@softirqs" => self.other_softirqs += times,
            "@copies" => self.copies += times,
            "@bytes" => self.bytes += times,
            "@eventfd_transfers" => self.eventfd_transfers += times,
            "@written" => self.written += times,
            "@parsed" => self.parsed += times,
            "@named" => *self.named.entry(what.to_owned()).or_default() += times,
            // Maps without an entry here, such as `@mine`, are the script's own.
            _ => {}
        }
    }

    /// Adds the counts of another process.
    pub(crate) fn add_count(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.calls, other.calls),
            (&mut self.slept, other.slept),
            (&mut self.preempted, other.preempted),
            (&mut self.woke, other.woke),
            (&mut self.net, other.net),
            (&mut self.other_softirqs, other.other_softirqs),
            (&mut self.copies, other.copies),
            (&mut self.bytes, other.bytes),
            (&mut self.eventfd_transfers, other.eventfd_transfers),
            (&mut self.written, other.written),
            (&mut self.parsed, other.parsed),
        ] {
            *mine += theirs;
        }
        for (name, times) in &other.named {
            *self.named.entry(name.clone()).or_default() += times;
        }
    }
}

/// Parses the final output of `bpftrace -f json`.
pub(super) fn parse_counts(lines: &str) -> BTreeMap<u32, EventCount> {
    let mut counts = BTreeMap::<u32, EventCount>::new();
    let lines = lines
        .lines()
        // bpftrace mixes warnings into its output, which are no JSON.
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    for line in lines.filter(|line| line["type"] == "map") {
        for (map, entries) in line["data"].as_object().into_iter().flatten() {
            for (key, times) in entries.as_object().into_iter().flatten() {
                // bpftrace joins the parts of a map's key by commas.
                let (pid, what) = key.split_once(',').unwrap_or((key, ""));
                let Ok(pid) = pid.parse() else { continue };
                counts
                    .entry(pid)
                    .or_default()
                    .note_event(map, what, times.as_u64().unwrap_or(0));
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_bpftrace() {
        let text = r#"{"type": "attached_probes", "data": {"probes": 7}}
{"type": "map", "data": {"@calls": {"11": 5, "12": 2}}}
{"type": "map", "data": {"@softirqs": {"11,3": 4, "11,1": 1}}}
{"type": "map", "data": {"@named": {"11,futex": 3}}}
ERROR: something else"#;
        let counts = parse_counts(text);
        assert_eq!(
            (
                counts[&11].calls,
                counts[&11].net,
                counts[&11].other_softirqs
            ),
            (5, 4, 1)
        );
        assert_eq!((counts[&11].named["futex"], counts[&12].calls), (3, 2));
        let mut all = counts[&11].clone();
        all.add_count(&counts[&12]);
        assert_eq!((all.calls, all.named.len()), (7, 1));
    }
}
