//! The bpftrace program, with stable tracepoints only: many kernels are built without kernel
//! probes.
//!
//! Each reading or writing system call that moved bytes is one copy between process and kernel; its
//! result is the number of bytes. A read or write of 8 bytes on an eventfd is a wake-up and no
//! message; its size identifies it. The first four bytes of the buffer identify an HTTP message.

use std::collections::BTreeSet;
use std::fmt::Write;

/// System calls that copy from the process into the kernel, with the argument of the buffer; of a
/// vector, its first buffer.
const OUTGOING_CALLS: [(&str, CallBuffer); 4] = [
    ("write", CallBuffer::Plain("buf")),
    ("sendto", CallBuffer::Plain("buff")),
    ("writev", CallBuffer::Vector("vec")),
    // The vector is behind two pointers there, and HTTP is not written that way here.
    ("sendmsg", CallBuffer::None),
];
/// System calls that copy from the kernel into the process.
const INCOMING_CALLS: [(&str, CallBuffer); 4] = [
    ("read", CallBuffer::Plain("buf")),
    ("recvfrom", CallBuffer::Plain("ubuf")),
    ("readv", CallBuffer::Vector("vec")),
    ("recvmsg", CallBuffer::None),
];
/// Further system calls that are counted by name.
const NAMED_CALLS: [&str; 12] = [
    "futex",
    "epoll_wait",
    "epoll_pwait",
    "epoll_ctl",
    "accept4",
    "connect",
    "close",
    "socket",
    "shutdown",
    "setsockopt",
    "getsockopt",
    "sendfile64",
];
/// First four bytes of HTTP messages, as a little-endian number: "HTTP", "GET ", "POST".
const HTTP_PREFIXES: [u32; 3] = [0x5054_5448, 0x2054_4547, 0x5453_4f50];

enum CallBuffer {
    Plain(&'static str),
    Vector(&'static str),
    None,
}

impl CallBuffer {
    /// Returns the bpftrace expression for the address of the first byte.
    fn address_expression(&self) -> Option<String> {
        match self {
            Self::Plain(argument) => Some(format!("(uint64)args->{argument}")),
            Self::Vector(argument) => Some(format!("*(uint64*)uptr((uint64)args->{argument})")),
            Self::None => None,
        }
    }
}

/// Writes the program for these processes, which prints `ready` when it counts.
pub(super) fn write_script(pids: &BTreeSet<u32>) -> String {
    let mut text = String::from("BEGIN {");
    for pid in pids {
        let _ = write!(text, " @mine[{pid}] = 1;");
    }
    text.push_str(" printf(\"ready\\n\"); }\n");
    // 256 stands for preempted within the kernel (TASK_REPORT_MAX, include/linux/sched.h): no sleep either.
    // A map for each event: bpftrace counts maps per CPU, without locks.
    for (name, event, filter, key) in [
        ("calls", "raw_syscalls:sys_enter", "", "pid"),
        (
            "slept",
            "sched:sched_switch",
            "&& (args->prev_state & 255) != 0",
            "pid",
        ),
        (
            "preempted",
            "sched:sched_switch",
            "&& (args->prev_state & 255) == 0",
            "pid",
        ),
        ("woke", "sched:sched_waking", "", "pid"),
        ("softirqs", "irq:softirq_entry", "", "pid, args->vec"),
    ] {
        let _ = writeln!(
            text,
            "tracepoint:{event} /@mine[pid] {filter}/ {{ @{name}[{key}] = count(); }}"
        );
    }
    for name in NAMED_CALLS {
        let _ = writeln!(
            text,
            "tracepoint:syscalls:sys_enter_{name} /@mine[pid]/ {{ @named[pid, \"{name}\"] = count(); }}"
        );
    }
    OUTGOING_CALLS
        .iter()
        .for_each(|(name, buffer)| text.push_str(&trace_outgoing(name, buffer)));
    INCOMING_CALLS
        .iter()
        .for_each(|(name, buffer)| text.push_str(&trace_incoming(name, buffer)));
    // bpftrace prints all maps at its end; these two are no counts.
    text.push_str("END { clear(@mine); clear(@at); }\n");
    text
}

fn http_condition() -> String {
    HTTP_PREFIXES
        .map(|word| format!("$w == {word}"))
        .join(" || ")
}

fn trace_outgoing(name: &str, buffer: &CallBuffer) -> String {
    let check = buffer
        .address_expression()
        .map_or_else(String::new, |address| {
            format!(
                "$b = {address}; $w = *(uint32*)uptr($b); if ({}) {{ @written[pid] = count(); }}",
                http_condition()
            )
        });
    format!(
        "tracepoint:syscalls:sys_enter_{name} /@mine[pid]/ {{ @named[pid, \"{name}\"] = count(); {check} }}\n{}",
        count_copies(name, "out", "")
    )
}

/// Inspects the buffer at the exit of the call, when the kernel has filled it.
fn trace_incoming(name: &str, buffer: &CallBuffer) -> String {
    // The buffer's address is known only at the entry, its content only at the exit: the map
    // carries it across, by thread.
    let keep = buffer
        .address_expression()
        .map_or_else(String::new, |address| format!("@at[tid] = {address};"));
    let check = match buffer {
        CallBuffer::None => String::new(),
        _ => format!(
            "$w = *(uint32*)uptr(@at[tid]); if ({}) {{ @parsed[pid] = count(); }}",
            http_condition()
        ),
    };
    format!(
        "tracepoint:syscalls:sys_enter_{name} /@mine[pid]/ {{ @named[pid, \"{name}\"] = count(); {keep} }}\n{}",
        count_copies(name, "in", &check)
    )
}

fn count_copies(name: &str, direction: &str, check: &str) -> String {
    format!(
        "tracepoint:syscalls:sys_exit_{name} /@mine[pid] && args->ret > 0/ {{ if (args->ret == 8) {{ @eventfd_transfers[pid, \"{direction}\"] = \
         count(); }} else {{ @copies[pid, \"{direction}\"] = count(); @bytes[pid, \"{direction}\"] = sum(args->ret); {check} }} }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_and_call_is_traced_once() {
        let text = write_script(&BTreeSet::from([7, 9]));
        assert!(
            text.starts_with("BEGIN { @mine[7] = 1; @mine[9] = 1; printf(\"ready\\n\"); }"),
            "{text}"
        );
        for name in NAMED_CALLS.iter().chain(
            OUTGOING_CALLS
                .iter()
                .chain(&INCOMING_CALLS)
                .map(|(name, _)| name),
        ) {
            assert_eq!(
                text.matches(&format!("sys_enter_{name} ")).count(),
                1,
                "{name}"
            );
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
