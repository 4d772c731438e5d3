//! The bpftrace program. Only stable tracepoints: no kernel probes, which many kernels are built without.
//!
//! Copies between a process and the kernel are seen as what they are made by: each reading or writing system call that
//! moved bytes is one, its result their number. A write or read of 8 bytes on an eventfd is a doorbell and no message; it is
//! told apart by its size. HTTP messages are told by their first four bytes in the buffer that a call wrote or read.

use std::collections::BTreeSet;
use std::fmt::Write;

/// System calls that copy from the process into the kernel, with the argument that is the buffer; a vector's first buffer.
const OUT: [(&str, Buffer); 4] = [
    ("write", Buffer::Plain("buf")),
    ("sendto", Buffer::Plain("buff")),
    ("writev", Buffer::Vector("vec")),
    ("sendmsg", Buffer::None),
];
/// System calls that copy from the kernel into the process.
const IN: [(&str, Buffer); 4] = [
    ("read", Buffer::Plain("buf")),
    ("recvfrom", Buffer::Plain("ubuf")),
    ("readv", Buffer::Vector("vec")),
    ("recvmsg", Buffer::None),
];
/// Further system calls that are told by name.
const NAMED: [&str; 12] = [
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
/// First words of HTTP messages, as a little-endian machine reads them: "HTTP", "GET ", "POST".
const WORDS: [u32; 3] = [0x5054_5448, 0x2054_4547, 0x5453_4f50];

enum Buffer {
    Plain(&'static str),
    Vector(&'static str),
    None,
}

impl Buffer {
    /// Where the first byte is, as an expression.
    fn address(&self) -> Option<String> {
        match self {
            Self::Plain(argument) => Some(format!("(uint64)args->{argument}")),
            Self::Vector(argument) => Some(format!("*(uint64*)uptr((uint64)args->{argument})")),
            Self::None => None,
        }
    }
}

/// The program for these processes. It says `ready` when it counts.
pub(super) fn write(pids: &BTreeSet<u32>) -> String {
    let mut text = String::from("BEGIN {");
    for pid in pids {
        let _ = write!(text, " @mine[{pid}] = 1;");
    }
    text.push_str(" printf(\"ready\\n\"); }\n");
    // 256 stands for preempted within the kernel (TASK_REPORT_MAX, include/linux/sched.h): no sleep either.
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
    for name in NAMED {
        let _ = writeln!(
            text,
            "tracepoint:syscalls:sys_enter_{name} /@mine[pid]/ {{ @named[pid, \"{name}\"] = count(); }}"
        );
    }
    OUT.iter()
        .for_each(|(name, buffer)| text.push_str(&outgoing(name, buffer)));
    IN.iter()
        .for_each(|(name, buffer)| text.push_str(&incoming(name, buffer)));
    text.push_str("END { clear(@mine); clear(@at); }\n");
    text
}

fn is_http() -> String {
    WORDS.map(|word| format!("$w == {word}")).join(" || ")
}

fn outgoing(name: &str, buffer: &Buffer) -> String {
    let look = buffer.address().map_or_else(String::new, |address| {
        format!(
            "$b = {address}; $w = *(uint32*)uptr($b); if ({}) {{ @written[pid] = count(); }}",
            is_http()
        )
    });
    format!(
        "tracepoint:syscalls:sys_enter_{name} /@mine[pid]/ {{ @named[pid, \"{name}\"] = count(); {look} }}\n{}",
        copied(name, "out", "")
    )
}

/// What was read is looked at when it has been read.
fn incoming(name: &str, buffer: &Buffer) -> String {
    let keep = buffer
        .address()
        .map_or_else(String::new, |address| format!("@at[tid] = {address};"));
    let look = match buffer {
        Buffer::None => String::new(),
        _ => format!(
            "$w = *(uint32*)uptr(@at[tid]); if ({}) {{ @parsed[pid] = count(); }}",
            is_http()
        ),
    };
    format!(
        "tracepoint:syscalls:sys_enter_{name} /@mine[pid]/ {{ @named[pid, \"{name}\"] = count(); {keep} }}\n{}",
        copied(name, "in", &look)
    )
}

fn copied(name: &str, way: &str, look: &str) -> String {
    format!(
        "tracepoint:syscalls:sys_exit_{name} /@mine[pid] && args->ret > 0/ {{ if (args->ret == 8) {{ @bells[pid, \"{way}\"] = \
         count(); }} else {{ @copies[pid, \"{way}\"] = count(); @bytes[pid, \"{way}\"] = sum(args->ret); {look} }} }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_and_call_is_in_it_once() {
        let text = write(&BTreeSet::from([7, 9]));
        assert!(
            text.starts_with("BEGIN { @mine[7] = 1; @mine[9] = 1; printf(\"ready\\n\"); }"),
            "{text}"
        );
        for name in NAMED
            .iter()
            .chain(OUT.iter().chain(&IN).map(|(name, _)| name))
        {
            assert_eq!(
                text.matches(&format!("sys_enter_{name} ")).count(),
                1,
                "{name}"
            );
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
