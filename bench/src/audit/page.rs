//! Renders the page of the audit.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{EventCount, TracerCheck};

/// Counts of a variant under a load.
pub(crate) struct AuditResult {
    pub(crate) variant: &'static str,
    pub(crate) callers: usize,
    /// Requests that were answered while bpftrace counted.
    pub(crate) requests: u64,
    /// Counts by program name.
    pub(crate) programs: BTreeMap<String, EventCount>,
    /// Counts of `perf`, for one caller only.
    pub(crate) perf: TracerCheck,
    /// Counts of `strace`, for one caller only.
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

/// Label of a line, and the function that reads its number.
type PageLine = (&'static str, fn(&EventCount) -> u64);

/// Lines of the page, in order.
const PAGE_LINES: [PageLine; 12] = [
    ("context switches, voluntary", |count| count.slept),
    ("context switches, involuntary", |count| count.preempted),
    ("wake-ups caused", |count| count.woke),
    ("system calls", |count| count.calls),
    ("softirqs, network", |count| count.net),
    ("softirqs, other", |count| count.other_softirqs),
    ("copies between process and kernel", |count| count.copies),
    ("bytes of these copies", |count| count.bytes),
    ("reads and writes of an eventfd (8 bytes)", |count| {
        count.eventfd_transfers
    }),
    ("HTTP messages parsed", |count| count.parsed),
    ("HTTP messages written", |count| count.written),
    ("HTTP messages parsed or written", |count| {
        count.parsed + count.written
    }),
];

const PAGE_HEAD: &str = "# Kernel work per request, counted by tracing

`nearpath-bench audit` generates this page; do not edit it. The chain has two functions: the first calls the
second before it responds. Each response has 100 bytes. A front end receives the requests, as in
`make bench-shm`. All numbers are *per request* and cover all processes except the load generator. The number
after a variant is the number of concurrent requests.

- `ring`: nearpath with sandboxed functions. Calls go through shared memory, and an eventfd wakes the
  receiver.
- `sockmap`: as `ring`, but an eBPF program redirects each descriptor from socket to socket (the published
  mechanism).
- `poll`: as `ring`, but no endpoint sleeps, and none is woken. The endpoints poll their rings all the time,
  also between requests. The counts include this polling, so they depend on the duration of the requests.
- `sidecars`: one nginx as front end, and one nginx beside each function.
- `direct http`: the client calls the first function, which calls the second. There is no front end: no
  gateway, no limits, no names.

The SPRIGHT paper makes the same audit by reading code (Tables I and II, one request through two functions).
The paper counts 15 copies, 15 context switches and 25 interrupts for Knative. For SPRIGHT it counts 3, 7
and 11. Both counts include the front end.
";

const PAGE_TAIL: &str = "
## Counting method

- bpftrace counts at the tracepoints `sched_switch`, `sched_waking`, `raw_syscalls` and `softirq_entry`. An
  event counts for the process on the processor. An interrupt thus counts for the process that it interrupts.
  The copies are the results of the reading and writing system calls.
- The first four bytes of a buffer that is written or read identify an HTTP message. A message in two reads
  counts once. Two messages in one read also count once. The counts include responses to the load generator,
  and its requests when they are parsed.
- **Not traced**: copies inside a process and through shared memory, because no kernel event shows them. The
  code shows these copies:
  - The gateway copies head and body of a request into the pool once. It sends the response directly from the
    response's slot.
  - A function copies its response into a slot once. It copies the head of each message that it reads once,
    and never the body.
- Messages in shared memory are not in the table. A request here has 4: the call and the response of each
  function. Each message has an envelope of 64 bytes, which is written and checked without an HTTP parser.
- Copies inside the kernel, between socket buffers, do not occur on loopback: the kernel passes a segment on
  without a copy.
- In `sockmap` a descriptor is a record of 32 bytes, written to one socket and read from another. The copies
  and the bytes include these records.
- Kernel probes (`_copy_to_iter` and others) are not used: many kernels are built without them.
- strace stops a thread at each call. The next message often arrives before such a slow thread sleeps. `ring`
  wakes only sleeping endpoints, so it makes fewer calls under strace. Neither strace nor perf traces `poll`.
";

/// Renders the whole page. `stamp` describes the date and the machine of the run.
pub(crate) fn render_page(audits: &[AuditResult], stamp: &str) -> String {
    let mut page = format!("{PAGE_HEAD}\n{stamp}\n\n## Per request\n\n");
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
        "\n## Cross-check with other tracers\n\nEach tracer has its own run. An empty cell: not measured, or the tracer is not installed.\n\n",
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
    // A run without responses is shown; its exit code reports the failure.
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
    let _ = writeln!(page, "| other | {} |", values.join(" | "));
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
    fn all_counts_are_per_request() {
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
