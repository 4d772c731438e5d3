//! The page that the audit writes.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{EventCount, TracerCheck};

/// Counts of a variant under a load.
pub(crate) struct AuditResult {
    pub(crate) variant: &'static str,
    pub(crate) callers: usize,
    /// Requests that were answered while bpftrace counted.
    pub(crate) requests: u64,
    /// By name of the program.
    pub(crate) programs: BTreeMap<String, EventCount>,
    /// For one caller only.
    pub(crate) perf: TracerCheck,
    pub(crate) strace: TracerCheck,
}

impl AuditResult {
    fn total_count(&self) -> EventCount {
        let mut total = EventCount::default();
        self.programs
            .values()
            .for_each(|count| total.add_count(count));
        total
    }

    fn column_title(&self) -> String {
        format!("{}, {}", self.variant, self.callers)
    }
}

/// A name and where its number is.
type PageLine = (&'static str, fn(&EventCount) -> u64);

/// Lines of the page, in order.
const PAGE_LINES: [PageLine; 12] = [
    ("context switches: went to sleep", |count| count.slept),
    ("context switches: had to make way", |count| count.preempted),
    ("wake-ups caused", |count| count.woke),
    ("system calls", |count| count.calls),
    ("soft interrupts, network", |count| count.net),
    ("soft interrupts, others", |count| count.other_softirqs),
    ("copies between process and kernel", |count| count.copies),
    ("bytes copied so", |count| count.bytes),
    ("doorbells (8 bytes on an eventfd)", |count| count.bells),
    ("HTTP messages parsed", |count| count.parsed),
    ("HTTP messages written", |count| count.written),
    ("HTTP messages parsed or written", |count| {
        count.parsed + count.written
    }),
];

const PAGE_HEAD: &str = "# What a request costs, counted by tracing

Made by `nearpath-bench audit`; do not edit. Two functions in a chain, the first asks the second before it answers, each with 100
bytes; behind an entry, as in `make bench-shm`. Everything is *by request*, and of all processes but the load generator. The
number behind a variant is that of requests at a time.

- `ring`: nearpath, functions in their sandboxes, calls through shared memory, woken by a doorbell.
- `sockmap`: the same, but each descriptor goes from socket to socket, redirected by an eBPF program (the published mechanism).
- `poll`: the same as `ring`, but nobody sleeps and nobody is woken. Its parties look at their rings all the time: what is counted of
  that goes on between requests as well, and depends on how long they take.
- `sidecars`: nginx in front, an nginx beside each function.
- `direct http`: the caller asks the first function, that the second. Nothing in front: no gateway, no limits, no names.

The audit that the SPRIGHT paper makes by reading code (its Tables I and II, for one request through two functions) counts for Knative 15
copies, 15 context switches and 25 interrupts, for SPRIGHT 3, 7 and 11, front end included.
";

const PAGE_TAIL: &str = "
## How it was counted

- bpftrace on tracepoints: `sched_switch` and `sched_waking` by the process that was on the processor, `raw_syscalls`, `softirq_entry` (an
  interrupt counts for the process that it interrupted), results of reading and writing system calls as copies.
- HTTP messages: by the first four bytes in the buffer that was written or read. A message that comes in two reads counts once, two
  that come in one read too; replies to the load generator are in, its requests when they are parsed.
- **Not traced**: copies inside a process, and through shared memory, which no kernel event shows. By the code: the gateway copies
  head and body of a request into the pool once and sends the answer out of the slot it was written in; a function copies its answer into a slot
  once, and the head (not the body) of what it reads out once. Messages in memory (4 by request here: call and answer of each function)
  are written and checked, 64 bytes of envelope each, but need no parser of HTTP; they are not in the table.
- Copies inside the kernel (between socket buffers) are not there on loopback: a segment is handed over, not copied.
- In `sockmap` a descriptor is a record of 32 bytes that is written to one socket and read from another: it is in the copies and the bytes.
- Kernel probes (`_copy_to_iter` and the like) are not used: many kernels are built without them.
- strace stops a thread at each call. At its pace a thread that is in time for the next message does not sleep, so `ring`, whose doorbell
  is rung only for sleepers, makes fewer calls under it. Neither strace nor perf
  looks at `poll`.
";

/// The whole page. `stamp` says when and on what.
pub(crate) fn render_page(audits: &[AuditResult], stamp: &str) -> String {
    let mut page = format!("{PAGE_HEAD}\n{stamp}\n\n## By request\n\n");
    write_header(&mut page, "", audits);
    for (name, value) in PAGE_LINES {
        let _ = write!(page, "| {name} |");
        for audit in audits {
            let _ = write!(
                page,
                " {} |",
                per_request(value(&audit.total_count()), audit.requests)
            );
        }
        page.push('\n');
    }
    page.push_str("\n## By program\n");
    audits
        .iter()
        .for_each(|audit| write_programs(&mut page, audit));
    page.push_str("\n## System calls by name\n\n");
    write_call_names(&mut page, audits);
    page.push_str(
        "\n## The same by others\n\nEach in a run of its own; empty: not measured, or the program is missing.\n\n",
    );
    write_checks(&mut page, audits);
    page.push_str(PAGE_TAIL);
    page
}

fn write_header(page: &mut String, first: &str, audits: &[AuditResult]) {
    let titles: Vec<_> = audits.iter().map(AuditResult::column_title).collect();
    let _ = writeln!(
        page,
        "| {first} | {} |\n| --- |{}",
        titles.join(" | "),
        " ---: |".repeat(audits.len())
    );
}

fn per_request(times: u64, requests: u64) -> String {
    // A run without answers is shown, and is a failure by its exit code.
    let value = times as f64 / requests.max(1) as f64;
    if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

fn write_programs(page: &mut String, audit: &AuditResult) {
    let _ = writeln!(
        page,
        "\n**{}** ({} requests)\n",
        audit.column_title(),
        audit.requests
    );
    let names: Vec<_> = audit
        .programs
        .keys()
        .map(|name| format!("`{name}`"))
        .collect();
    let _ = writeln!(
        page,
        "| | {} |\n| --- |{}",
        names.join(" | "),
        " ---: |".repeat(names.len())
    );
    for (name, value) in PAGE_LINES {
        let values: Vec<_> = audit
            .programs
            .values()
            .map(|count| per_request(value(count), audit.requests))
            .collect();
        let _ = writeln!(page, "| {name} | {} |", values.join(" | "));
    }
}

fn write_call_names(page: &mut String, audits: &[AuditResult]) {
    write_header(page, "", audits);
    let totals: Vec<_> = audits.iter().map(AuditResult::total_count).collect();
    let all: std::collections::BTreeSet<_> =
        totals.iter().flat_map(|total| total.named.keys()).collect();
    for name in all {
        let value = |(total, audit): (&EventCount, &AuditResult)| {
            per_request(total.named.get(name).copied().unwrap_or(0), audit.requests)
        };
        let values: Vec<_> = totals.iter().zip(audits).map(value).collect();
        let _ = writeln!(page, "| `{name}` | {} |", values.join(" | "));
    }
    // Calls without a name in the script are in the total only.
    let other = |(total, audit): (&EventCount, &AuditResult)| {
        per_request(
            total.calls.saturating_sub(total.named.values().sum()),
            audit.requests,
        )
    };
    let values: Vec<_> = totals.iter().zip(audits).map(other).collect();
    let _ = writeln!(page, "| others | {} |", values.join(" | "));
}

fn write_checks(page: &mut String, audits: &[AuditResult]) {
    write_header(page, "", audits);
    let ours = |value: fn(&EventCount) -> u64| {
        move |audit: &AuditResult| Some(value(&audit.total_count()) as f64)
    };
    type CheckLine<'a> = (&'static str, &'a dyn Fn(&AuditResult) -> Option<f64>);
    let lines: [CheckLine<'_>; 5] = [
        ("system calls, bpftrace", &ours(|count| count.calls)),
        ("system calls, perf stat", &|audit| audit.perf.calls),
        ("system calls, strace -c", &|audit| audit.strace.calls),
        (
            "context switches, bpftrace",
            &ours(|count| count.slept + count.preempted),
        ),
        ("context switches, perf stat", &|audit| audit.perf.switches),
    ];
    for (name, value) in lines {
        let each = |audit: &AuditResult| {
            value(audit).map_or(String::new(), |v| {
                format!("{:.2}", v / audit.requests as f64)
            })
        };
        let _ = writeln!(
            page,
            "| {name} | {} |",
            audits.iter().map(each).collect::<Vec<_>>().join(" | ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_by_request() {
        let count = EventCount {
            calls: 500,
            slept: 25,
            written: 10,
            parsed: 20,
            ..EventCount::default()
        };
        let audit = AuditResult {
            variant: "ring",
            callers: 1,
            requests: 10,
            programs: BTreeMap::from([
                ("nearpath".to_owned(), count.clone()),
                ("function".to_owned(), count),
            ]),
            perf: TracerCheck {
                calls: Some(1000.0),
                switches: None,
            },
            strace: TracerCheck::default(),
        };
        let page = render_page(&[audit], "Linux 1.2, 2026-01-01.");
        for line in [
            "Linux 1.2, 2026-01-01.",
            "| system calls | 100 |",
            "| system calls | 50.00 | 50.00 |",
            "| HTTP messages parsed or written | 6.00 |",
            "| system calls, perf stat | 100.00 |",
            "| context switches, perf stat |  |",
        ] {
            assert!(page.contains(line), "{line} is missing:\n{page}");
        }
    }
}
